/** What `bench` runs (which groups, on which models, at which sizes), and the report that it returns. */
import { freemem } from 'node:os'
import { messageOf, UserError } from '../common/errors.ts'
import { GpuMemoryError } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { loadDecoder } from '../model/decoder/load.ts'
import { weightCount } from '../model/decoder/shapes.ts'
import { useMatrixUnits } from '../kernels/common/matrix-units.ts'
import { kernelGroups, type KernelGroup, type KernelRow } from './case.ts'
import { benchDecode, type DecodeRow, type DecodeSize } from './decode.ts'
import { benchKernels, type NamedShape, type Skipped } from './kernels.ts'
import { measurePeaks, type Peaks } from './peaks.ts'
import { modelFor, modelShapes } from './shapes.ts'
import { benchStep, loraOptionsOf, stepKinds, type StepKind, type StepRow, type StepSize } from './step.ts'

/** All topics that can be requested. */
export const topics = ['kernels', ...kernelGroups, 'step', 'decode', 'all'] as const
export type Topic = (typeof topics)[number]

interface BenchOptions {
  topics: Topic[]
  /** Shape names, folders or GGUF files. Default: what suits the adapter. */
  models?: string[]
  /** Number of rows for products, norms, heads and samplers, and of sequences for decode. */
  rows?: number[]
  /** Number of tokens in a step's batch. */
  tokens?: number
  repeats?: number
  quick?: boolean
  /** Whether steps and decode run on the adapter's matrix units. */
  matrixUnits?: boolean
  /** Versions of the packages, for the report. */
  versions: Record<string, string>
  command: string
}

export interface BenchReport {
  bench: 'dawn-rl'
  adapter: string
  /** The driver's vendor and architecture, as named by WebGPU. */
  driver: string
  software: boolean
  date: string
  command: string
  versions: Record<string, string>
  peaks: Peaks
  rows: (KernelRow | StepRow | DecodeRow)[]
  skipped: Skipped[]
}

/** Groups of kernels that the requested topics include, in their order. */
export function groupsOf(asked: readonly Topic[]): KernelGroup[] {
  const everything = asked.includes('all') || asked.includes('kernels')
  return kernelGroups.filter((group) => everything || asked.includes(group))
}

/**
 * Runs the benchmarks.
 * @param hooks.progress receives a line before each case @param hooks.row receives each result as it comes
 * @throws UserError for a model that does not exist; CheckError if a result is wrong
 */
export async function runBench(
  gpu: Gpu,
  options: BenchOptions,
  hooks: { progress?: (line: string) => void; row?: (row: BenchReport['rows'][number]) => void } = {},
): Promise<BenchReport> {
  const { topics: asked, quick = false } = options
  const repeats = options.repeats ?? (quick ? 1 : 3)
  // Names are checked before anything runs.
  const named = await Promise.all((options.models ?? []).map(async (ref) => ({ ref, files: await modelFor(ref) })))
  const shapes: NamedShape[] = named.map(({ files }) => ({ name: files.name, config: files.config }))
  for (const { files } of named) files.tensors.close()
  hooks.progress?.('peaks of the adapter')
  const peaks = await measurePeaks(gpu, { repeats })
  const report: BenchReport = {
    bench: 'dawn-rl',
    adapter: gpu.facts.name,
    driver: [gpu.facts.vendor, gpu.facts.architecture].filter(Boolean).join(' '),
    software: gpu.facts.software,
    date: new Date().toISOString().slice(0, 10),
    command: options.command,
    versions: options.versions,
    peaks,
    rows: [],
    skipped: [],
  }
  const groups = groupsOf(asked)
  if (groups.length > 0) {
    const usual = quick ? ['smollm2-135m'] : ['smollm2-135m', 'qwen3-0.6b', 'qwen3-4b']
    const models = shapes.length > 0 ? shapes : usual.map((name) => ({ name, config: modelShapes[name] }))
    const timing = { repeats, seconds: quick ? 0.02 : gpu.facts.software ? 0.06 : 0.1, progress: hooks.progress, row: hooks.row }
    const { rows, skipped } = await benchKernels(gpu, groups, { models, rows: options.rows, quick }, peaks, timing)
    report.rows.push(...rows)
    report.skipped.push(...skipped)
  }
  const refs = options.models ?? usualModels(gpu, quick)
  for (const [wanted, run] of [
    ['step', stepsOf],
    ['decode', decodesOf],
  ] as const) {
    if (!asked.includes(wanted) && !asked.includes('all')) continue
    for (const ref of refs) await run(gpu, ref, { ...options, quick }, report, hooks)
  }
  return report
}

type Hooks = Parameters<typeof runBench>[2] & object

/** SmolLM2 stands for small models everywhere. On a software adapter the 4B model's step would take minutes. */
function usualModels(gpu: Gpu, quick: boolean): string[] {
  if (quick) return ['tiny']
  return gpu.facts.software ? ['tiny', 'smollm2-135m', 'qwen3-0.6b', 'qwen3-4b'] : ['smollm2-135m', 'qwen3-0.6b', 'qwen3-4b']
}

/** Size of a training step: about ten seconds of work on two cores, and enough to fill a GPU. */
function stepSize(gpu: Gpu, weights: number, options: BenchOptions): StepSize {
  const length = gpu.facts.software ? 128 : 512
  const usual = gpu.facts.software ? (weights < 1e7 ? 2048 : weights < 2e8 ? 512 : 128) : 8192
  const tokens = options.tokens ?? (options.quick ? 64 : usual)
  const each = Math.min(length, tokens)
  return {
    sequences: Math.max(1, Math.round(tokens / each)),
    length: each,
    checkpointing: weights > 2e8,
    matrixUnits: options.matrixUnits,
  }
}

/** Bytes that a kind of step needs at least, without activations. */
function bytesOf(kind: StepKind | 'decode', weights: number): number {
  return kind === 'full' ? weights * (2 + 4 + 4 + 8) : weights * 2
}

/** Explains why there is not enough memory, if this machine can tell: WebGPU does not say how much memory a GPU has. */
function noRoom(gpu: Gpu, bytes: number): string | undefined {
  // Drivers, and the upload, hold weights a second time for a moment.
  const free = freemem()
  if (!gpu.facts.software || bytes * 1.3 + 2 ** 30 < free) return undefined
  return `it needs about ${gib(bytes * 1.3)} GiB and this machine has ${gib(free)} GiB free`
}

const gib = (bytes: number): string => (bytes / 2 ** 30).toFixed(1)

const minutes = (ref: string): string => `it takes minutes on a software adapter; --model ${ref} runs it`

async function stepsOf(gpu: Gpu, ref: string, options: BenchOptions, report: BenchReport, hooks: Hooks): Promise<void> {
  const files = await modelFor(ref)
  const weights = weightCount(files.config)
  const large = gpu.facts.software && options.models === undefined && weights > 2e8
  for (const kind of stepKinds) {
    const size = stepSize(gpu, weights, options)
    const name = `step ${kind} ${size.sequences} x ${size.length} (${files.name})`
    // A step that takes a minute on two cores would say little that smaller models do not.
    if (large && (kind === 'full' || (kind === 'lora' && weights > 1e9))) {
      report.skipped.push({ case: name, why: minutes(ref) })
      continue
    }
    // Float32 masters and moments are first made on the host, tensor by tensor.
    await attempt(name, bytesOf(kind, weights), gpu, report, hooks, async () => {
      const row = await benchStep(gpu, files, kind, size, report.peaks, options.repeats ?? (large || options.quick ? 1 : 2))
      report.rows.push(row)
      hooks.row?.(row)
    })
  }
  files.tensors.close()
}

/** Tokens of each prompt of decode, and the most sequences that share one. */
const [promptTokens, sharing] = [40, 8]
/** Steps that an engine computes these prompts in, 256 tokens at a time; those that begin first draw a token in each. */
const promptSteps = (sequences: number): number => Math.ceil((Math.ceil(sequences / sharing) * promptTokens) / 256)

async function decodesOf(gpu: Gpu, ref: string, options: BenchOptions, report: BenchReport, hooks: Hooks): Promise<void> {
  const files = await modelFor(ref)
  const weights = weightCount(files.config)
  const large = gpu.facts.software && options.models === undefined && weights > 2e8
  if (large && weights > 1e9) {
    report.skipped.push({ case: `decode (${files.name})`, why: minutes(ref) })
    return files.tensors.close()
  }
  const usual = large ? [1, 16] : options.quick ? [1, 2] : [1, 16, 32, 128]
  const sequences = options.rows ?? usual
  await attempt(`decode (${files.name})`, bytesOf('decode', weights), gpu, report, hooks, async () => {
    const decoder = await loadDecoder(gpu, files, {
      round: true,
      lora: loraOptionsOf(files.config),
      matrixUnits: options.matrixUnits,
    })
    try {
      for (const count of sequences) {
        const size: DecodeSize = {
          sequences: count,
          shared: Math.min(sharing, count),
          promptTokens,
          tokens: (large || options.quick ? 10 : count >= 128 ? 16 : 24) + promptSteps(count) - 1,
          ...(options.matrixUnits ? { matrixUnits: true } : {}),
        }
        await attempt(`decode ${count} (${files.name})`, 0, gpu, report, hooks, async () => {
          const row = await benchDecode(decoder, size, report.peaks, options.repeats ?? (large || options.quick ? 1 : 2))
          report.rows.push(row)
          hooks.row?.(row)
        })
      }
    } finally {
      decoder.release()
      useMatrixUnits(gpu, false)
      gpu.pool.trim()
    }
  })
  files.tensors.close()
}

/** Runs one case. If memory is short, or it throws UserError or GpuMemoryError, it is skipped, and the reason is recorded. */
async function attempt(
  name: string,
  bytes: number,
  gpu: Gpu,
  report: BenchReport,
  hooks: Hooks,
  run: () => Promise<void>,
): Promise<void> {
  hooks.progress?.(name)
  const why = noRoom(gpu, bytes)
  try {
    if (!why) return await run()
  } catch (error) {
    if (!(error instanceof UserError || error instanceof GpuMemoryError)) throw error
    report.skipped.push({ case: name, why: messageOf(error) })
    return
  }
  report.skipped.push({ case: name, why })
}
