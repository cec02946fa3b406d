/**
 * Measures the best that this adapter can do: multiply-adds in registers, matrix units in registers, and a copy. Kernels are shown as shares of these
 * peaks.
 */
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import type { MatrixUnit } from '../gpu/adapter.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { dispatchFlat } from '../kernels/common/lanes.ts'
import { timeCalls, type TimingOptions } from './timing.ts'

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const paths = { fma: file('peaks.wgsl'), unit: file('unit_peak.wgsl'), copy: file('copy.wgsl') }

/** Work per second: `timed` by the clock, `idle` as it would be on an idle machine (software adapters only). */
export interface Rate {
  timed: number
  idle?: number
}

export interface Peaks {
  /** GFLOP/s of a register-only multiply-add loop in float32. */
  fma: Rate
  /** GFLOP/s of a register-only loop on matrix units, f16 into float32; missing if the adapter has none. */
  units?: Rate & { unit: MatrixUnit }
  /** GB/s of a copy, counting bytes read and bytes written: the better of the driver's copy between buffers and a kernel. */
  copy: Rate
}

/** The better of the two figures, on which shares are based. */
export const peakOf = (rate: Rate): number => rate.idle ?? rate.timed

/** Measures how much of `work` `run` does per second, in billions. */
async function rateOf(gpu: Gpu, name: string, work: number, run: () => void, options: TimingOptions): Promise<Rate> {
  const { clock, idle } = await timeCalls(gpu, name, run, options)
  return { timed: work / clock / 1e9, ...(idle === undefined ? {} : { idle: work / idle / 1e9 }) }
}

/** Measures all peaks. @throws Error if a loop's result is wrong */
export async function measurePeaks(gpu: Gpu, options: TimingOptions = {}): Promise<Peaks> {
  return { fma: await fmaPeak(gpu, options), copy: await copyPeak(gpu, options), ...(await unitPeak(gpu, options)) }
}

async function fmaPeak(gpu: Gpu, options: TimingOptions): Promise<Rate> {
  const { software } = gpu.facts
  const WIDTH = software ? Math.max(8, gpu.facts.subgroupSize) : 256
  const groups = software ? 64 : 2048
  const y = gpu.pool.acquire(groups * WIDTH * 4, 'peak')
  let best: Rate = { timed: 0 }
  for (const [CHAINS, UNROLL] of [
    [8, 16],
    [12, 8],
    [12, 16],
    [16, 8],
  ]) {
    const kernel = gpu.kernel(paths.fma, { WIDTH, CHAINS, UNROLL })
    const run = (rounds: number) => gpu.dispatch(kernel, [y], { rounds, a: 0.999, b: 0.5 }, [groups])
    run(2)
    const got = await gpu.readF32(y, groups * WIDTH)
    for (let i = 0; i < got.length; i++) {
      const decay = 0.999 ** (2 * UNROLL)
      let want = 0
      for (let chain = 0; chain < CHAINS; chain++) want += decay * ((i % 64) + chain) + (0.5 * (1 - decay)) / 0.001
      if (!(Math.abs(got[i] - want) <= 1e-5 * want)) throw new Error(`the multiply-add loop gives ${got[i]} instead of ${want}`)
    }
    const rounds = Math.ceil((software ? 2e4 : 1e5) / UNROLL)
    const work = 2 * groups * WIDTH * CHAINS * UNROLL * rounds
    best = better(best, await rateOf(gpu, `peak ${CHAINS} ${UNROLL}`, work, () => run(rounds), options))
  }
  y.release()
  return best
}

async function copyPeak(gpu: Gpu, options: TimingOptions): Promise<Rate> {
  const bytes = Math.min(gpu.facts.software ? 64 << 20 : 2 ** 30, gpu.facts.limits.maxBinding)
  const [from, to] = ['from', 'to'].map((label) => gpu.pool.acquire(bytes, label, { exact: true }))
  const { clock, idle } = await timeCalls(gpu, 'peak copy', () => gpu.copy(from, 0, to, 0, bytes), options)
  // A software adapter copies with one thread, so the copy takes that thread's processor time.
  const alone = idle === undefined ? undefined : Math.min(clock, idle * availableParallelism())
  const copy: Rate = { timed: (2 * bytes) / clock / 1e9, ...(alone === undefined ? {} : { idle: (2 * bytes) / alone / 1e9 }) }
  const count = bytes / 16
  const marks = Uint32Array.of(1, 2, 3, 4)
  gpu.write(from, marks, bytes - 16)
  const run = () => dispatchFlat(gpu, paths.copy, {}, [from, to], { count }, count)
  run()
  const end = new Uint32Array(await gpu.read({ buffer: to, offset: bytes - 256, bytes: 256 }, 'peak'))
  if (marks.some((v, i) => end[60 + i] !== v)) throw new Error(`the copying kernel leaves ${end.slice(60).join(', ')} at its end`)
  const kernel = await rateOf(gpu, 'peak copy kernel', 2 * bytes, run, options)
  from.release()
  to.release()
  return better(copy, kernel)
}

/** The rate of the largest matrix unit as `units`, or nothing. */
async function unitPeak(gpu: Gpu, options: TimingOptions): Promise<{ units?: Peaks['units'] }> {
  const { matrixUnits, subgroupSize, f16, software } = gpu.facts
  if (!f16 || subgroupSize === 0) return {}
  let best: Peaks['units']
  const shapes = new Map(matrixUnits.map((unit) => [`${unit.m}x${unit.n}x${unit.k}`, unit]))
  for (const [name, unit] of shapes) {
    const { m: FM, n: FN, k: FK } = unit
    const [LEFT, RIGHT, SUBGROUPS] = [2, 4, software ? 1 : 4]
    const groups = software ? 64 : 2048
    const kernel = gpu.kernel(paths.unit, { FM, FN, FK, LEFT, RIGHT, SUBGROUPS, LANES: subgroupSize })
    const y = gpu.pool.acquire(groups * SUBGROUPS * FM * FN * 4, 'peak')
    const run = (rounds: number) => gpu.dispatch(kernel, [y], { rounds }, [groups])
    run(3)
    const got = await gpu.readF32(y, groups * SUBGROUPS * FM * FN)
    for (let i = 0; i < got.length; i++) {
      const want = (LEFT * RIGHT * 3 * FK * ((Math.floor(i / FN) % FM) % 4)) / 4
      if (got[i] !== want) throw new Error(`the loop on matrix units of ${name} gives ${got[i]} at ${i} instead of ${want}`)
    }
    const rounds = software ? 200 : 4000
    const work = 2 * FM * FN * FK * LEFT * RIGHT * SUBGROUPS * groups * rounds
    const rate = await rateOf(gpu, `peak ${name}`, work, () => run(rounds), options)
    y.release()
    if (!best || peakOf(rate) > peakOf(best)) best = { ...rate, unit }
  }
  return best ? { units: best } : {}
}

function better(a: Rate, b: Rate): Rate {
  const timed = Math.max(a.timed, b.timed)
  return b.idle === undefined ? { timed } : { timed, idle: Math.max(a.idle ?? 0, b.idle) }
}
