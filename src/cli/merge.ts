/** `merge`: folds a LoRA adapter into its model's weights and writes them, in bf16, as a Hugging Face folder. */
import type { Command } from 'commander'

interface MergeOptions {
  model: string
  adapter: string
  out: string
  force?: boolean
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('merge')
    .description('Fold a LoRA adapter into the weights and write a Hugging Face folder (bf16).')
    .requiredOption('--model <ref>', 'the model that the adapter was trained on: a folder, a .gguf file or a hub id')
    .requiredOption('--adapter <dir>', 'the PEFT adapter folder')
    .requiredOption('--out <dir>', 'the folder to write')
    .option('--force', 'replace --out when it exists')
    .action(merge)
}

async function merge(options: MergeOptions): Promise<void> {
  const { openModel } = await import('../model/open.ts')
  const { readAdapter } = await import('../model/peft.ts')
  const { writeMerged } = await import('../model/export.ts')
  const adapter = await readAdapter(options.adapter)
  const model = await openModel(options.model)
  try {
    await writeMerged(options.out, model, adapter, { replace: options.force === true })
    const without = (await model.tokenizerOrNull()) ? '' : ' (without a tokenizer: the model came without one)'
    console.log(`${options.out}: ${model.name} with the ${adapter.tensors.size} changed layers of ${options.adapter}${without}`)
  } finally {
    model.close()
  }
}
