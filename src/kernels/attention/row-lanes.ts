/** Attention on CPU drivers with a row, or a key, in each lane (row_lanes.wgsl). */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import type { HeadShape } from './attention.ts'
import { workgroups } from './tile.ts'

const file = (name: string) => fileURLToPath(new URL(name, import.meta.url))
const paths = { forward: file('row_lanes.wgsl'), q: file('row_lanes_q.wgsl'), kv: file('key_lanes_kv.wgsl') }

/** Constants of a head shape, of a driver with subgroups of LANES and keys in textures. */
type Shared = Constants & { LANES: number; DE: number }
/**
 * Heads of a kv head that a workgroup takes together: what is broadcast of a key serves them all, but their vectors (q, o and two of sums of a split) have to stay
 * in the first cache.
 */
const headsOf = ({ heads, kvHeads }: HeadShape, DE: number): number =>
  [4, 3, 2].find((n) => (heads / kvHeads) % n === 0 && n * DE <= 64) ?? 1

/**
 * Runs the kernel of a part of attention for rows whose neighbours have the same keys, mostly.
 * @param part forward, backward to q, or to k and v
 * @param bindings q, k, v, then info, o, lse, and the pages of a cache; info, dO, soft, dq; ends of keys, dO, soft, dk, dv
 */
export function runInLanes(
  gpu: Gpu,
  part: keyof typeof paths,
  constants: Shared,
  bindings: Binding[],
  params: Record<string, Count> & { rows: Count },
  shape: HeadShape,
): void {
  const { LANES, DE } = constants
  const [HG, KB] = [headsOf(shape, DE), DE <= 32 ? 2 : 1]
  const [own, each, heads] =
    part === 'kv' ? [{ KB, TU: 2 }, KB * LANES, shape.kvHeads] : [{ HG, KU: part === 'forward' ? 2 : 1 }, LANES, shape.heads / HG]
  const { SPREAD, groups } = workgroups(gpu, params.rows, each, heads)
  gpu.dispatch(gpu.kernel(paths[part], { ...constants, ...own, SPREAD }), bindings, params, groups)
}
