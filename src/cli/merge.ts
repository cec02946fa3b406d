/**
 * `merge`: writes a model as a Hugging Face folder, with a LoRA adapter folded in where one is given. Without one it is how a GGUF
 * becomes a folder that transformers and vLLM read.
 */
import { statSync } from 'node:fs'
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import { checkModelFolder, unwritten } from './out-file.ts'
import { stopOnSignal } from './stop.ts'

interface MergeOptions {
  model: string
  adapter?: string
  out: string
  force?: boolean
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('merge')
    .description(
      'Write a model as a Hugging Face folder (in bf16 if it is a GGUF), with a LoRA adapter merged into the weights if one is given.',
    )
    .requiredOption('--model <ref>', 'a folder, a .gguf file or a hub id; with --adapter the model that it was trained on')
    .option('--adapter <dir>', 'a PEFT adapter folder; without it the model itself is written')
    .requiredOption('--out <dir>', 'the folder to write')
    .option('--force', 'replace --out when it is a model')
    .action(merge)
}

async function merge(options: MergeOptions): Promise<void> {
  const { openModel } = await import('../model/files/open.ts')
  const { readAdapter } = await import('../model/files/peft.ts')
  const { writeMerged } = await import('../model/files/export.ts')
  const isThere = statSync(options.out, { throwIfNoEntry: false })?.isDirectory() === true
  if (options.force || isThere) checkModelFolder('--out', options.out)
  if (!options.force && isThere)
    throw new UserError(`--out ${options.out} exists already. Name another folder, or replace this one with --force.`)
  const adapter = options.adapter === undefined ? null : await readAdapter(options.adapter)
  const model = await openModel(options.model)
  const stop = stopOnSignal('what was written is removed')
  const { signal } = stop
  try {
    // --out may be the model's own folder, which Windows renames only if no file in it is open.
    const how = {
      replace: options.force === true,
      signal,
      written: () => model.close(),
      warn: (line: string) => console.error(`warning: ${line}`),
    }
    await writeMerged(options.out, model, adapter, how).catch(unwritten(`--out ${options.out}`))
    const changed = adapter ? ` with the ${adapter.tensors.size} changed layers of ${options.adapter}` : ''
    const without = (await model.tokenizerOrNull()) ? '' : ' (without a tokenizer: the model came without one)'
    const dtype = model.kind === 'gguf' ? ', in bf16' : ''
    console.log(`${options.out}: ${model.name}${changed}${dtype}${without}`)
  } catch (error) {
    if (error !== signal.reason) throw error
    process.exitCode = 130
  } finally {
    stop.release()
    model.close()
  }
}
