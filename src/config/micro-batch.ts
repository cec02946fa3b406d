/**
 * `micro_batch_tokens = "auto"`: the largest power of two whose memory, as estimated by memory.ts, fits. It is at least one sequence of max_seq_len
 * and at most the tokens of a batch, and no activation may exceed the GPU adapter's largest binding. Some memory is left free, as the estimate is not
 * exact. A resumed run keeps its number, because the order of sums, and with it the last bits of the results, depends on it.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { UserError } from '../common/errors.ts'
import { formatBytes } from '../monitor/format.ts'
import { readSource, valueAt } from './compose.ts'
import { bindable, memoryOf, type MemoryLimits, type SizedModel } from './memory.ts'
import type { RunConfig } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

/** Memory that a run may fill, and where that number comes from. */
export interface Room {
  bytes: number
  from: string
}

/** The fraction of the room that the estimate may fill, as it is within 15% of what runs held. */
const SHARE = 0.85

const powerAtMost = (n: number) => 2 ** Math.floor(Math.log2(n))
const powerAtLeast = (n: number) => 2 ** Math.ceil(Math.log2(n))

/** The smallest and largest power of two for "auto": enough for one sequence, and not more than needed for a batch. */
export function autoRange(args: { batch_size: number; max_seq_len: number }): { least: number; most: number } {
  const least = powerAtLeast(args.max_seq_len)
  return { least, most: Math.max(least, powerAtMost(args.batch_size * args.max_seq_len)) }
}

/**
 * Replaces "auto" by a number.
 * @returns the config with the number, and one line that says which number and why
 * @throws UserError if not even one sequence fits
 */
export function sizeMicroBatch<Config extends RunConfig | SftConfig>(
  config: Config,
  model: SizedModel,
  room: Room,
  limits: MemoryLimits,
): { config: Config; line: string } {
  const { args } = config.trainer
  const { least, most } = autoRange(args)
  const { binds, widest } = bindings(model, limits)
  const needs = (tokens: number) => bytesOf(withTokens(config, tokens), model, limits)
  const fits = (tokens: number) => needs(tokens) <= SHARE * room.bytes
  const whole = `${Math.round(SHARE * 100)}% of ${formatBytes(room.bytes)} (${room.from})`
  let tokens = least
  if (!fits(tokens) || widest * tokens > binds) {
    const why = fits(tokens)
      ? `an activation of ${formatBytes(widest * tokens)} is more than the adapter binds at once (${formatBytes(binds)})`
      : `${formatBytes(needs(tokens))} are needed, more than ${whole}`
    throw new UserError(
      `trainer.args.micro_batch_tokens is "auto", but not even ${tokens} tokens fit: ${why}. Lower trainer.args.max_seq_len or inference.max_num_seqs, or set a number of tokens instead.`,
    )
  }
  while (tokens < most && fits(2 * tokens) && widest * 2 * tokens <= binds) tokens *= 2
  const bound =
    tokens === most
      ? `more than a batch of ${args.batch_size} x ${args.max_seq_len} tokens is of no use`
      : fits(2 * tokens)
        ? `with twice as many, an activation is more than the adapter binds at once, ${formatBytes(binds)}`
        : `twice as many need ${formatBytes(needs(2 * tokens))}, more than ${Math.round(SHARE * 100)}% of it`
  const line = `micro_batch_tokens = ${tokens} ("auto"): needs about ${formatBytes(needs(tokens))} of ${formatBytes(room.bytes)} (${room.from}); ${bound}`
  return { config: withTokens(config, tokens), line }
}

/** The number in a run's config.toml. Undefined if there is none, or if it is too small for a sequence of this config. */
export function keptMicroBatch(runFolder: string, args: { batch_size: number; max_seq_len: number }): number | undefined {
  const file = join(runFolder, 'config.toml')
  if (!existsSync(file)) return undefined
  const tokens = valueAt(readSource(file).table, ['trainer', 'args', 'micro_batch_tokens'])
  return typeof tokens === 'number' && tokens >= args.max_seq_len ? tokens : undefined
}

/**
 * Replaces "auto" by the number of the run that is resumed. It may fill all free memory, as the number was chosen with room to spare.
 * @param room undefined if the amount of memory is unknown
 * @returns what sizeMicroBatch returns
 * @throws UserError if the memory of this machine is too small for it
 */
export function keepMicroBatch<Config extends RunConfig | SftConfig>(
  config: Config,
  model: SizedModel,
  tokens: number,
  room: Room | undefined,
  limits: MemoryLimits,
): { config: Config; line: string } {
  const sized = withTokens(config, tokens)
  const { binds, widest } = bindings(model, limits)
  const needed = bytesOf(sized, model, limits)
  const why =
    widest * tokens > binds
      ? `an activation of ${formatBytes(widest * tokens)} is more than the adapter binds at once (${formatBytes(binds)})`
      : room && needed > room.bytes
        ? `about ${formatBytes(needed)} are needed, but only ${formatBytes(room.bytes)} are there (${room.from})`
        : undefined
  if (why !== undefined)
    throw new UserError(
      `The run was started with micro_batch_tokens = ${tokens} (by "auto"), which this machine cannot hold: ${why}. Free some memory, or set a smaller trainer.args.micro_batch_tokens, which changes gradients only by rounding.`,
    )
  return {
    config: sized,
    line: `micro_batch_tokens = ${tokens} ("auto"): as when the run was started, so that its numbers stay the same`,
  }
}

/** The largest binding of a GPU adapter in bytes, and the bytes of the widest row of activations. */
const bindings = ({ config: model }: SizedModel, limits: MemoryLimits) => ({
  binds: bindable(limits),
  widest: 4 * Math.max(model.hiddenSize, model.intermediateSize, model.heads * model.headDim),
})

const bytesOf = (config: RunConfig | SftConfig, model: SizedModel, limits: MemoryLimits) =>
  memoryOf(config, model, limits).reduce((sum, row) => sum + row.bytes, 0)

/** The config with this number of tokens, which is at least max_seq_len. */
function withTokens<Config extends RunConfig | SftConfig>(config: Config, tokens: number): Config {
  const { args } = config.trainer
  const micro_batch_size = Math.floor(tokens / args.max_seq_len)
  return { ...config, trainer: { ...config.trainer, args: { ...args, micro_batch_tokens: tokens, micro_batch_size } } }
}
