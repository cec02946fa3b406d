/** Attention on CPU drivers with a row, or a key, in each lane (row_lanes.wgsl). */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import type { HeadShape } from './attention.ts'

const file = (name: string) => fileURLToPath(new URL(name, import.meta.url))
const paths = { forward: file('row_lanes.wgsl'), q: file('row_lanes_q.wgsl'), kv: file('key_lanes_kv.wgsl') }

/** Constants of a head shape, of a driver with subgroups of LANES and keys in textures. */
type Shared = Constants & { LANES: number; DE: number }
type Params = Record<string, Count>
/** How many workgroups there are of `each` rows and one of `heads`, dealt out to the driver's threads. */
export type Deal = (each: number, heads: number) => { SPREAD: number; groups: [Count, number, Count] }

/**
 * Heads of a kv head that a workgroup takes together: what is broadcast of a key serves them all, but their vectors (q, o and two of sums of a split) have to stay
 * in the first cache.
 */
const headsOf = ({ heads, kvHeads }: HeadShape, DE: number): number =>
  [4, 3, 2].find((n) => (heads / kvHeads) % n === 0 && n * DE <= 64) ?? 1

/** Forward of rows whose neighbours have the same keys, mostly. @param bindings q, k, v, info, o, lse, and the pages of a cache */
export function forwardByRows(
  gpu: Gpu,
  constants: Shared,
  bindings: Binding[],
  params: Params,
  shape: HeadShape,
  deal: Deal,
): void {
  const HG = headsOf(shape, constants.DE)
  const { SPREAD, groups } = deal(constants.LANES, shape.heads / HG)
  gpu.dispatch(gpu.kernel(paths.forward, { ...constants, HG, SPREAD, KU: 2 }), bindings, params, groups)
}

/** Backward to q. @param bindings q, k, v, info, dO, soft, dq */
export function backwardByRows(
  gpu: Gpu,
  constants: Shared,
  bindings: Binding[],
  params: Params,
  shape: HeadShape,
  deal: Deal,
): void {
  const HG = headsOf(shape, constants.DE)
  const { SPREAD, groups } = deal(constants.LANES, shape.heads / HG)
  gpu.dispatch(gpu.kernel(paths.q, { ...constants, HG, SPREAD, KU: 1 }), bindings, params, groups)
}

/** Backward to k and v. @param bindings q, k, v, ends of keys, dO, soft, dk, dv */
export function backwardByKeys(
  gpu: Gpu,
  constants: Shared,
  bindings: Binding[],
  params: Params,
  shape: HeadShape,
  deal: Deal,
): void {
  const KB = constants.DE <= 32 ? 2 : 1
  const { HG: _, ...shared } = constants
  const { SPREAD, groups } = deal(KB * constants.LANES, shape.kvHeads)
  gpu.dispatch(gpu.kernel(paths.kv, { ...shared, SPREAD, KB, TU: 2 }), bindings, params, groups)
}
