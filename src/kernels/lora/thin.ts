/**
 * LoRA's thin products on GPUs: the first product of the forward pass, x Aᵀ, and its gradient, dy B. With a rank of 8 to 64, they cost as much as
 * reading x or dy. On a register tile, which is made for about as many columns as rows, most threads would be idle: on an H200, 66 us for 32 rows of
 * 1,024 to 3,072 values, and 5.5 of a step's 14 ms.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { lanes } from '../common/lanes.ts'
import type { Weight } from '../common/weight.ts'
import type { DownNorm, StackedRows } from './lora.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { down: file('down.wgsl'), back: file('down_back.wgsl') }

/**
 * What a workgroup does. Powers of two; no more outputs than threads, and without subgroups at most 32, which take 16 KiB. Only `threads` changes
 * bits.
 */
export interface ThinTile {
  rows: number
  /** Number of columns of the rank. */
  columns: number
  threads: number
  /** Iterations that are loaded at once, at most. */
  ahead: number
}

/**
 * Whether a thin product with sums over `depth` values runs here, for any number of rows: on GPUs. Software drivers have down_cpu.wgsl; on those that
 * cannot run it, barriers cost more than this gains.
 */
export function takesThin(gpu: Gpu, depth: number): boolean {
  return !gpu.facts.software && depth % 4 === 0
}

/** Whether x Wᵀ, with nothing added, runs here: W must be an A of LoRA. */
export function takesThinForward(gpu: Gpu, weight: Weight): boolean {
  return !!weight.lowRank && takesThin(gpu, weight.columns) && weight.rows % 8 === 0
}

/** Widest backward product that is thin: dy B is as wide as the rank; the product with A, which continues to x, is as wide as x. */
const mostBack = 64

/** Whether dy W, with nothing added, runs here: W must be a B of LoRA. */
export function takesThinBack(gpu: Gpu, { lowRank, rows, columns }: Weight): boolean {
  return !!lowRank && !gpu.facts.software && columns % 8 === 0 && columns <= Math.min(mostBack, rows)
}

/**
 * Threads that share a sum. For few rows, more threads are faster; for many rows, each workgroup then has more partial sums to add up. It is one
 * number for all, since it decides the order of the sum.
 */
const threads = 128

/**
 * Few rows are spread over as many workgroups as possible, since the time is that of waiting for loads. With many rows, a value of A should serve
 * several rows, and there are enough workgroups anyway.
 */
function tileFor(rows: Count): ThinTile {
  const most = capacityOf(rows)
  if (most <= 128) return { rows: 1, columns: 4, threads, ahead: 4 }
  return { rows: most <= 1024 ? 2 : 4, columns: 8, threads, ahead: 2 }
}

/**
 * Constants of the thin kernels.
 * @param steps of the depth that the threads share, one per iteration each
 */
export function thinConstants(gpu: Gpu, tile: ThinTile, steps: number): Constants {
  const { rows: ROWS, columns: COLUMNS, threads: THREADS, ahead } = tile
  const { subgroupSize } = gpu.facts
  const SUBGROUP = Number(subgroupSize >= 4 && subgroupSize <= 64 && subgroupSize <= THREADS)
  const STEPS = SUBGROUP ? Math.log2(subgroupSize) : 3
  const values = ROWS * COLUMNS
  // If all threads have the same number of iterations, AHEAD is chosen to divide it, so that no load needs a check.
  const turns = Math.ceil(steps / THREADS)
  const whole = steps % THREADS === 0
  let AHEAD = Math.min(ahead, turns)
  while (whole && turns % AHEAD > 0) AHEAD--
  return {
    ROWS,
    COLUMNS,
    THREADS,
    AHEAD,
    EXACT: Number(whole),
    SUBGROUP,
    STEPS,
    OVER: Math.log2(THREADS) - STEPS,
    KEPT: Math.max(1, values / 2 ** STEPS),
  }
}

/** Constants of norm_rows.wgsl. Threads without a row of their own go through another's, so that all reach the same barriers. */
function normConstants(gpu: Gpu, { rows, threads }: ThinTile): Constants {
  const { LANES, SUBGROUP } = lanes(gpu)
  const NORM_ROWS = Math.min(rows, threads / LANES)
  return { NORM_LANES: LANES, NORM_SUBGROUP: SUBGROUP, NORM_ROWS, NORM_ROUNDS: rows / NORM_ROWS, NORM_AHEAD: 16 }
}

/** A of one projection: the index in the bank of its first value, and the factor of its product. */
interface ThinPart {
  at: number
  scale: number
}

export interface ThinForward {
  /** Each row gets only its own adapter's part, times that adapter's scale instead of `scale`; the scales begin with value `first`. */
  stacked?: StackedRows & { first?: number }
  /** RMSNorm of x as part of the product, which each workgroup does for its few rows. Not with `stacked`. */
  norm?: DownNorm
  /** Receives the product's input in f16, (rows, k). */
  half?: GpuBuffer
  tile?: ThinTile
}

/** Parameters of down.wgsl and of group_tile.wgsl (DOWN): which values of the bank and which rows belong to which part. */
export function downParams(parts: ThinPart[], stacked?: ThinForward['stacked']): Record<string, number> {
  const { own = 0, width = 0, perProjection: per = 0, first = 0 } = stacked ?? {}
  const params: Record<string, number> = { own, width, per, first }
  for (let s = 0; s < 3; s++) {
    params[`w_${s}`] = parts[s]?.at ?? 0
    params[`alpha_${s}`] = parts[s]?.scale ?? 0
  }
  return params
}

/** scale_s * x A_sᵀ for up to three projections in one dispatch: (rows, rank) each, `stride` values apart. */
export function thinForward(
  gpu: Gpu,
  x: Binding,
  rows: Count,
  { k, rank, parts }: { k: number; rank: number; parts: ThinPart[] },
  bank: Binding,
  { xa, stride = 0 }: { xa: Binding; stride?: number },
  { stacked, norm, half, tile = tileFor(rows) }: ThinForward = {},
): void {
  const params = { rows, k, rank, xa_stride: stride, eps: norm?.eps ?? 0, ...downParams(parts, stacked) }
  const flags = { STACKED: Number(!!stacked), NORM: Number(!!norm), F16: Number(!!half) }
  const kernel = gpu.kernel(paths.down, { ...thinConstants(gpu, tile, k / 4), ...flags, ...(norm && normConstants(gpu, tile)) })
  const bindings: Binding[] = [x, bank, xa]
  if (stacked) bindings.push(stacked.places, stacked.scales)
  if (norm) bindings.push(norm.gain, norm.out)
  if (half) bindings.push(half)
  if (norm) bindings.push(x)
  gpu.dispatch(kernel, bindings, params, [(parts.length * rank) / tile.columns, groupsOf(rows, tile.rows)])
}

/** dxa = alpha * dy B; dy (rows, n), B (n, rank) float32, dxa (rows, rank). */
export function thinBack(
  gpu: Gpu,
  dy: Binding,
  rows: Count,
  { n, rank, alpha }: { n: number; rank: number; alpha: number },
  b: Binding,
  dxa: Binding,
  tile: ThinTile = tileFor(rows),
): void {
  const kernel = gpu.kernel(paths.back, thinConstants(gpu, tile, n))
  gpu.dispatch(kernel, [dy, b, dxa], { rows, n, rank, alpha }, [rank / tile.columns, groupsOf(rows, tile.rows)])
}
