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
  /** Matrix units. */
  units: Tile
}
export interface Tile {
  rows: number
  columns: number
}
export type TileName = keyof Tiles

/**
 * The heuristic. On CPU drivers the loops of these have 1024 multiply-adds of vectors: those of 1536 (32 x 48, 24 x 64) are some 3% faster on a processor
 * with Intel's front end and a quarter slower on AMD's Zen 5, whose cache of decoded instructions they outgrow (bench/LOG.md).
 */
export const defaultTiles: Tiles = {
  ntCpu: { rows: 16, columns: 64 },
  nnCpu: { rows: 32, columns: 64 },
  tile: { rows: 128, columns: 128 },
  units: { rows: 128, columns: 128 },
}
/** With subgroups of 16 the same loops make twice as many outputs. */
const wideTiles: Tiles = { ...defaultTiles, ntCpu: { rows: 32, columns: 64 }, nnCpu: { rows: 32, columns: 128 } }
/** The heuristic of a device. */
export const usualTiles = (gpu: Gpu): Tiles => (cpuLanes(gpu).WIDE ? wideTiles : defaultTiles)

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
  units: [
    { rows: 64, columns: 64 },
    { rows: 128, columns: 64 },
    { rows: 128, columns: 128 },
    { rows: 128, columns: 256 },
  ],
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
  const [own, usual] = [tilesOf(gpu)[name], usualTiles(gpu)[name]]
  return !takesAlways(gpu) && own.rows === usual.rows && own.columns === usual.columns
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
    const known = candidatesOf(gpu, name).find((t) => t.rows === tiles[name]?.rows && t.columns === tiles[name]?.columns)
    if (known) own[name] = known
  }
  chosen.set(gpu, own)
  if (options.always) always.add(gpu)
  else always.delete(gpu)
}
