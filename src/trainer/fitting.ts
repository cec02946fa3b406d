/** Micro-batches of the configured size, or smaller ones with the same gradient once they do not fit into the GPU's memory. */
import { UserError } from '../common/errors.ts'
import type { TrainingBatch, TrainingSample } from '../common/types.ts'
import { GpuMemoryError } from '../gpu/errors.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { microBatches, rowsOfGroup, sharesPrompts } from '../model/decoder/packed.ts'
import { MicroBatchRunner, type RunnerOptions } from './micro-batch.ts'

/** The fewest rows for which a micro-batch has buffers. */
const LEAST_ROWS = 64

export class Fitting {
  readonly #decoder: Decoder
  readonly #options: Omit<RunnerOptions, 'rowsAtMost'>
  /** The most rows in a micro-batch. */
  #tokens: number
  #running = false
  /** Between two steps the plans may be released to give the engine their memory. They are then recorded again. */
  readonly #relieve = (): void => {
    if (!this.#running) this.#runner.release()
  }
  #runner: MicroBatchRunner

  constructor(
    decoder: Decoder,
    { microBatchTokens, plans, reference }: { microBatchTokens: number; plans?: boolean; reference?: Decoder },
  ) {
    this.#decoder = decoder
    this.#options = { plans, reference }
    this.#tokens = microBatchTokens
    this.#runner = this.#makeRunner()
    decoder.gpu.pool.relief.add(this.#relieve)
  }

  /** In the form of the options of gradients.ts. */
  get size(): { microBatchTokens: number; runner: MicroBatchRunner } {
    return { microBatchTokens: this.#tokens, runner: this.#runner }
  }

  /**
   * Zeroes the gradients and runs `work`, again with smaller micro-batches as long as memory does not suffice.
   * @param warn told once what was changed
   * @throws UserError if micro-batches cannot get any smaller
   */
  async run<T>(batch: TrainingBatch, work: () => Promise<T>, warn?: (line: string) => void): Promise<T> {
    let changed: string | undefined
    while (true) {
      this.#running = true
      this.#decoder.store!.zeroGradients()
      try {
        const result = await work()
        if (changed) warn?.(changed)
        return result
      } catch (error) {
        // An error that the device reported late has damaged more than this step.
        if (!(error instanceof GpuMemoryError) || this.#decoder.gpu.failure) throw error
        changed = this.#shrink(batch, error)
      } finally {
        this.#running = false
      }
    }
  }

  /** Limits micro-batches to this many rows from now on: a resumed run keeps the size to which it had shrunk. */
  shrinkTo(tokens: number): void {
    if (tokens >= this.#tokens) return
    this.#runner.release()
    this.#decoder.gpu.pool.trim()
    this.#tokens = tokens
    this.#runner = this.#makeRunner()
  }

  release(): void {
    this.#decoder.gpu.pool.relief.delete(this.#relieve)
    this.#runner.release()
  }

  #shrink(batch: TrainingBatch, error: GpuMemoryError): string {
    const { rows, divisible } = largestOf(batch.samples, this.#tokens, sharesPrompts(this.#decoder.config))
    if (!divisible) {
      throw new UserError(
        `Step ${batch.step} does not fit into memory: ${error.message}, and micro-batches are already as small as they can be (${rows} tokens). ` +
          'Lower trainer.args.max_seq_len or inference.max_num_seqs (kv_cache_bytes), set gradient_checkpointing = true, or give the run more memory (gpu_memory).',
      )
    }
    this.shrinkTo(Math.max(1, Math.floor(Math.min(rows, this.#tokens) / 2)))
    return (
      `${error.message}: from now on micro-batches have ${this.#tokens} tokens, which changes gradients only in their rounding. ` +
      `To start with this size, set trainer.args.micro_batch_tokens = ${this.#tokens}.`
    )
  }

  #makeRunner(): MicroBatchRunner {
    return new MicroBatchRunner(this.#decoder, { rowsAtMost: this.#tokens, ...this.#options })
  }
}

/**
 * Rows of the largest micro-batch, and whether smaller ones would need less memory. There is always room for LEAST_ROWS rows and for one sequence.
 */
function largestOf(samples: TrainingSample[], rowsAtMost: number, shared: boolean): { rows: number; divisible: boolean } {
  const batches = microBatches(samples, rowsAtMost, shared)
  const sizes = batches.map((groups) => groups.reduce((sum, group) => sum + rowsOfGroup(group, samples), 0))
  const rows = Math.max(0, ...sizes)
  const several = batches.some((groups) => groups.reduce((sum, { members }) => sum + members.length, 0) > 1)
  return { rows, divisible: rows > LEAST_ROWS && several }
}
