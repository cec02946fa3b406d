/** What `score` and `grad` share: their options, a model on the GPU with or without an adapter, progress on stderr. */
import { resolve } from 'node:path'
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import type { TrainingSample } from '../common/types.ts'
import { isOutOfMemory } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import type { Quantization } from '../model/types.ts'
import { positive, quantizationOption, whole } from './options.ts'
import { checkOut } from './out-file.ts'

export interface ModelBatchOptions {
  model: string
  adapter?: string
  batch: string
  out: string
  temperature: number
  microBatchTokens: number
  matrixUnits?: boolean
  quantization?: Quantization
  /** Of a training config (bf16). */
  round?: boolean
}

/** Declares the options of both verbs. */
export function withModelAndBatch(command: Command): Command {
  return command
    .requiredOption('--model <ref>', 'a Hugging Face folder, a .gguf file or a hub id')
    .option('--adapter <dir>', 'a PEFT adapter folder')
    .requiredOption(
      '--batch <file>',
      'a JSON list of { input_ids, loss_mask, inference_logprobs, advantages }; without loss_mask every token counts, and the other two are 0 if they are left out',
    )
    .requiredOption('--out <file>', 'the safetensors file to write')
    .option('--temperature <number>', 'logits are divided by it', positive, 1)
    .option('--micro-batch-tokens <count>', 'the most tokens computed at once; affects memory, not the result', whole(1), 2048)
    .option('--matrix-units', "compute large matrix products on the GPU's matrix units, in f16")
    .addOption(quantizationOption())
}

/**
 * Loads model, adapter and batch, runs `fn`, and frees everything.
 * @param full without an adapter, every weight is trainable
 * @throws UserError for files that are missing, broken or do not fit each other, and a batch that does not fit the device
 */
export async function withDecoder(
  options: ModelBatchOptions,
  full: boolean,
  fn: (run: { gpu: Gpu; decoder: Decoder; samples: TrainingSample[] }) => Promise<void>,
): Promise<void> {
  const { openModel } = await import('../model/files/open.ts')
  const { checkAdapter, readAdapter } = await import('../model/files/peft.ts')
  const { readBatch } = await import('../model/decoder/batch.ts')
  const { loadDecoder } = await import('../model/decoder/load.ts')
  const { refuseLonger } = await import('../model/config/longrope.ts')
  const { openGpu } = await import('./opening.ts')
  const adapter = options.adapter === undefined ? undefined : await readAdapter(options.adapter)
  const files = await openModel(options.model)
  try {
    if (adapter) checkAdapter(adapter, files.config, files.name)
    const samples = await readBatch(options.batch, { vocabSize: files.config.vocabSize })
    // Not Math.max(...list): a call takes only about 120,000 arguments.
    const longest = samples.reduce((most, s) => Math.max(most, s.ids.length), 0)
    const most = files.config.maxPositionEmbeddings
    refuseLonger(files, longest, `a sequence has ${longest} tokens`)
    if (longest > most) console.error(`a sequence has ${longest} tokens; ${files.name} was made for ${most} at most`)
    if (resolve(options.out) === resolve(options.batch))
      throw new UserError(`--out and --batch are both ${options.out}, which would be overwritten. Name another file in --out.`)
    checkOut(options.out)
    const { matrixUnits, round } = options
    const gpu = await openGpu(files.config, { trains: true, matrixUnits })
    const report = reporter(`loading ${files.name}`)
    const decoder = await loadDecoder(gpu, files, {
      adapter,
      full: full && !adapter,
      round,
      matrixUnits,
      quantization: options.quantization,
      progress: report,
    })
    try {
      await fn({ gpu, decoder, samples })
    } catch (error) {
      if (!isOutOfMemory(error)) throw error
      throw new UserError(
        `The batch does not fit into memory: ${error.message}. Lower --micro-batch-tokens (${options.microBatchTokens}); a sequence is never split, however long it is.`,
      )
    } finally {
      decoder.release()
      gpu.close()
    }
  } finally {
    files.close()
  }
}

/** Prints progress to stderr, at most every two seconds; short work prints nothing. */
export function reporter(what: string): (share: number) => void {
  let last = performance.now()
  return (share) => {
    const now = performance.now()
    if (now - last < 2000) return
    last = now
    console.error(`${what}: ${Math.round(share * 100)}%`)
  }
}
