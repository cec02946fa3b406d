/**
 * Attention's backward pass on matrix units, f16 x f16 -> float32, if a run asks for them (`useMatrixUnits`). The forward pass stays in float32, so
 * that a token gets the same bits in training as in sampling; its statistics (lse, delta) are float32 too.
 */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { groupsOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { hasWideSubgroups } from '../common/lanes.ts'
import { gradientScaleOf, matrixUnitOf } from '../common/matrix-units.ts'
import { inHalf } from '../matmul/units.ts'
import type { BackwardBuffers, HeadShape } from './attention.ts'
import { grid, scaleOf } from './tile.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { q: file('units_backward_q.wgsl'), kv: file('units_backward_kv.wgsl') }
type Kind = keyof typeof paths

/** The part of a kernel's shape that changes only the time, except KT, which also divides the sums over queries and keys. */
export interface UnitShape {
  /** Rows of a tile, and columns of an iteration. */
  RT: number
  KT: number
  /** Whether a subgroup keeps its rows' fragments of both left operands in registers; otherwise it loads them again in each iteration. */
  HOLD: number
}

/** Devices whose results did not agree with float32 (units-check.ts). */
const mistrusted = new WeakSet<Gpu>()
/** Sets whether attention runs, from now on, on the matrix units that products run on. */
export function trustUnits(gpu: Gpu, on: boolean): void {
  if (on) mistrusted.delete(gpu)
  else mistrusted.add(gpu)
}

/**
 * Widest head whose fragments are kept in registers (HOLD). 128 channels take 64 registers if a subgroup has 16 rows and 32 lanes, and the sums of dk
 * and dv take as many again.
 */
const mostHeld = 128

/** Shapes, the best first: the first one is taken for which the adapter has enough workgroup memory and threads. */
function shapesOf(gpu: Gpu, headDim: number): UnitShape[] {
  // On a software driver's matrix units, whose products are thousands of instructions each, a subgroup has one fragment of the scores, as on GPUs.
  if (!hasWideSubgroups(gpu)) return [{ RT: 32, KT: 16, HOLD: 0 }]
  const HOLD = Number(headDim <= mostHeld)
  return [32, 16].flatMap((KT) => [64, 32].map((RT) => ({ RT, KT, HOLD })))
}

/**
 * Constants of a kernel (units_tiles.wgsl). Undefined if products do not run on matrix units, or if the matrix units or the adapter's workgroup
 * memory do not take these heads.
 * @param chosen a shape to use instead of those that are tried
 */
export function unitsOf(
  gpu: Gpu,
  kind: Kind,
  { heads, kvHeads, headDim: D, window = 0 }: HeadShape,
  chosen?: UnitShape,
): Constants | undefined {
  const unit = matrixUnitOf(gpu)
  if (!unit || mistrusted.has(gpu)) return undefined
  const { m: FM, n: FN, k: FK } = unit
  const { limits, subgroupSize: LANES } = gpu.facts
  if (D % 8 !== 0 || D % FN !== 0 || D % FK !== 0 || (FM * FN) % (4 * LANES) !== 0) return undefined
  const SUMS = kind === 'kv' ? 2 : 1
  for (const { RT, KT, HOLD } of chosen ? [chosen] : shapesOf(gpu, D)) {
    const SM = Math.min(4, RT / FM)
    const SN = D % (2 * FN) === 0 && KT % (2 * FN) === 0 ? 2 : 1
    const THREADS = SM * SN * LANES
    const bytes = 2 * 2 * KT * (D + 8) + 4 * 2 * RT * KT + 2 * SUMS * RT * (KT + 8) + 4 * RT + 64
    if (KT % FN !== 0 || KT % FK !== 0 || THREADS > limits.maxInvocations || bytes > limits.maxWorkgroupMemory) continue
    const vectors = (KT * D) / 8
    // How many steps of the loops over a head's channels (DEEP) and over the columns of an iteration (STEPS) are unrolled.
    const deep = hasWideSubgroups(gpu) ? [4, 2, 1].find((n) => (D / FK) % n === 0)! : 1
    return {
      D,
      FM,
      FN,
      FK,
      RT,
      KT,
      SM,
      SN,
      LANES,
      THREADS,
      SUMS,
      HOLD,
      HEADS: heads,
      KV_HEADS: kvHeads,
      GROUP: heads / kvHeads,
      LEFT_HEADS: kind === 'kv' ? kvHeads : heads,
      WINDOW: window,
      VEC4: 1,
      RB: RT,
      LOADS: Math.ceil(vectors / THREADS),
      LOAD_REST: Number(vectors % THREADS !== 0),
      DEEP: HOLD ? D / FK : deep,
      STEPS: hasWideSubgroups(gpu) ? KT / FK : 1,
    }
  }
  return undefined
}

/**
 * Computes dq, dk and dv of `attentionBackward`.
 * @param constants of both kernels, from `unitsOf`
 */
export function unitsBackward(
  gpu: Gpu,
  t: BackwardBuffers,
  rows: Count,
  shape: HeadShape,
  constants: { q: Constants; kv: Constants },
): void {
  const { heads, kvHeads, headDim } = shape
  // Room for 64 more rows: fragments of the last tile are read whole, whatever lies after the last row.
  const half = (data: GpuBuffer, of: number, scale: Count = 1) =>
    inHalf(gpu, { data, depth: of * headDim, stride: of * headDim, column: 0, scale }, rows, 8, 64)
  const gradient_scale = gradientScaleOf(gpu)
  const [q, k, v, dO] = [half(t.q, heads), half(t.k, kvHeads), half(t.v, kvHeads), half(t.dO, heads, gradient_scale)]
  const params = { rows, scale: scaleOf(shape), gradient_scale }
  const run = (kind: Kind, bindings: GpuBuffer[], across: number): void => {
    const groups = grid(groupsOf(rows, constants[kind].RT), across)
    gpu.dispatch(gpu.kernel(paths[kind], constants[kind]), bindings, params, groups)
  }
  run('q', [q.x, dO.x, k.x, t.info, v.x, t.soft, t.dq], heads)
  run('kv', [k.x, v.x, q.x, t.ends, dO.x, t.soft, t.dk, t.dv], kvHeads)
  for (const { release } of [q, k, v, dO]) release()
}
