/** Groups of projections on matrix units. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import { groupsOf } from '../../gpu/size.ts'
import { matrixUnitOf } from '../common/matrix-units.ts'
import type { Weight } from '../common/weight.ts'
import { acrossOf, bindingsOf, placesOf, variantOf } from './group-tile.ts'
import type { GroupCall } from './group.ts'
import { inHalf, shapeFor, takesUnits } from './units.ts'

const path = fileURLToPath(new URL('group_units.wgsl', import.meta.url))

/** Whether a member's own matmul would run on matrix units. */
export function takesUnitsGroup(gpu: Gpu, weight: Weight): boolean {
  const [slice] = weight.slices
  const whole = { slice, row: 0, rows: weight.rows, column: 0, width: weight.rows }
  return takesUnits(gpu, weight, whole, weight.columns, 0)
}

/** Whether fragments are so narrow that each subgroup's columns are divided between gate and up, or between the halves of heads. */
export const halves = (gpu: Gpu): boolean => matrixUnitOf(gpu)!.n <= 16

/** Runs a group. */
export function run(gpu: Gpu, call: GroupCall): void {
  const { rows, members } = call
  const [{ weight }] = members
  const k = weight.columns
  const columns = members.reduce((sum, { weight: { rows: n } }) => sum + n, 0)
  const paired = call.ys.length === 1 || !!call.rotary
  const shape = shapeFor(gpu, rows, columns, paired)
  const { TM, TN, SN, THREADS } = shape
  const LOW4 = Number(members.every(({ b }) => !b || b.offset % 16 === 0))
  const activations = { data: call.x, depth: k, stride: k, column: 0, scale: 1, half: call.half }
  const { x, stride, release } = inHalf(gpu, activations, rows, shape.KT)
  const kernel = gpu.kernel(path, {
    ...shape,
    PART: TN / SN,
    FORM_NT: 1,
    LOW4,
    ...variantOf(gpu, call, TM, THREADS),
    ...(call.narrow && { Y_F16: 1 }),
  })
  gpu.dispatch(kernel, bindingsOf(x, call), { rows, k, a_stride: stride, ...placesOf(call) }, [
    acrossOf(call, TN),
    groupsOf(rows, TM),
  ])
  release()
}
