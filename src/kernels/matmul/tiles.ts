/**
 * Tile sizes of the matmul kernels, among which `tune` chooses. Tiles over rows and columns change no bit of a result, since every output is summed
 * in one order whatever its tile. So a table of tiles may come from another run and be wrong: only speed is lost.
 */
import type { Gpu } from '../../gpu/gpu.ts'
import { cpuLanes } from '../common/lanes.ts'
import { readTuned } from './tuned.ts'

/**
 * Rows x columns of outputs that one workgroup owns, for many rows (32 and more). Fewer rows, and on GPUs fewer outputs, take smaller tiles by rule.
 */
export interface Tiles {
  /** Forward on a CPU driver: `rows` a multiple of 4, `columns` of 8, or of 32 with subgroups of 16. */
  ntCpu: Tile
  /** Gradient of the input on a CPU driver: 8 columns per lane; `rows` a multiple of 8. */
  nnCpu: Tile
  /** The largest register tile on GPUs (register-tile.ts). */
  tile: Tile
  /** Forward on GPUs with up to 32 rows: up to 2,048, up to 4,096 and up to 16,384 columns (register-tile.ts). */
  few: Tile
  fewMore: Tile
  fewWide: Tile
  /** Matrix units. */
  units: Tile
  /** Matrix units with up to 32 rows and 16,384 columns. */
  fewUnits: Tile
}
export interface Tile {
  rows: number
  columns: number
  /** Register tiles for few rows only (few_turns.wgsl): vectors along K that a thread reads before it multiplies them. */
  vectors?: number
  /** And the outputs of a thread. */
  thread?: { rows: number; columns: number }
  /** Matrix units only: the K-block (default 32), and the outputs of a subgroup (units.ts). */
  depth?: number
  subgroup?: { rows: number; columns: number }
}
export type TileName = keyof Tiles

/** Describes a tile in words. */
export function tileText({ rows, columns, vectors, thread, depth, subgroup }: Tile): string {
  const how = [
    vectors && `${vectors} vectors`,
    thread && `${thread.rows} x ${thread.columns} a thread`,
    depth && `depth ${depth}`,
    subgroup && `${subgroup.rows} x ${subgroup.columns} a subgroup`,
  ]
  return [`${rows} x ${columns}`, ...how.filter(Boolean)].join(', ')
}
/** Whether two tiles are the same. */
export const sameTile = (a: Tile, b: Tile): boolean => tileText(a) === tileText(b)

/**
 * The default tiles. On CPU drivers their loops have 1,024 multiply-adds of vectors. Loops of 1,536 (32 x 48, 24 x 64) are some 3% faster on a
 * processor with Intel's front end, but a quarter slower on AMD's Zen 5, whose cache of decoded instructions they outgrow (bench/LOG.md).
 */
export const defaultTiles: Tiles = {
  ntCpu: { rows: 16, columns: 64 },
  nnCpu: { rows: 32, columns: 64 },
  tile: { rows: 128, columns: 128 },
  few: { rows: 16, columns: 16, vectors: 8, thread: { rows: 2, columns: 1 } },
  fewMore: { rows: 32, columns: 32, vectors: 4, thread: { rows: 4, columns: 2 } },
  fewWide: { rows: 32, columns: 32 },
  units: { rows: 128, columns: 128 },
  fewUnits: { rows: 32, columns: 16, depth: 128 },
}
/** With subgroups of 16, the same loops compute twice as many outputs. */
const wideTiles: Tiles = { ...defaultTiles, ntCpu: { rows: 32, columns: 64 }, nnCpu: { rows: 32, columns: 128 } }
/** The default tiles of a device. */
export const usualTiles = (gpu: Gpu): Tiles => (cpuLanes(gpu).WIDE ? wideTiles : defaultTiles)

/** A register tile for few rows, with `down` x `across` outputs per thread. */
const few = (rows: number, columns: number, vectors: number, down: number, across: number): Tile => ({
  rows,
  columns,
  vectors,
  thread: { rows: down, columns: across },
})
/** Tiles of matrix units with these K-blocks. */
const deep = (rows: number, columns: number, ...depths: number[]): Tile[] => depths.map((depth) => ({ rows, columns, depth }))
/** A tile of matrix units whose subgroups have 64 x 32 outputs, half of 64 x 64. */
const halved = (rows: number, columns: number, more: Partial<Tile> = {}): Tile => ({
  rows,
  columns,
  ...more,
  subgroup: { rows: 64, columns: 32 },
})

/** The candidates that `tune` measures. */
export const tileCandidates: Record<TileName, Tile[]> = {
  ntCpu: [
    { rows: 16, columns: 32 },
    { rows: 16, columns: 48 },
    { rows: 16, columns: 64 },
    { rows: 32, columns: 32 },
    { rows: 32, columns: 48 },
  ],
  nnCpu: [
    { rows: 16, columns: 64 },
    { rows: 24, columns: 64 },
    { rows: 32, columns: 64 },
  ],
  tile: [
    { rows: 32, columns: 64 },
    { rows: 64, columns: 64 },
    { rows: 128, columns: 64 },
    { rows: 128, columns: 128 },
  ],
  few: [
    few(32, 16, 2, 4, 1),
    few(16, 16, 8, 2, 1),
    few(8, 32, 8, 2, 1),
    few(8, 32, 8, 4, 1),
    few(16, 16, 8, 2, 2),
    few(32, 32, 4, 4, 2),
  ],
  fewMore: [few(32, 16, 2, 4, 1), few(32, 32, 4, 4, 2), few(16, 64, 4, 4, 2), few(32, 32, 8, 2, 2), few(16, 16, 8, 2, 2)],
  fewWide: [{ rows: 32, columns: 32 }, few(32, 32, 4, 4, 2), few(32, 32, 8, 4, 2), few(32, 64, 4, 4, 4)],
  units: [
    { rows: 64, columns: 64 },
    { rows: 128, columns: 64 },
    { rows: 128, columns: 128 },
    { rows: 128, columns: 256 },
    { rows: 256, columns: 128 },
    halved(128, 64),
    halved(128, 128),
    { rows: 128, columns: 128, subgroup: { rows: 32, columns: 64 } },
    halved(128, 256),
    halved(128, 128, { depth: 64 }),
  ],
  fewUnits: [...deep(32, 16, 128, 256), ...deep(32, 32, 64, 128, 256)],
}

const wideCandidates: Partial<Record<TileName, Tile[]>> = {
  ntCpu: [
    { rows: 16, columns: 64 },
    { rows: 32, columns: 64 },
    { rows: 16, columns: 128 },
    { rows: 32, columns: 32 },
    { rows: 64, columns: 32 },
  ],
  nnCpu: [
    { rows: 16, columns: 128 },
    { rows: 24, columns: 128 },
    { rows: 32, columns: 128 },
  ],
}
/** The candidates of a device. */
export const candidatesOf = (gpu: Gpu, name: TileName): Tile[] =>
  (cpuLanes(gpu).WIDE && wideCandidates[name]) || tileCandidates[name]

const chosen = new WeakMap<Gpu, Tiles>()
const always = new WeakSet<Gpu>()

/** The tiles of this device: those given to `setTiles`, else those that `tune` stored for the GPU adapter, else the defaults. */
export function tilesOf(gpu: Gpu): Tiles {
  let own = chosen.get(gpu)
  if (!own) {
    setTiles(gpu, readTuned(gpu) ?? {})
    own = chosen.get(gpu)!
  }
  return own
}

/** Whether products of a kind use the default tile, not one that was tuned or set. */
export function isUsual(gpu: Gpu, name: TileName): boolean {
  return !takesAlways(gpu) && sameTile(tilesOf(gpu)[name], usualTiles(gpu)[name])
}

/** Whether products of any size use the tiles of `tilesOf`. */
export const takesAlways = (gpu: Gpu): boolean => always.has(gpu)

/**
 * Sets tiles for this device. A tile that is missing or is not among the candidates stays the default.
 * @param options.always also where few rows or outputs would take a smaller register tile: to measure or test one
 */
export function setTiles(gpu: Gpu, tiles: Partial<Tiles>, options: { always?: boolean } = {}): void {
  const own = { ...usualTiles(gpu) }
  for (const name of Object.keys(own) as TileName[]) {
    const given = tiles[name]
    const known = given && candidatesOf(gpu, name).find((tile) => sameTile(tile, given))
    if (known) own[name] = known
  }
  chosen.set(gpu, own)
  if (options.always) always.add(gpu)
  else always.delete(gpu)
}
