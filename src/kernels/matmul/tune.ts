/** Finds the tile sizes of this GPU adapter: measures every candidate in turn, for several rounds, and takes the best time of each. */
import { availableParallelism } from 'node:os'
import { driverSeconds } from '../../common/cpu-time.ts'
import { Random } from '../../common/random.ts'
import { awakenClock } from '../../gpu/clock.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import { cpuLanes } from '../common/lanes.ts'
import { releaseWeight, uploadWeight, type Weight } from '../common/weight.ts'
import { linear, linearBackwardInput } from './matmul.ts'
import { candidatesOf, sameTile, setTiles, usualTiles, type Tile, type TileName, type Tiles } from './tiles.ts'
import { fittingUnit, useMatrixUnits } from '../common/matrix-units.ts'
import { holdsRegisterTile } from './register-tile.ts'
import { holdsUnitTile } from './units.ts'

export interface TuneRow extends Tile {
  name: TileName
  /** NaN if the result had other bits than with the default tile: a driver's fault, and the tile is not chosen. */
  gflops: number
  chosen: boolean
}

/** What the tiles of a name are for. */
export const tileWords: Record<TileName, string> = {
  ntCpu: 'forward, CPU driver',
  nnCpu: 'backward to the input, CPU driver',
  tile: 'register tile',
  few: 'register tile, few rows',
  fewMore: 'the same, more columns',
  fewWide: 'the same, many columns',
  units: 'matrix units',
  fewUnits: 'matrix units, few rows',
}

/** A tile must beat the default by this factor, so that noise changes nothing. */
const margin = 1.03

/** The names that this GPU adapter's kernels use. */
function namesFor(gpu: Gpu): TileName[] {
  if (cpuLanes(gpu).LANES > 0) return ['ntCpu', 'nnCpu']
  const units: TileName[] = fittingUnit(gpu) ? ['units', 'fewUnits'] : []
  return ['tile', 'few', 'fewMore', 'fewWide', ...units]
}

const isUnits = (name: TileName): boolean => name === 'units' || name === 'fewUnits'

/**
 * The product (rows, N, K) with which a name is measured; `size` is the one for many rows. With few rows it has the widths of a small model's layers.
 */
function sizeFor(name: TileName, [rows, n, k]: Size): Size {
  if (name === 'few' || name === 'fewUnits') return [Math.min(rows, 32), Math.min(n, 1024), k]
  if (name === 'fewMore') return [Math.min(rows, 32), Math.min(2 * n, 4096), Math.min(k, 1024)]
  return name === 'fewWide' ? [Math.min(rows, 32), 6144, Math.min(k, 1024)] : [rows, n, k]
}
type Size = [rows: number, n: number, k: number]

/**
 * Products of few rows go through this many weights in turn, like a model's layers: one weight again and again would come from a cache of the GPU.
 */
const layers = 8

/**
 * Measures every candidate and sets the best on this device. Results of products do not change: a candidate that gives other bits than the default
 * tile (a driver's fault) is not taken.
 * @param options.seconds limit of all measuring; compilation comes on top
 * @param options.size rows, N and K of the product: by default those of a small model on a CPU driver, of a large one on a GPU
 * @returns the tiles of the kernels that this GPU adapter has
 */
export async function tuneMatmul(
  gpu: Gpu,
  options: { seconds?: number; size?: Size; report?: (row: TuneRow) => void } = {},
): Promise<Partial<Tiles>> {
  const { software } = gpu.facts
  const { seconds = 30, size = software ? [96, 1152, 576] : [2048, 2048, 2048], report } = options
  const names = namesFor(gpu)
  const tiles: Tiles = { ...usualTiles(gpu) }
  const start = performance.now()
  try {
    for (const [i, name] of names.entries()) {
      const end = start + (seconds * 1000 * (i + 1)) / names.length
      tiles[name] = await tuneTile(gpu, name, { tiles, size: sizeFor(name, size), end, report })
    }
  } finally {
    useMatrixUnits(gpu, false)
    setTiles(gpu, tiles)
  }
  return Object.fromEntries(names.map((name) => [name, tiles[name]])) as Partial<Tiles>
}

interface TuneCase {
  /** The tiles chosen for the names before this one. */
  tiles: Tiles
  size: Size
  /** When measuring ends (`performance.now()`). One round is always made. */
  end: number
  report?: (row: TuneRow) => void
}

/** The best tile for a name. */
async function tuneTile(gpu: Gpu, name: TileName, { tiles, size: [rows, n, k], end, report }: TuneCase): Promise<Tile> {
  const { software } = gpu.facts
  const few = name.startsWith('few')
  useMatrixUnits(gpu, isUnits(name))
  const values = noiseBits(n * k)
  const weights = Array.from({ length: few ? layers : 1 }, () => uploadWeight(gpu, 'tune', n, k, values))
  const [x, y] = [rows * k, rows * n].map((length) => gpu.upload(noise(length), 'tune'))
  const backward = name === 'nnCpu'
  const out = backward ? x : y
  const run = (weight: Weight): void => {
    if (backward) linearBackwardInput(gpu, y, rows, weight, x)
    else linear(gpu, x, rows, weight, y)
  }
  try {
    const usual = usualTiles(gpu)[name]
    const candidates = candidatesOf(gpu, name).filter((tile) => fits(gpu, name, tile))
    const own = candidates.findIndex((tile) => sameTile(tile, usual))
    const take = (tile: Tile): void => setTiles(gpu, { ...tiles, [name]: tile }, { always: !few })
    const bitsOf = async (tile: Tile): Promise<Buffer> => {
      take(tile)
      gpu.clear(out) // results of earlier work would prove nothing
      run(weights[0])
      return Buffer.from(await gpu.read(out, 'tune'))
    }
    const bits = await bitsOf(usual)
    const best: number[] = []
    for (const tile of candidates) best.push((await bitsOf(tile)).equals(bits) ? Infinity : NaN) // this also compiles them
    const calls = few ? layers : software ? 4 : 8
    const all = (): void => {
      for (let i = 0; i < calls; i++) run(weights[i % weights.length])
    }
    if (!software) await awakenClock(gpu, all, await timeOf(gpu, all))
    for (let round = 0; round < 4; round++) {
      for (const [i, tile] of candidates.entries()) {
        if (Number.isNaN(best[i]) || (round > 0 && performance.now() > end)) continue
        take(tile)
        best[i] = Math.min(best[i], (await timeOf(gpu, all)) / calls)
      }
    }
    let chosen = Math.max(0, own)
    for (const i of candidates.keys()) {
      const bar = best[chosen] / (chosen === own ? margin : 1)
      if (best[i] < bar) chosen = i
    }
    for (const [i, tile] of candidates.entries()) {
      report?.({ name, ...tile, gflops: (2 * rows * n * k) / best[i] / 1e9, chosen: i === chosen })
    }
    return candidates[chosen]
  } finally {
    for (const buffer of [x, y]) buffer.release()
    for (const weight of weights) releaseWeight(weight)
  }
}

/** Reproducible values from -1 to 1: with constants, swapped rows or steps would not be noticed. */
function noise(length: number): Float32Array<ArrayBuffer> {
  const random = new Random(1)
  return Float32Array.from({ length }, () => 2 * random.next() - 1)
}
const noiseBits = (length: number): Uint16Array<ArrayBuffer> =>
  Uint16Array.from(new Uint32Array(noise(length).buffer), (bits) => bits >>> 16)

/** Whether the workgroup memory holds a tile's operands; else it would be replaced by a smaller one, or not compile. */
function fits(gpu: Gpu, name: TileName, tile: Tile): boolean {
  if (isUnits(name)) return holdsUnitTile(gpu, tile)
  return name === 'ntCpu' || name === 'nnCpu' || holdsRegisterTile(gpu, tile)
}

/** Seconds of a run: by timestamps, or on a software adapter by its driver's processor time, which is what an idle machine would take. */
async function timeOf(gpu: Gpu, run: () => void): Promise<number> {
  if (gpu.facts.software) {
    await gpu.sync('tune')
    const before = driverSeconds()
    run()
    await gpu.sync('tune')
    return driverSeconds(before).seconds / availableParallelism()
  }
  if (gpu.facts.timestamps) {
    const times = await gpu.profile(async () => run())
    return times.reduce((sum, t) => sum + t.milliseconds, 0) / 1000
  }
  await gpu.sync('tune')
  const start = performance.now()
  run()
  await gpu.sync('tune')
  return (performance.now() - start) / 1000
}
