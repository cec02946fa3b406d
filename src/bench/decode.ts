/**
 * Measures how fast the engine generates, with prompts shared by some sequences and all requests submitted at once: tokens per second with the
 * prompts, and of decode steps alone. First the trainer scores generated tokens: the log-probabilities must agree.
 */
import { availableParallelism } from 'node:os'
import { UserError } from '../common/errors.ts'
import { hashSeed, Random } from '../common/random.ts'
import type { GenerationResult } from '../common/types.ts'
import { driverSeconds } from '../common/cpu-time.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { Engine } from '../inference/engine.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { untrained } from '../model/decoder/packed.ts'
import { attentionLayers } from '../model/decoder/shapes.ts'
import { scoreSamples } from '../trainer/gradients.ts'
import { CheckError } from './check.ts'
import { plainSampling } from './data.ts'
import { peakOf, type Peaks } from './peaks.ts'
import { peakFor } from './step.ts'
import { kernelShares, modelFlops, type KernelShares } from './usage.ts'

export interface DecodeSize {
  sequences: number
  /** Number of sequences that share a prompt. */
  shared: number
  promptTokens: number
  /** New tokens of each sequence; at least 8. */
  tokens: number
  /** Whether the decoder was loaded for matrix units; MFU is then a share of their peak. Default: no. */
  matrixUnits?: boolean
}

export interface DecodeRow extends DecodeSize {
  group: 'decode'
  model: string
  /** Including the prompts; and of steps that only decode. */
  tokensPerSecond: number
  decodeTokensPerSecond: number
  stepMs: number
  stepCpuMs: number
  stepJavaScriptMs: number
  dispatches: number
  submits: number
  /** Number of buffers, bind groups and kernels created in the last round. */
  madeAfterWarmUp: number
  mfu: number
  idleShare?: number
  peakBytes: number
  rssBytes: number
  kernels?: KernelShares
  error: number
}

/** Engine and trainer agree to the bit on one adapter; this large a difference would be a bug in one of them. */
const tolerance = 1e-4

/**
 * Measures decode with one number of sequences.
 * @param rounds of which the best of each figure counts, since other processes only slow it down
 * @throws CheckError if the trainer gives a generated token another log-probability
 */
export async function benchDecode(decoder: Decoder, size: DecodeSize, peaks: Peaks, rounds: number): Promise<DecodeRow> {
  const { gpu, config } = decoder
  const { sequences, promptTokens, tokens } = size
  const maxLength = promptTokens + tokens
  gpu.pool.peakBytes = gpu.pool.bytesInUse
  const cacheRows = Math.max(sequences * maxLength, rowsHeld(size))
  const engine = new Engine(decoder, { maxSequences: sequences, maxLength, cacheRows, eosTokenIds: [], decode: () => '' })
  try {
    const error = await scoringError(decoder, size, await round(engine, size, 0).results)
    const figures = await timed(gpu, engine, size, rounds)
    const kernels = gpu.facts.timestamps ? await profiled(gpu, engine, size) : undefined
    // On average, a token sees its prompt and half of its completion.
    const keys = promptTokens + tokens / 2
    const attention = 4 * attentionLayers(config) * config.heads * config.headDim * keys
    const flops = sequences * (modelFlops(config, [1], 1, 'nothing') + attention)
    const seconds = figures.stepMs / 1000
    const idleShare = figures.idleShare ?? (kernels ? Math.max(0, 1 - kernels.totalMs / 1000 / seconds) : undefined)
    const memory = { peakBytes: gpu.pool.peakBytes, rssBytes: process.memoryUsage.rss() }
    const mfu = flops / seconds / 1e9 / peakOf(peakFor(peaks, size.matrixUnits ?? false))
    return { group: 'decode', model: decoder.name, ...size, ...figures, idleShare, mfu, ...memory, kernels, error }
  } finally {
    await engine.close()
    gpu.pool.trim()
  }
}

/** Cache rows with which all sequences run at once: whole pages, and the one that an engine leaves free for those that run. */
function rowsHeld({ sequences, shared, promptTokens, tokens }: DecodeSize): number {
  const pageSize = 16
  const common = Math.floor(promptTokens / pageSize)
  const own = Math.ceil((promptTokens + tokens) / pageSize) - common
  return pageSize * (Math.ceil(sequences / shared) * common + sequences * own + (sequences > 1 ? 1 : 0))
}

function promptOf({ shared, promptTokens }: DecodeSize, vocabulary: number, index: number, i: number): number[] {
  const random = new Random(hashSeed(index, Math.floor(i / shared)))
  return Array.from({ length: promptTokens }, () => random.int(vocabulary))
}

/** Requests that were all submitted at once. */
interface Round {
  results: Promise<GenerationResult[]>
  /** Resolves when all prompts are computed: steps of prompts also decode the sequences that have begun. */
  decoding: Promise<unknown>
  /** Resolves when the first sequence ends: until then, each step has a token for every sequence. */
  ending: Promise<unknown>
  ended: boolean
}

/** Each round has new prompts. */
function round(engine: Engine, size: DecodeSize, index: number): Round {
  const { vocabSize } = engine.decoder.config
  const settings = { ...plainSampling, max_tokens: size.tokens }
  const begun = Promise.withResolvers<void>()
  const all = Array.from({ length: size.sequences }, (_, i) =>
    engine.generate({
      promptIds: promptOf(size, vocabSize, index, i),
      sampling: { ...settings, seed: hashSeed(index, i) },
      // Prompts are computed in the order of the requests.
      ...(i === size.sequences - 1 ? { onToken: () => begun.resolve() } : {}),
    }),
  )
  const ending = Promise.race(all)
  const made: Round = { results: Promise.all(all), decoding: Promise.race([begun.promise, ending]), ending, ended: false }
  const end = (): void => void (made.ended = true)
  for (const promise of [made.results, made.decoding, ending]) promise.catch(end)
  ending.then(end, end)
  return made
}

/** Waits for that many more steps, or until the first sequence ends. */
async function moreSteps(engine: Engine, running: Round, count: number): Promise<void> {
  const last = engine.stats().decodeSteps + count
  while (!running.ended && engine.stats().decodeSteps < last) await new Promise((resolve) => setTimeout(resolve, 2))
}

/**
 * Largest difference of a log-probability between engine and trainer, over the first and last sequence of round 0. @throws CheckError if it is too
 * large
 */
async function scoringError(decoder: Decoder, size: DecodeSize, results: GenerationResult[]): Promise<number> {
  let worst = 0
  for (const i of new Set([0, results.length - 1])) {
    const prompt = promptOf(size, decoder.config.vocabSize, 0, i)
    const ids = Int32Array.from([...prompt, ...results[i].ids])
    const options = { temperature: plainSampling.temperature, microBatchTokens: ids.length }
    const [{ logprobs }] = await scoreSamples(decoder, [untrained(ids)], options)
    results[i].logprobs.forEach((l, t) => (worst = Math.max(worst, Math.abs(l - logprobs[prompt.length + t]))))
  }
  if (worst <= tolerance) return worst
  throw new CheckError(
    `decode of ${size.sequences} sequences (${decoder.name}): scoring gives a token a log-probability that differs by ${worst}, so it is not timed.`,
  )
}

async function timed(gpu: Gpu, engine: Engine, size: DecodeSize, rounds: number) {
  const { sequences, tokens } = size
  const best = { tokensPerSecond: 0, decodeTokensPerSecond: 0, stepMs: Infinity, stepCpuMs: Infinity, stepJavaScriptMs: Infinity }
  const counts = { dispatches: 0, submits: 0, madeAfterWarmUp: 0 }
  const made = (): number => gpu.pool.buffersMade + gpu.readBuffersMade + gpu.bindGroups + gpu.kernels.size
  let idleShare: number | undefined
  for (let i = 0; i < rounds; i++) {
    const begin = performance.now()
    const running = round(engine, size, i + 1)
    await running.decoding
    const steps = engine.stats().decodeSteps
    const [wall, script, driver] = [performance.now(), process.threadCpuUsage(), driverSeconds()]
    const [dispatches, submits, before] = [gpu.dispatches, gpu.submits, made()]
    await running.ending
    const count = engine.stats().decodeSteps - steps
    const end = performance.now()
    const { user, system } = process.threadCpuUsage(script)
    const [driverMs, scriptMs] = [driverSeconds(driver).seconds * 1000, (user + system) / 1000]
    const [dispatched, submitted, after] = [gpu.dispatches - dispatches, gpu.submits - submits, made()]
    await running.results
    if (count === 0)
      throw new UserError(
        `${tokens} tokens of each sequence are too few: the first sequence ends before the last of ${sequences} prompts is computed.`,
      )
    const busy = driverMs / ((end - wall) * availableParallelism())
    if (gpu.facts.software) idleShare = Math.min(idleShare ?? 1, Math.max(0, 1 - busy))
    best.tokensPerSecond = Math.max(best.tokensPerSecond, (sequences * tokens * 1000) / (performance.now() - begin))
    best.stepMs = Math.min(best.stepMs, (end - wall) / count)
    best.stepCpuMs = Math.min(best.stepCpuMs, (driverMs + scriptMs) / count)
    best.stepJavaScriptMs = Math.min(best.stepJavaScriptMs, scriptMs / count)
    best.decodeTokensPerSecond = (sequences * 1000) / best.stepMs
    Object.assign(counts, { dispatches: dispatched / count, submits: submitted / count, madeAfterWarmUp: after - before })
  }
  return { ...best, ...counts, idleShare }
}

/** Times of kernels in decode steps. On a software adapter, timestamps add some 20 us to each kernel. */
async function profiled(gpu: Gpu, engine: Engine, size: DecodeSize): Promise<KernelShares> {
  const running = round(engine, size, 99)
  await running.decoding
  const times = await gpu.profile(() => moreSteps(engine, running, Math.min(8, size.tokens - 6)))
  await running.results
  const steps = times.find(({ label }) => label.startsWith('sampling/draw'))?.calls ?? 1
  return kernelShares(times, steps)
}
