/**
 * Projections of one input in one dispatch, for CPU drivers: q, k and v, and gate and up with the product that follows them. Each output has the bits of
 * its own `linear` (group_cpu.wgsl). Elsewhere each is a matmul of its own.
 */
import { fileURLToPath } from 'node:url'
import { rangeOf, type Binding, type BufferRange, type Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { capacityOf, groupsOf, map, within, type Count } from '../../gpu/size.ts'
import { weightConstants, weightParams, type Weight } from '../common/weight.ts'
import { cachedBytes, forwardTile, stagingColumns, takesCpu } from './cpu.ts'
import { canStage, stage, stageRows, type Rows } from './stage.ts'

const path = fileURLToPath(new URL('group_cpu.wgsl', import.meta.url))

/** One projection of a group: a weight of `allocateTogether`, with the bias and B (N, rank) of an adapter where it has them. */
export interface GroupMember {
  weight: Weight
  bias?: GpuBuffer | BufferRange
  b?: BufferRange
}

/** Whether one dispatch can do these: their weights lie in one texture, their biases in one buffer, their B in one bank. */
export function takesGroup(gpu: Gpu, members: GroupMember[]): boolean {
  const [{ weight, bias, b }] = members
  const [slice] = weight.slices
  let at = 0
  const follows = ({ weight: { rows, slices } }: GroupMember): boolean => {
    at += rows
    return slices[0].row === rows - at
  }
  return (
    takesCpu(gpu, weight.columns) &&
    slice.texture &&
    members.every((m) => m.weight.slices[0].storage === slice.storage && follows(m)) &&
    members.every((m) => (m.bias && rangeOf(m.bias).buffer) === (bias && rangeOf(bias).buffer)) &&
    members.every((m) => m.b?.buffer === b?.buffer)
  )
}

/**
 * y_s = x W_sᵀ + xa_s B_sᵀ + bias_s for three members.
 * @param x (rows, K) @param ys (rows, N_s) each @param lora xa_s (rows, rank) each, scaled; where the members have B
 */
export function linearGroup(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  members: GroupMember[],
  ys: GpuBuffer[],
  lora?: { xa: GpuBuffer[]; rank: number },
): void {
  run(gpu, x, rows, members, ys, lora)
}

/** y = silu(g) * u, where g and u are x W_sᵀ + xa_s B_sᵀ + bias_s of two members of one width. Parameters as of `linearGroup`. */
export function linearGated(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  members: GroupMember[],
  y: GpuBuffer,
  lora?: { xa: GpuBuffer[]; rank: number },
): void {
  run(gpu, x, rows, members, [y], lora)
}

function run(
  gpu: Gpu,
  x: GpuBuffer,
  rows: Count,
  members: GroupMember[],
  ys: GpuBuffer[],
  lora: { xa: GpuBuffer[]; rank: number } | undefined,
): void {
  const [{ weight, bias, b }] = members
  const [slice] = weight.slices
  const k = weight.columns
  const widths = members.map((m) => m.weight.rows)
  const columns = widths.reduce((sum, n) => sum + n, 0)
  const GATED = Number(ys.length === 1)
  const many = capacityOf(rows)
  // This one has no bound on its rows.
  const FEW = Number(many <= 2 && typeof rows === 'number')
  // A gate's workgroup has as many columns of both members.
  const { MT, NT } = FEW ? { MT: many, NT: 4 } : forwardTile(gpu, many, columns)
  const SPAN = GATED ? NT / 2 : NT
  const groups = GATED ? [Math.ceil(widths[0] / (8 * SPAN))] : widths.map((n) => Math.ceil(n / (8 * SPAN)))
  const params: Record<string, Count> = { k, rank: lora?.rank ?? 0, ...weightParams(weight, slice) }
  for (let s = 0; s < 3; s++) {
    const member = members[s] ?? members[0]
    params[`n_${s}`] = member.weight.rows
    params[`b_${s}`] = (member.b?.offset ?? 0) / 16
    params[`c_${s}`] = member.bias ? rangeOf(member.bias).offset / 4 : 0
  }
  const ROWS_FIRST = Number(many > MT && columns * k * 2 > cachedBytes)
  const source: Rows = { data: x, rows, columns: k }
  const X_TEX = Number(many > 4 && columns >= stagingColumns && canStage(gpu, source))
  const flags = { GATED, FEW, X_TEX, ROWS_FIRST, LORA: Number(!!lora), BIAS: Number(!!bias) }
  const kernel = gpu.kernel(path, { MT, NT, SPAN, ...flags, ...weightConstants(weight, slice, 1) })
  const extra: Binding[] = [...ys, ...(lora ? [b!.buffer, ...lora.xa] : []), ...(bias ? [rangeOf(bias).buffer] : [])]
  const most = X_TEX ? stageRows(gpu, k) : many
  const across = groups.reduce((sum, n) => sum + n, 0)
  for (let row0 = 0; row0 < many; row0 += most) {
    const count = within(rows, row0, most)
    const down = groupsOf(count, MT)
    const from = X_TEX ? stage(gpu, source, row0, count, 'x') : x
    const bindings = [from, slice.storage, ...extra]
    gpu.dispatch(
      kernel,
      bindings,
      { ...params, row0, rows: map(count, (n) => row0 + n) },
      ROWS_FIRST ? [down, across] : [across, down],
    )
  }
}
