/**
 * The register tile of GPUs (tile_turns.wgsl): which tile a product takes, and how its threads share the work. No choice here changes a bit: each
 * output is summed by one thread in the order of the depth.
 */
import type { Gpu } from '../../gpu/gpu.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'
import { hasWideSubgroups } from '../common/lanes.ts'
import { takesAlways, tileCandidates, tilesOf, type Tile } from './tiles.ts'

interface RegisterTile extends Tile {
  /**
   * Outputs of a thread: multiples of 4, except in few_turns.wgsl. A tile has 8 or 16 threads across and 8 or 16 down, as the swizzle of
   * tile_memory.wgsl works on groups of 8 vectors.
   */
  thread: Tile
  /** K-blocks, the best first: what few threads multiply in one must take as long as a load. */
  depths: number[]
  /** Measured throughput relative to the other tiles (bench/LOG.md, "On an H200"). */
  rate: number
}

const registerTiles: RegisterTile[] = [
  { rows: 128, columns: 128, thread: { rows: 8, columns: 8 }, depths: [32, 16], rate: 1 },
  { rows: 128, columns: 64, thread: { rows: 8, columns: 8 }, depths: [32, 16], rate: 0.97 },
  { rows: 64, columns: 64, thread: { rows: 8, columns: 4 }, depths: [32, 16], rate: 0.87 },
  { rows: 32, columns: 64, thread: { rows: 4, columns: 4 }, depths: [64, 32, 16], rate: 0.7 },
]
/**
 * Tiles for few rows. If a GPU has more processors than there are tiles: narrow tiles (few_turns.wgsl). With more columns, reads of workgroup memory
 * are the limit, and a tile with 4 x 4 outputs per thread is used, unless `tune` finds another. `fewColumns`: up to how many columns each of these
 * tiles of tiles.ts is used.
 */
const wideTile: RegisterTile = { rows: 32, columns: 32, thread: { rows: 4, columns: 4 }, depths: [64, 32, 16], rate: 1 }
const fewColumns = { few: 2048, fewMore: 4096, fewWide: 16_384 }
/** Every tile that `tileFor` may give. */
export const everyTile: Tile[] = [
  ...registerTiles,
  wideTile,
  ...tileCandidates.few,
  ...tileCandidates.fewMore,
  ...tileCandidates.fewWide,
]

/** Adds to a tile how its threads share the work. */
function registerTileOf({ rows, columns, vectors, thread }: Tile): RegisterTile {
  if (vectors && thread) return { rows, columns, vectors, thread, depths: [128, 64, 32], rate: 1 }
  return [...registerTiles, wideTile].find((tile) => tile.rows === rows && tile.columns === columns)!
}

/** Bytes of workgroup memory for this many steps of the depth: both operands, and with few rows also the threads' sums. */
function bytesOf({ rows, columns, vectors }: Tile, depth: number): number {
  return vectors ? (depth + 4) * (rows + columns) * 4 + rows * columns * 4 : depth * (rows + columns) * 4
}

/** Whether the GPU adapter's workgroup memory holds the smallest K-block of a tile. */
export const holdsRegisterTile = (gpu: Gpu, tile: Tile): boolean =>
  bytesOf(tile, registerTileOf(tile).depths.at(-1)!) <= gpu.facts.limits.maxWorkgroupMemory

/** Workgroups that run at the same time: about as many as a large GPU has processors. */
const atOnce = 128

/**
 * The tile that should take the least time for this many outputs, and is not larger than the tuned one: few outputs take a small tile, so that the
 * whole GPU has work.
 * @param few whether it may be a tile of few_turns.wgsl: forward products in vec4
 */
export function tileFor(gpu: Gpu, rows: Count, columns: Count, parts: Count = 1, few = false): Tile {
  const most = tilesOf(gpu).tile
  if (takesAlways(gpu)) return most
  const cost = (tile: RegisterTile): number => {
    const groups = Math.ceil(capacityOf(rows) / tile.rows) * Math.ceil(capacityOf(columns) / tile.columns) * capacityOf(parts)
    return (Math.ceil(groups / atOnce) * tile.rows * tile.columns) / tile.rate
  }
  if (few && capacityOf(rows) <= 32) {
    const [n, tiles] = [capacityOf(columns), tilesOf(gpu)]
    if (n <= fewColumns.few) return tiles.few
    if (n <= fewColumns.fewMore) return tiles.fewMore
    if (n <= fewColumns.fewWide) return tiles.fewWide
  }
  const small = registerTiles.filter((tile) => tile.rows <= most.rows && tile.columns <= most.columns)
  return small.reduce((best, tile) => (cost(tile) < cost(best) ? tile : best))
}

/** The constants of a tile's kernels on this GPU adapter. */
export function tileConstants(gpu: Gpu, tile: Tile): Constants {
  const { rows, columns, vectors, thread, depths } = registerTileOf(tile)
  const [RM, RN] = [thread.rows, thread.columns]
  const THREADS = (rows / RM) * (columns / RN)
  // A quarter of the workgroup memory stays free: RMSNorm needs some, and a processor should hold two workgroups.
  const room = gpu.facts.limits.maxWorkgroupMemory * 0.75
  const FEW = Number(vectors !== undefined)
  const KT = depths.find((depth) => bytesOf(tile, depth) <= room) ?? depths.at(-1)!
  if (vectors) {
    // At the end a thread has four columns.
    const shape = { TM: rows, TN: columns, RM: Math.max(1, (RM * RN) / 4), RN: 4, RR: RM, RC: RN, FEW, KT, THREADS }
    const VECTORS = hasWideSubgroups(gpu) ? vectors : Math.min(2, vectors)
    return { ...shape, VECTORS, A_ROUNDS: (rows * KT) / 4 / THREADS, B_ROUNDS: (columns * KT) / 4 / THREADS }
  }
  const shape = { TM: rows, TN: columns, RM, RN, FEW, KT, THREADS }
  // Blocks of 4 x 4 values: rounds of one per thread, and then, for the rest of both operands, at most one per thread.
  const [a, b] = [(rows * KT) / 16, (columns * KT) / 16]
  const [A_REST, B_REST] = [a % THREADS, b % THREADS]
  const blocks = {
    A_ROUNDS: Math.floor(a / THREADS),
    B_ROUNDS: Math.floor(b / THREADS),
    MIXED: Number(A_REST + B_REST > 0),
    A_REST,
    B_REST,
  }
  return { ...shape, ...blocks }
}
