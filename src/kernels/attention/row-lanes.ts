/** Attention on CPU drivers with one row, or one key, per lane (row_lanes.wgsl). */
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import type { Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import type { HeadShape } from './attention.ts'
import { workgroups } from './tile.ts'

const file = (name: string) => fileURLToPath(new URL(name, import.meta.url))
const paths = { forward: file('row_lanes.wgsl'), q: file('row_lanes_q.wgsl'), kv: file('key_lanes_kv.wgsl') }

/** Constants of a head shape, for a driver with subgroups of LANES and keys in textures. */
type Shared = Constants & { LANES: number; DE: number }

/**
 * What a workgroup and an iteration take: HG heads and KU keys, or KB blocks of keys and TU queries. HELD and GUARDED: see held_cpu.wgsl and
 * apart_cpu.wgsl.
 */
type LanesTile = ({ HG: number; KU: number } | { KB: number; TU: number }) & { HELD: number; GUARDED: number }

/**
 * The tile of a kernel, as large as the first-level cache allows; all give the same bits. All heads or blocks of a workgroup share each broadcast. In
 * the backward pass, the vectors that every iteration goes through must stay in the first-level cache: q, dO and dq of each head, or k, v, dk and dv
 * of each block. (The forward pass goes through q in one loop and o in another, and loses nothing.) With two keys or queries per iteration,
 * accumulators are stored half as often, as long as the unrolled code, some 1 KB for each of their vectors, fits the instruction cache.
 * @param firstCache size of the first-level cache in bytes
 */
function lanesTileOf(
  part: keyof typeof paths,
  { LANES, DE }: Pick<Shared, 'LANES' | 'DE'>,
  { heads, kvHeads }: Pick<HeadShape, 'heads' | 'kvHeads'>,
  firstCache: number,
): LanesTile {
  const apart = { HELD: 0, GUARDED: 0 }
  const fits = (vectors: number) => vectors * DE * LANES * 16 < firstCache
  if (part === 'kv') {
    const KB = DE <= 32 && fits(2 * 4) ? 2 : 1
    return { KB, TU: KB === 2 || DE <= 16 ? 2 : 1, ...apart }
  }
  const forward = part === 'forward'
  const HG = [4, 3, 2].find((n) => (heads / kvHeads) % n === 0 && n * DE <= 64 && (forward || fits(n * 3))) ?? 1
  return { HG, KU: forward || (HG === 1 && DE <= 16) ? 2 : 1, ...apart }
}

/**
 * The tile of a kernel if the broadcast operand lies on the stack (HELD). Broadcasts are then free, an accumulator is loaded and stored once for all
 * keys of an iteration, and heads go one after the other. So an iteration takes up to half a tile's keys, and a workgroup, whose heads share its
 * loads, takes as many heads as are worth their code: compiling takes some 10 ms for each key and vector of a head (bench/LOG.md, "Attention's
 * operands on the stack").
 */
function heldTileOf(
  part: keyof typeof paths,
  { LANES, DE }: Pick<Shared, 'LANES' | 'DE'>,
  { heads, kvHeads }: Pick<HeadShape, 'heads' | 'kvHeads'>,
): LanesTile {
  const held = { HELD: 1, GUARDED: 1 }
  const [ofOne, ofAll] = part === 'forward' ? [256, 384] : [128, 128]
  const KU = [8, 4, 2].find((n) => n <= LANES / 2 && n * DE <= ofOne) ?? 1
  if (part === 'kv') return { KB: 2 * KU * DE <= ofAll ? 2 : 1, TU: KU, ...held }
  return { HG: [4, 3, 2].find((n) => (heads / kvHeads) % n === 0 && n * KU * DE <= ofAll) ?? 1, KU, ...held }
}

/**
 * Runs one of these kernels, for rows whose neighbours mostly see the same keys.
 * @param part forward, or backward to q or to k and v
 * @param constants SHARED: forward over `rows` blocks of rows and heads that have keys in common (shared.ts)
 * @param bindings q, k, v, then: forward: info, o, lse, and the pages of a cache; SHARED: blocks, state, pages; backward to q: info, dO, soft, dq; to
 * k and v: ends of keys, dO, soft, dk, dv
 */
export function runInLanes(
  gpu: Gpu,
  part: keyof typeof paths,
  constants: Shared,
  bindings: Binding[],
  params: Record<string, Count> & { rows: Count },
  shape: HeadShape,
): void {
  const { LANES } = constants
  const { broadcasts, firstCache } = gpu.facts
  // With 8 lanes and more than 32 values per head it would be slower (Mesa 26) or no faster.
  const held = broadcasts && (LANES === 16 || constants.DE <= 8)
  const { heads, kvHeads } = constants.SHARED ? { ...shape, heads: shape.kvHeads } : shape
  const tile = held
    ? heldTileOf(part, constants, { heads, kvHeads })
    : lanesTileOf(part, constants, { heads, kvHeads }, firstCache)
  const rowsEach = constants.SHARED ? 1 : LANES
  const [each, across] = 'KB' in tile ? [tile.KB * LANES, kvHeads] : [rowsEach, heads / tile.HG]
  const { SPREAD, groups } = workgroups(gpu, params.rows, each, across)
  gpu.dispatch(gpu.kernel(paths[part], { ...constants, ...tile, SPREAD }), bindings, params, groups)
}
