/** Groups of projections on CPU drivers: group_cpu.wgsl with weights that lie in one texture. */
import { fileURLToPath } from 'node:url'
import { rangeOf, type Binding, type Gpu } from '../../gpu/gpu.ts'
import { capacityOf, groupsOf, map, within, type Count } from '../../gpu/size.ts'
import { kvConstants } from '../common/kv-texture.ts'
import { cpuLanes, heldOf } from '../common/lanes.ts'
import { weightConstants, weightParams } from '../common/weight.ts'
import { cachedBytes, forwardTile, stagingColumns, vectorsOf } from './cpu.ts'
import type { GroupCall } from './group.ts'
import { canStage, stage, stageRows, type Rows } from './stage.ts'

const path = fileURLToPath(new URL('group_cpu.wgsl', import.meta.url))

/**
 * Runs a group of three members, or a gated group of two, which has one output, or three if gate and up are kept. The xa of each member has its own
 * buffer.
 */
export function run(gpu: Gpu, { x, rows, members, ys, lora, rotary, gate }: GroupCall): void {
  const [{ weight, bias, b }] = members
  const [slice] = weight.slices
  const { LANES, WIDE } = cpuLanes(gpu)
  const k = weight.columns
  const widths = members.map((m) => m.weight.rows)
  const columns = widths.reduce((sum, n) => sum + n, 0)
  const GATED = Number(members.length === 2)
  const many = capacityOf(rows)
  // The kernel for one or two rows does not check how many there are.
  const FEW = Number(many <= 2 && typeof rows === 'number')
  // A workgroup of a gated group has the same number of columns of both members.
  const inTextures = GATED ? {} : kvConstants(ys[1])
  // With caches in textures, a lane or two neighbouring lanes must have whole texels of both halves of a head.
  const fewest = 'KV_FOLD' in inTextures ? 4 : 32 / LANES
  // A multiple of four columns per lane, so that stores are vec4. Not on AMD's CPUs, which gain more from the width that fits best, unless
  // multiply-adds are not fused and there are both a gate and LoRA, whose work per tile takes away that gain.
  const asFits = gpu.facts.cpu !== 'other' && (gpu.facts.fused || !GATED || !lora)
  const inFours = 'KV_FOLD' in inTextures || (!asFits && (!!GATED || !!rotary))
  const found = FEW ? { MT: many, NT: fewest } : forwardTile(gpu, many, GATED ? columns : widths, inFours)
  const { MT, ...tile } = 'KV_FOLD' in inTextures && found.NT % 4 !== 0 ? { MT: Math.min(found.MT, 16), NT: 8 } : found
  // At least one column of each member.
  const NT = GATED ? Math.max(2, tile.NT) : tile.NT
  const SPAN = GATED ? NT / 2 : NT
  const groups = GATED ? [Math.ceil(widths[0] / (LANES * SPAN))] : widths.map((n) => Math.ceil(n / (LANES * SPAN)))
  const params: Record<string, Count> = { k, rank: lora?.rank ?? 0, per_row: rotary?.perRow ?? 0, ...weightParams(weight, slice) }
  for (let s = 0; s < 3; s++) {
    const member = members[s] ?? members[0]
    params[`n_${s}`] = member.weight.rows
    params[`b_${s}`] = (member.b?.offset ?? 0) / 16
    params[`c_${s}`] = member.bias ? rangeOf(member.bias).offset / 4 : 0
  }
  const ROWS_FIRST = Number(columns * k * 2 > cachedBytes)
  const source: Rows = { data: x, rows, columns: k }
  const X_TEX = Number(many > 4 && columns >= stagingColumns && canStage(gpu, source))
  const flags = {
    GATED,
    KEEP: Number(members.length === 2 && ys.length > 1),
    GELU: Number(gate === 'gelu'),
    FEW,
    X_TEX,
    ROWS_FIRST,
    LORA: Number(!!lora),
    BIAS: Number(!!bias),
    ROPE: Number(!!rotary),
  }
  const vectors = rotary ? vectorsOf(NT / 2) : vectorsOf(SPAN, ...widths)
  const half = rotary && { HALF: rotary.headDim / 2, ...inTextures }
  const kernel = gpu.kernel(path, {
    LANES,
    WIDE,
    MT,
    NT,
    SPAN,
    ...heldOf(gpu, MT, NT),
    ...half,
    ...flags,
    ...vectors,
    ...weightConstants(weight, slice, 1),
  })
  const extra: Binding[] = [...ys, ...(lora ? [b!.buffer, ...lora.xa] : []), ...(bias ? [rangeOf(bias).buffer] : [])]
  if (rotary) extra.push(rotary.places, rotary.table)
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
