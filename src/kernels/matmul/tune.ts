/** Finds the tile sizes of this adapter: every candidate in turn, several rounds, the best time of each. */
import { availableParallelism } from 'node:os'
import { driverSeconds } from '../../common/cpu-time.ts'
import { awakenClock } from '../../gpu/clock.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import { cpuLanes } from '../common/lanes.ts'
import { releaseWeight, uploadWeight } from '../common/weight.ts'
import { linear, linearBackwardInput } from './matmul.ts'
import { candidatesOf, setTiles, usualTiles, type Tile, type TileName, type Tiles } from './tiles.ts'
import { useMatrixUnits } from '../common/matrix-units.ts'
import { holdsUnitTile } from './units.ts'

export interface TuneRow extends Tile {
  name: TileName
  gflops: number
  chosen: boolean
}

/** What the tiles of a name are for. */
export const tileWords: Record<TileName, string> = {
  ntCpu: 'forward, CPU driver',
  nnCpu: 'backward to the input, CPU driver',
  tile: 'register tile',
  units: 'matrix units',
}

/** A tile has to beat the heuristic's by this, so that noise changes nothing. */
const margin = 1.03

/** The names that this adapter's kernels ask for. */
function namesFor(gpu: Gpu): TileName[] {
  const { subgroupSize, matrixUnits } = gpu.facts
  if (cpuLanes(gpu).LANES > 0) return ['ntCpu', 'nnCpu']
  return matrixUnits.length > 0 && subgroupSize > 0 ? ['tile', 'units'] : ['tile']
}

/**
 * Measures every candidate and sets the best on this device. The results of products do not change.
 * @param options.seconds measured in all, at most; compiling comes on top
 * @param options.size rows, N and K of the product: by default of a small model on a CPU driver, of a large one on a GPU
 * @returns the tiles of the kernels that this adapter has
 */
export async function tuneMatmul(
  gpu: Gpu,
  options: { seconds?: number; size?: [number, number, number]; report?: (row: TuneRow) => void } = {},
): Promise<Partial<Tiles>> {
  const { software } = gpu.facts
  const { seconds = 30, size = software ? [96, 1152, 576] : [2048, 2048, 2048], report } = options
  const [rows, n, k] = size
  const weight = uploadWeight(gpu, 'tune', n, k, new Uint16Array(n * k).fill(0x3f80))
  const [x, y] = [rows * k, rows * n].map((length) => gpu.upload(new Float32Array(length).fill(0.5), 'tune'))
  const names = namesFor(gpu)
  const tiles: Tiles = { ...usualTiles(gpu) }
  const end = performance.now() + seconds * 1000
  try {
    for (const name of names) {
      if (name === 'units') useMatrixUnits(gpu)
      const run = name === 'nnCpu' ? () => linearBackwardInput(gpu, y, rows, weight, x) : () => linear(gpu, x, rows, weight, y)
      const candidates = candidatesOf(gpu, name).filter((tile) => fits(gpu, name, tile))
      const best = candidates.map(() => Infinity)
      for (let round = 0; round < 5; round++) {
        for (const [i, tile] of candidates.entries()) {
          if (round > 1 && performance.now() > end) continue
          setTiles(gpu, { ...tiles, [name]: tile }, { always: true })
          const time = await timeOf(gpu, software ? 4 : 8, run)
          if (round > 0) best[i] = Math.min(best[i], time) // the first one compiles
        }
        if (round === 0 && !software) await awakenClock(gpu, run, await timeOf(gpu, 1, run))
      }
      const usual = usualTiles(gpu)[name]
      const own = candidates.findIndex((t) => t.rows === usual.rows && t.columns === usual.columns)
      let chosen = Math.max(0, own)
      for (const i of candidates.keys()) {
        const bar = best[chosen] / (chosen === own ? margin : 1)
        if (best[i] < bar) chosen = i
      }
      tiles[name] = candidates[chosen]
      for (const [i, tile] of candidates.entries()) {
        report?.({ name, ...tile, gflops: (2 * rows * n * k) / best[i] / 1e9, chosen: i === chosen })
      }
    }
  } finally {
    useMatrixUnits(gpu, false)
    setTiles(gpu, tiles)
    for (const buffer of [x, y]) buffer.release()
    releaseWeight(weight)
  }
  return Object.fromEntries(names.map((name) => [name, tiles[name]])) as Partial<Tiles>
}

/** A tile whose operands the adapter's workgroup memory does not hold would be replaced by a smaller one, or not compile. */
function fits(gpu: Gpu, name: TileName, tile: Tile): boolean {
  if (name === 'units') return holdsUnitTile(gpu, tile)
  const bytes = name === 'tile' ? 16 * (tile.rows + tile.columns) * 4 : 0
  return bytes <= gpu.facts.limits.maxWorkgroupMemory
}

/** Seconds of one call: by timestamps, or on a software adapter by the processor time of its driver, as an idle machine would take. */
async function timeOf(gpu: Gpu, calls: number, run: () => void): Promise<number> {
  const repeat = (): void => {
    for (let i = 0; i < calls; i++) run()
  }
  if (gpu.facts.software) {
    await gpu.sync('tune')
    const before = driverSeconds()
    repeat()
    await gpu.sync('tune')
    return driverSeconds(before).seconds / availableParallelism() / calls
  }
  if (gpu.facts.timestamps) {
    const times = await gpu.profile(async () => repeat())
    return times.reduce((sum, t) => sum + t.milliseconds, 0) / 1000 / calls
  }
  await gpu.sync('tune')
  const start = performance.now()
  repeat()
  await gpu.sync('tune')
  return (performance.now() - start) / 1000 / calls
}
