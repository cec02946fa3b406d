/** Measures what a piece of work takes besides its time: memory, idle device, kernels, and the share of the peak. */
import { availableParallelism } from 'node:os'
import { driverSeconds } from '../common/cpu-time.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { KernelTime } from '../gpu/timing.ts'
import { attentionLayers, weightCount } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'

export interface Usage {
  seconds: number
  /** Software adapters: share of the cores' time during the work in which no driver thread ran. */
  idleShare?: number
  /** Bytes of buffers and textures in use, at most. */
  peakBytes: number
  /** Memory of the process afterwards, without the file cache. */
  rssBytes: number
}

/** Runs `work` and measures around it. */
export async function used(gpu: Gpu, work: () => Promise<void>): Promise<Usage> {
  await gpu.sync('before')
  gpu.pool.peakBytes = gpu.pool.bytesInUse
  const [cpu, start] = [driverSeconds(), performance.now()]
  await work()
  const seconds = (performance.now() - start) / 1000
  const driver = driverSeconds(cpu).seconds
  const idle = gpu.facts.software ? { idleShare: Math.max(0, 1 - driver / (seconds * availableParallelism())) } : {}
  return { seconds, ...idle, peakBytes: gpu.pool.peakBytes, rssBytes: process.memoryUsage.rss() }
}

/** Shares of the kernel time by family ('matmul', 'attention', ...), and of the longest kernels by label. */
export interface KernelShares {
  byFamily: Record<string, number>
  longest: { label: string; calls: number; ms: number; share: number }[]
  /** Milliseconds of all kernels. */
  totalMs: number
}

/** The folder of a kernel's file: 'matmul' for 'matmul/tile(..)', 'losses' for a kernel that lies elsewhere. */
function familyOf(label: string): string {
  const parts = label.replace(/\(.*/, '').split('/')
  return parts.length > 2 ? parts.at(-2)! : parts[0]
}

/** Computes the shares. @param steps how many times the work was done while `times` were measured */
export function kernelShares(times: KernelTime[], steps = 1): KernelShares {
  const totalMs = times.reduce((sum, t) => sum + t.milliseconds, 0) / steps
  const byFamily: Record<string, number> = {}
  const rows = times.map(({ label, calls, milliseconds }) => {
    const share = totalMs > 0 ? milliseconds / steps / totalMs : 0
    const family = familyOf(label)
    byFamily[family] = (byFamily[family] ?? 0) + share
    return { label, calls: calls / steps, ms: milliseconds / steps, share }
  })
  const sorted = Object.entries(byFamily).toSorted(([, a], [, b]) => b - a)
  return { byFamily: Object.fromEntries(sorted), longest: rows.toSorted((a, b) => b.share - a.share).slice(0, 10), totalMs }
}

/**
 * Number of operations that a model's pass needs, whatever is recomputed: two per weight and token, the head for scored tokens, and in the forward
 * pass two products of attention (for a Gated DeltaNet's states: four products per token). The backward pass needs as many again for the gradients of
 * the inputs, and once more for those of the weights that are trained.
 * @param lengths tokens of each sequence @param scored rows that pass through the head
 */
export function modelFlops(
  config: ModelConfig,
  lengths: readonly number[],
  scored: number,
  trains: 'nothing' | 'lora' | 'full',
): number {
  const head = config.vocabSize * config.hiddenSize
  const inner = weightCount(config) - (config.tieWordEmbeddings ? head : 2 * head)
  const rows = lengths.reduce((sum, n) => sum + n, 0)
  const keys = lengths.reduce((sum, n) => sum + (n * (n + 1)) / 2, 0)
  const linear = 2 * (inner * rows + head * scored)
  const { layers, heads, headDim, qwen35 } = config
  const attending = attentionLayers(config)
  const states = qwen35 ? 8 * (layers - attending) * qwen35.valueHeads * qwen35.keyDim * qwen35.valueDim * rows : 0
  const attention = 4 * attending * heads * headDim * keys + states
  const times = { nothing: [1, 1], lora: [2, 3], full: [3, 3] }[trains]
  return linear * times[0] + attention * times[1]
}
