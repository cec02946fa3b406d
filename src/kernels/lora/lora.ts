/**
 * LoRA's first product, x Aᵀ, for several projections of one input at once; also for rows of several adapters, whose matrices lie one below the
 * other.
 */
import { fileURLToPath } from 'node:url'
import type { Binding, BufferRange, Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, times, type Count } from '../../gpu/size.ts'
import { cpuLanes, dispatchFlat } from '../common/lanes.ts'
import { weightView } from '../common/weight.ts'
import { takesCpu } from '../matmul/cpu.ts'
import type { InputNorm } from '../matmul/group.ts'
import { linear } from '../matmul/matmul.ts'
import { takesThin, thinForward } from './thin.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { down: file('down_cpu.wgsl'), select: file('select_rows.wgsl'), columns: file('set_columns.wgsl') }

/** One projection: A (rank, K) in a bank, its scale, and the output for scale * x Aᵀ, (rows, rank). */
interface LoraDown {
  a: BufferRange
  scale: number
  out: GpuBuffer
}

/**
 * Which part of the rank belongs to which adapter, if A holds several: the first `own` to place 0, then `width` to each place from 2 on. Both are
 * multiples of 8. Place 1 means no adapter.
 */
export interface StackLayout {
  own: number
  width: number
}

/** Rows of several adapters. */
export interface StackedRows extends StackLayout {
  /** (rows) u32: each row's place. */
  places: GpuBuffer
  /** The scales of all projections, `perProjection` of them each, by place. */
  scales: BufferRange
  perProjection: number
}

/** RMSNorm of the input as part of the product; `out` (rows, k) receives the normalised input. */
export interface DownNorm extends InputNorm {
  out: GpuBuffer
}

/**
 * Up to this rank, and for few rows, LoRA's first products normalise their input themselves. On CPU drivers each 8 of the rank repeat the norm, on
 * GPUs each 4; and for many rows a separate norm is faster, as it has as many workgroups.
 */
const normRank = (gpu: Gpu): number => (gpu.facts.software ? 16 : 32)
const normRows = 64

/** Whether `loraDown`, or on GPUs `groupDown`, takes a norm of products that it takes: if a dispatch costs more than repeating the norm. */
export function takesDownNorm(gpu: Gpu, rows: Count, rank: number): boolean {
  return rank <= normRank(gpu) && capacityOf(rows) <= normRows
}

/** The most projections that one dispatch takes. */
const maxGroup = 3

/** Whether `loraDown` takes these: on CPU drivers, if all A lie in one bank. Elsewhere each is a separate matmul. */
export function takesLoraDown(gpu: Gpu, k: number, projections: BufferRange[]): boolean {
  const [{ buffer }] = projections
  return takesCpu(gpu, k) && projections.length <= maxGroup && projections.every((a) => a.buffer === buffer)
}

/**
 * out = scale * x Aᵀ for each projection, with the bits of `linear`. x (rows, k); rank a multiple of 8.
 * @param options.stacked each row gets the product with its own adapter's part of A, times that adapter's scale, and 0 for the others
 * @param options.norm of x, if `takesDownNorm`; not with `stacked`, whose workgroups may do nothing
 */
export function loraDown(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  k: number,
  rank: number,
  projections: LoraDown[],
  { stacked, norm }: { stacked?: StackedRows; norm?: DownNorm } = {},
): void {
  // High tiles, so that the matrices are loaded once for many rows, but two of them: one thread of the driver would take twice as long, and cores
  // that are kept awake (src/gpu/awake.ts) are not too late for the other half.
  const { WIDE, LANES } = cpuLanes(gpu)
  const MT = (WIDE ? [8, 16] : [4, 8, 16]).find((height) => capacityOf(rows) <= 2 * height) ?? 32
  const params: Record<string, Count> = { rows, k, rank, eps: norm?.eps ?? 0, own: stacked?.own ?? 0, width: stacked?.width ?? 0 }
  for (let g = 0; g < maxGroup; g++) {
    params[`a_${g}`] = (projections[g]?.a.offset ?? 0) / 4
    params[`scale_${g}`] = projections[g]?.scale ?? 0
    params[`scales_${g}`] = g * (stacked?.perProjection ?? 0)
  }
  const outs = projections.map(({ out }) => out)
  const bindings: Binding[] = [x, projections[0].a.buffer, ...outs]
  if (stacked) bindings.push(stacked.places, stacked.scales)
  if (norm) bindings.push(x, norm.gain, norm.out)
  const flags = { STACKED: Number(!!stacked), NORM: Number(!!norm), SUBGROUP: 1 }
  const kernel = gpu.kernel(paths.down, { LANES, WIDE, GROUP: projections.length, MT, ...flags })
  gpu.dispatch(kernel, bindings, params, [groupsOf(rows, MT), rank / 8])
}

/**
 * `loraDown` for stacked adapters, on any adapter of the machine: one dispatch if it takes these projections, on GPUs one each, otherwise a matmul
 * and a pass over its rows for each.
 * @param half receives x in f16, (rows, k), if `takesThin`
 */
export function stackedDown(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  k: number,
  rank: number,
  projections: { a: BufferRange; out: GpuBuffer }[],
  stacked: StackedRows,
  half?: GpuBuffer,
): void {
  const matrices = projections.map(({ a }) => a)
  if (takesLoraDown(gpu, k, matrices)) {
    const scaled = projections.map((projection) => ({ ...projection, scale: 1 }))
    return loraDown(gpu, x, rows, k, rank, scaled, { stacked })
  }
  const { places, scales, own, width, perProjection } = stacked
  if (takesThin(gpu, k)) {
    projections.forEach(({ a, out }, g) => {
      const shape = { k, rank, parts: [{ at: 0, scale: 1 }] }
      const more = { stacked: { ...stacked, first: g * perProjection }, half: g === 0 ? half : undefined }
      thinForward(gpu, x, rows, shape, a, { xa: out }, more)
    })
    return
  }
  projections.forEach(({ a, out }, g) => {
    linear(gpu, x, rows, weightView('lora_A', a, rank, k), out)
    const params = { rows, rank, own, width, scales: g * perProjection }
    dispatchFlat(gpu, paths.select, {}, [out, places, scales], params, times(rows, rank))
  })
}

/** Columns of a float32 matrix: where its rows lie, how far apart they are, and from which column on. */
export interface Columns {
  data: GpuBuffer | BufferRange
  stride: number
  column: number
}

/**
 * Writes `width` columns of `to`: the first `count` from `from`, the rest 0.
 * @param from, to in different buffers
 */
export function setColumns(gpu: Gpu, from: Columns, count: number, to: Columns, rows: number, width: number): void {
  const params = { rows, x_stride: from.stride, start: from.column, count, y_stride: to.stride, to: to.column, width }
  dispatchFlat(gpu, paths.columns, {}, [from.data, to.data], params, rows * width)
}
