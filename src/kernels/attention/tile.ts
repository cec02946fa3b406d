/**
 * Attention of many neighbouring rows on GPUs: tiles of rows and keys that pass through workgroup memory, with the bits of the kernels that take one
 * row at a time.
 */
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { capacityOf, groupsOf, map, times, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { lanes } from '../common/lanes.ts'
import type { HeadShape } from './attention.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = {
  forward: file('tile_forward.wgsl'),
  q: file('tile_backward_q.wgsl'),
  kv: file('tile_backward_kv.wgsl'),
}
type Kind = keyof typeof paths

/** The factor of the scores. */
export const scaleOf = ({ headDim, scale }: HeadShape): number => scale ?? 1 / Math.sqrt(headDim)

/** `groups` times `y` workgroups, folded where a dimension would exceed its limit. */
export const grid = (groups: Count, y: number): [Count, number, Count] => [
  map(groups, (n) => Math.min(n, 65535)),
  y,
  groupsOf(groups, 65535),
]

/** Number of threads that a software adapter's driver uses by default. */
const threads = availableParallelism()

/** Workgroups that each take `each` rows of one of `heads` heads, and SPREAD, which `place_of` (common.wgsl) needs. */
export function workgroups(
  gpu: Gpu,
  rows: Count,
  each: number,
  heads: number,
): { SPREAD: number; groups: [Count, number, Count] } {
  const SPREAD = gpu.facts.software && threads > 1 ? threads : 0
  const places = groupsOf(rows, each)
  const dealt = groupsOf(times(places, heads), SPREAD || 1)
  return SPREAD && capacityOf(dealt) <= 65535
    ? { SPREAD, groups: [dealt, 1, SPREAD] }
    : { SPREAD: 0, groups: grid(places, heads) }
}

/**
 * Limit of the query heads of one kv head in a tile: with more heads there are fewer rows, and less is masked above the diagonal and at a sequence's
 * end.
 */
const mostHeads = 8

/** The part of a tile's shape that changes the time but no bits. */
interface TileShape {
  /** Rows of the products. */
  RT: number
  /** Keys (for `kv`: queries) of a tile. */
  KT: number
  /** Threads along the keys; each has KT / KX keys of the scores. */
  KX: number
  /** Vectors in a K-block of the scores, which are also those of an iteration of its loop. */
  DEPTH: number
  STEPS: number
  /** Keys whose values are in workgroup memory at a time, which are also those of an iteration of their loop. */
  VK: number
  UNROLL: number
}

/** Shapes, the best first: the first one is taken for which the adapter has enough workgroup memory and threads. */
function shapesOf(kind: Kind, DE: number, LANES: number): TileShape[] {
  // A thread's accumulators, 4 rows x VC vectors of each matrix, take at most 64 registers for heads of width up to 128.
  const sums = (kind === 'kv' ? 2 : 1) * DE
  const most = kind === 'kv' && sums > 64 ? 32 : kind === 'forward' ? (DE <= 32 ? 8 : 16) : sums <= 16 ? 8 : 16
  // In the forward pass a tile has LANES keys, since its weights are added up as in decoding. The other passes go through keys or queries one by one,
  // whatever a tile holds.
  const widths = kind === 'forward' ? [LANES] : most === 16 ? [64, 32] : [32]
  // For dk and dv on an H200, 32 keys and twice the values were faster than 64 and 8 (bench/LOG.md, "On an H200").
  const small = kind === 'kv' && most === 16
  return (small ? [32, 64] : [64, 32]).flatMap((RT) =>
    widths.map((KT) => {
      const KX = Math.min(KT, most)
      const values = ((kind === 'forward' ? 18 : 9) * KT) / DE
      const VK = Math.max(1, Math.min(KT, 2 ** Math.floor(Math.log2(values))))
      return { RT, KT, KX, DEPTH: 8, STEPS: small ? 4 : 2, VK, UNROLL: Math.min(DE > 2 * KX ? 2 : 4, VK) }
    }),
  )
}

/**
 * Constants of a tile kernel; undefined if the adapter or the head shape does not take one.
 * RT: rows of the products, of which RB rows of HG heads are used. KT: keys (for `kv`: queries) of a tile. A thread owns 4 rows and KT / KX keys, or
 * VC vectors of four of a head.
 * `room` in workgroup memory holds left operands, then weights, and from B on right operands. LEFTS, RIGHTS and VALUES: vectors that a thread loads
 * at a time.
 */
export function tileOf(gpu: Gpu, kind: Kind, { heads, kvHeads, headDim, window = 0 }: HeadShape): Constants | undefined {
  const { LANES } = lanes(gpu)
  const { software, limits } = gpu.facts
  if (software || headDim % 4 !== 0 || LANES < 8 || LANES > 64) return undefined
  const GROUP = heads / kvHeads
  const DE = headDim / 4
  const HG = kind === 'kv' ? 1 : Array.from({ length: mostHeads }, (_, i) => mostHeads - i).find((n) => GROUP % n === 0)!
  for (const shape of shapesOf(kind, DE, LANES)) {
    const { RT, KT, KX, DEPTH, VK } = shape
    const THREADS = (RT / 4) * KX
    const B = Math.max((DEPTH + 1) * RT, KT * (RT / 4 + 1))
    const ROOM = B + Math.max((DEPTH + 1) * KT, VK * DE)
    const bytes = 16 * (ROOM + (kind === 'forward' ? 2 * THREADS : 0)) + 1024
    // The segments of a tile's rows are bits of two words.
    if (KT % KX !== 0 || (kind !== 'kv' && RT / HG > 64)) continue
    if (THREADS > limits.maxInvocations || THREADS > 256 || bytes > limits.maxWorkgroupMemory) continue
    const each = KT / KX
    const trees = { KX_16: Number(KX === 16), KEYS_2: Number(each === 2), KEYS_4: Number(each === 4), KEYS_8: Number(each === 8) }
    return {
      DE,
      HEADS: heads,
      KV_HEADS: kvHeads,
      GROUP,
      HG,
      WINDOW: window,
      VEC4: 1,
      ...shape,
      RB: Math.floor(RT / HG),
      VC: Math.ceil(DE / KX),
      THREADS,
      ROOM,
      B,
      SUMS: kind === 'kv' ? 2 : 1,
      SCORES_TWO: Number(kind !== 'forward'),
      PIECES: Math.ceil(DE / DEPTH),
      RAGGED: Number(DE % DEPTH !== 0),
      LEFTS: (RT * DEPTH) / THREADS,
      RIGHTS: Math.ceil((KT * DEPTH) / THREADS),
      RIGHT_REST: Number((KT * DEPTH) % THREADS !== 0),
      VALUES: Math.ceil((VK * DE) / THREADS),
      VALUES_REST: Number((VK * DE) % THREADS !== 0),
      ...(kind === 'forward' ? trees : {}),
    }
  }
  return undefined
}

/** Runs a tile kernel over `rows` rows. @param more further constants of the variant */
export function runTile(
  gpu: Gpu,
  kind: Kind,
  tile: Constants,
  more: Constants,
  bindings: Binding[],
  rows: Count,
  shape: HeadShape,
): void {
  const kernel = gpu.kernel(paths[kind], { ...tile, ...more })
  const across = kind === 'kv' ? shape.kvHeads : shape.heads / tile.HG
  const each = kind === 'kv' ? tile.RT : tile.RB
  // Loop bounds are params, so that the driver does not know them: only the kernels unroll.
  const params = { rows, pieces: tile.PIECES * (1 + tile.SCORES_TWO), depth: tile.DEPTH, scale: scaleOf(shape) }
  gpu.dispatch(kernel, bindings, params, grid(groupsOf(rows, each), across))
}
