/**
 * LoRA's thin products on GPUs: the first one forward, x Aᵀ, and its gradient, dy B. With a rank of 8 to 64 columns they cost what it takes to read x or dy, and on a
 * register tile, which is made for as many columns as rows, most threads have nothing to do: on an H200 66 us for 32 rows of 1024 to 3072, and 5.5 of a step's 14 ms.
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

/** What a workgroup does. Powers of two; no more outputs than threads, and without subgroups 32, which is 16 KiB. Only `threads` changes bits. */
export interface ThinTile {
  rows: number
  /** Of the rank. */
  columns: number
  threads: number
  /** Turns that are loaded at once, at most. */
  ahead: number
}

/** Whether a product over `depth` values in fours is thin.ts's, of any number of rows: on GPUs. Software drivers have kernels of their own (down_cpu.wgsl), and to those that have not, a barrier costs more than it gains. */
export function takesThin(gpu: Gpu, depth: number): boolean {
  return !gpu.facts.software && depth % 4 === 0
}

/** Whether x Wᵀ, with nothing added, goes this way: W is an A of LoRA. */
export function takesThinForward(gpu: Gpu, weight: Weight): boolean {
  return !!weight.lowRank && takesThin(gpu, weight.columns) && weight.rows % 8 === 0
}

/** Widest result of a product back that is thin: B of LoRA has as many columns as the rank, and A, by which the gradient goes on to x, those of x. */
const mostBack = 64

/** Whether dy W, with nothing added, goes this way: W is a B of LoRA. */
export function takesThinBack(gpu: Gpu, { lowRank, rows, columns }: Weight): boolean {
  return !!lowRank && !gpu.facts.software && columns % 8 === 0 && columns <= Math.min(mostBack, rows)
}

/**
 * Threads that share a sum. For few rows the more the faster, and of many each workgroup has as many partial sums to add up; it decides the order of
 * the sum, so it is one number for all.
 */
const threads = 128

/**
 * Few rows are spread over as many workgroups as there can be, since what counts is how long one waits for its loads; with many rows a value of A should serve
 * several, and there are workgroups enough all the same.
 */
function tileFor(rows: Count): ThinTile {
  const most = capacityOf(rows)
  if (most <= 128) return { rows: 1, columns: 4, threads, ahead: 4 }
  return { rows: most <= 1024 ? 2 : 4, columns: 8, threads, ahead: 2 }
}

/** @param steps of the depth that the threads have to do between them, one each a turn */
export function thinConstants(gpu: Gpu, tile: ThinTile, steps: number): Constants {
  const { rows: ROWS, columns: COLUMNS, threads: THREADS, ahead } = tile
  const { subgroupSize } = gpu.facts
  const SUBGROUP = Number(subgroupSize >= 4 && subgroupSize <= 64 && subgroupSize <= THREADS)
  const STEPS = SUBGROUP ? Math.log2(subgroupSize) : 3
  const values = ROWS * COLUMNS
  // Where all threads have as many turns, a number of these that divides them needs no questions.
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

/** Of norm_rows.wgsl. Threads that have no row of their own go through one of another's, so that none waits for a barrier more. */
function normConstants(gpu: Gpu, { rows, threads }: ThinTile): Constants {
  const { LANES, SUBGROUP } = lanes(gpu)
  const NORM_ROWS = Math.min(rows, threads / LANES)
  return { NORM_LANES: LANES, NORM_SUBGROUP: SUBGROUP, NORM_ROWS, NORM_ROUNDS: rows / NORM_ROWS, NORM_AHEAD: 16 }
}

/** A of one projection: the value of the bank that it begins with, and what its product is multiplied with. */
interface ThinPart {
  at: number
  scale: number
}

export interface ThinForward {
  /** Of each row only its own adapter's part, times that one's scale in place of `scale`; these begin with value `first`. */
  stacked?: StackedRows & { first?: number }
  /** Of x, on the way: as each workgroup does it for its rows, few of them. Not with `stacked`. */
  norm?: DownNorm
  /** Gets what is multiplied in f16, (rows, k). */
  half?: GpuBuffer
  tile?: ThinTile
}

/** Which values of the bank and which rows are whose, as parameters of down.wgsl and of group_tile.wgsl (DOWN). */
export function downParams(parts: ThinPart[], stacked?: ThinForward['stacked']): Record<string, number> {
  const { own = 0, width = 0, perProjection: per = 0, first = 0 } = stacked ?? {}
  const params: Record<string, number> = { own, width, per, first }
  for (let s = 0; s < 3; s++) {
    params[`w_${s}`] = parts[s]?.at ?? 0
    params[`alpha_${s}`] = parts[s]?.scale ?? 0
  }
  return params
}

/** scale_s * x A_sᵀ of up to three projections in one dispatch: (rows, rank) each, `stride` values apart. */
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
