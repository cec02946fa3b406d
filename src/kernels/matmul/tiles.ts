/**
 * Tile sizes of the matmul kernels: what `tune` chooses among. Tiles over rows and columns change no bit of a result, since every output is summed
 * in one order whatever its tile; so a table may come from another run, and be wrong, and only speed is lost.
 */
import type { Gpu } from '../../gpu/gpu.ts'
import { cpuLanes } from '../common/lanes.ts'
import { readTuned } from './tuned.ts'

/** Rows x columns of outputs that one workgroup owns, for many rows (32 and more). Fewer rows, and fewer outputs on GPUs, take smaller tiles by rule. */
export interface Tiles {
  /** Forward on a CPU driver: `rows` a multiple of 4, `columns` of 8, and of 32 with subgroups of 16. */
  ntCpu: Tile
  /** Backward to the input there: 8 columns a lane; `rows` a multiple of 8. */
  nnCpu: Tile
  /** The register tile of GPUs, at most (register-tile.ts). */
  tile: Tile
  /** Up to 32 rows on GPUs, forward, with up to 4096 columns and with up to 16,384 (register-tile.ts). */
  few: Tile
  fewWide: Tile
  /** Matrix units. */
  units: Tile
  /** Up to 32 rows and 16,384 columns there. */
  fewUnits: Tile
}
export interface Tile {
  rows: number
  columns: number
  /** Of a register tile with a thread for four rows of one column (few_turns.wgsl): vectors of the depth that it reads before it multiplies them. */
  vectors?: number
  /** Of matrix units: subgroups of their own load (units_loaders.wgsl); or x comes straight from memory, and W so many steps of the depth at once. */
  loaders?: boolean
  straight?: number
}
export type TileName = keyof Tiles

/** A tile in words. */
export function tileText({ rows, columns, vectors, loaders, straight }: Tile): string {
  const how = [vectors && `${vectors} vectors`, loaders && 'loaders', straight && `straight, ${straight}`]
  return [`${rows} x ${columns}`, ...how.filter(Boolean)].join(', ')
}
/** Whether two tiles are one. */
export const sameTile = (a: Tile, b: Tile): boolean => tileText(a) === tileText(b)

/**
 * The heuristic. On CPU drivers the loops of these have 1024 multiply-adds of vectors: those of 1536 (32 x 48, 24 x 64) are some 3% faster on a processor
 * with Intel's front end and a quarter slower on AMD's Zen 5, whose cache of decoded instructions they outgrow (bench/LOG.md).
 */
export const defaultTiles: Tiles = {
  ntCpu: { rows: 16, columns: 64 },
  nnCpu: { rows: 32, columns: 64 },
  tile: { rows: 128, columns: 128 },
  few: { rows: 32, columns: 16, vectors: 2 },
  fewWide: { rows: 32, columns: 32 },
  units: { rows: 128, columns: 128 },
  fewUnits: { rows: 32, columns: 32 },
}
/** With subgroups of 16 the same loops make twice as many outputs. */
const wideTiles: Tiles = { ...defaultTiles, ntCpu: { rows: 32, columns: 64 }, nnCpu: { rows: 32, columns: 128 } }
/** The heuristic of a device. */
export const usualTiles = (gpu: Gpu): Tiles => (cpuLanes(gpu).WIDE ? wideTiles : defaultTiles)

/** Narrow tiles of few rows, with so many vectors at once. */
const narrow = (columns: number, ...vectors: number[]): Tile[] => vectors.map((v) => ({ rows: 32, columns, vectors: v }))
/** Fragments of x straight from memory, W so deep. */
const straight = (columns: number, ...depths: number[]): Tile[] => depths.map((d) => ({ rows: 32, columns, straight: d }))

/** What `tune` tries. */
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
  few: [...narrow(8, 4, 8), ...narrow(16, 2, 4, 8), ...narrow(32, 4, 8)],
  fewWide: [{ rows: 32, columns: 32 }, ...narrow(16, 8), ...narrow(32, 4, 8)],
  units: [
    { rows: 64, columns: 64 },
    { rows: 128, columns: 64 },
    { rows: 128, columns: 128 },
    { rows: 128, columns: 256 },
    { rows: 64, columns: 128, loaders: true },
    { rows: 128, columns: 64, loaders: true },
    { rows: 128, columns: 128, loaders: true },
  ],
  fewUnits: [{ rows: 32, columns: 32 }, ...straight(8, 256, 512), ...straight(16, 128, 256, 512), ...straight(32, 128, 256)],
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

/** The tiles of this device: what `setTiles` gave, else what `tune` kept for the adapter, else the heuristic. */
export function tilesOf(gpu: Gpu): Tiles {
  let own = chosen.get(gpu)
  if (!own) {
    setTiles(gpu, readTuned(gpu) ?? {})
    own = chosen.get(gpu)!
  }
  return own
}

/** Whether products of a kind take the heuristic's tile: none that was tuned or set. */
export function isUsual(gpu: Gpu, name: TileName): boolean {
  return !takesAlways(gpu) && sameTile(tilesOf(gpu)[name], usualTiles(gpu)[name])
}

/** Whether a product of any size takes the tile of `tilesOf`. */
export const takesAlways = (gpu: Gpu): boolean => always.has(gpu)

/**
 * Sets tiles for this device; what is left out, or is no candidate, stays with the heuristic.
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
