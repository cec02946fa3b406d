/**
 * What this adapter can do at best, measured: multiply-adds in registers, and a copy. Kernels are shown as shares of these.
 *
 *     node bench/peaks.ts
 *
 * On a software adapter each figure comes twice: by the clock, and by the processor time of the driver's threads times the cores, which is what an idle
 * machine would give, whatever else runs.
 */
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { driverSeconds } from '../src/common/cpu-time.ts'
import { Gpu } from '../src/gpu/gpu.ts'

/** Work a second: `timed` by the clock, `idle` as an idle machine would do (software adapters only). */
export interface Rate {
  timed: number
  idle?: number
}

export interface Peaks {
  /** GFLOP/s of a register-only multiply-add loop in float32. */
  fma: Rate
  /** GB/s of a copy between buffers by the clock, bytes read and bytes written. */
  copy: number
}

/**
 * How much of `work` (in billions) a second `run` does; it is called `calls` times, between one wait and the next, `repeats` times, and the best counts.
 * `name` names the wait: the same one for the same work.
 */
export async function rateOf(
  gpu: Gpu,
  name: string,
  work: number,
  calls: number,
  repeats: number,
  run: () => void,
): Promise<Rate> {
  const rate: Rate = gpu.facts.software ? { timed: 0, idle: 0 } : { timed: 0 }
  for (let repeat = 0; repeat <= repeats; repeat++) {
    const [cpu, start] = [driverSeconds(), performance.now()]
    for (let i = 0; i < calls; i++) run()
    await gpu.sync(name)
    const seconds = (performance.now() - start) / 1000
    if (repeat === 0) continue // compiles, and teaches the wait how long it takes
    rate.timed = Math.max(rate.timed, (work * calls) / seconds / 1e9)
    if (rate.idle !== undefined)
      rate.idle = Math.max(rate.idle, ((work * calls) / driverSeconds(cpu).seconds / 1e9) * availableParallelism())
  }
  return rate
}

const path = fileURLToPath(new URL('peaks.wgsl', import.meta.url))

/** Measures the adapter. A second on a software adapter. @throws Error where the loop's result is wrong */
export async function measurePeaks(gpu: Gpu, repeats = 3): Promise<Peaks> {
  const { software } = gpu.facts
  const WIDTH = software ? Math.max(8, gpu.facts.subgroupSize) : 256
  const groups = software ? 64 : 2048
  const y = gpu.pool.acquire(groups * WIDTH * 4, 'peak')
  const fma: Rate = { timed: 0 }
  for (const [CHAINS, UNROLL] of [
    [8, 16],
    [12, 8],
    [12, 16],
    [16, 8],
  ]) {
    const kernel = gpu.kernel(path, { WIDTH, CHAINS, UNROLL })
    const run = (rounds: number) => gpu.dispatch(kernel, [y], { rounds, a: 0.999, b: 0.5 }, [groups])
    run(2)
    const got = await gpu.readF32(y, groups * WIDTH)
    for (let i = 0; i < got.length; i++) {
      const decay = 0.999 ** (2 * UNROLL)
      let want = 0
      for (let chain = 0; chain < CHAINS; chain++) want += decay * ((i % 64) + chain) + (0.5 * (1 - decay)) / 0.001
      if (Math.abs(got[i] - want) > 1e-5 * want) throw new Error(`the multiply-add loop gives ${got[i]} instead of ${want}`)
    }
    const rounds = Math.ceil((software ? 2e4 : 1e5) / UNROLL)
    const work = 2 * groups * WIDTH * CHAINS * UNROLL * rounds
    const rate = await rateOf(gpu, `peak ${CHAINS} ${UNROLL}`, work, software ? 2 : 8, repeats, () => run(rounds))
    fma.timed = Math.max(fma.timed, rate.timed)
    if (rate.idle !== undefined) fma.idle = Math.max(fma.idle ?? 0, rate.idle)
  }
  y.release()
  const bytes = software ? 64 << 20 : 256 << 20
  const [from, to] = ['from', 'to'].map((label) => gpu.pool.acquire(bytes, label, { exact: true }))
  const copy = await rateOf(gpu, 'peak copy', 2 * bytes, 4, repeats, () => gpu.copy(from, 0, to, 0, bytes))
  from.release()
  to.release()
  return { fma, copy: copy.timed }
}

/** The better of the two figures: what a share is taken of. */
export const peakOf = (rate: Rate): number => rate.idle ?? rate.timed

if (import.meta.main) {
  const gpu = await Gpu.open()
  const peaks = await measurePeaks(gpu)
  const text = ({ timed, idle }: Rate) => timed.toFixed(1) + (idle === undefined ? '' : ` (idle machine ${idle.toFixed(1)})`)
  console.log(
    `${gpu.facts.name}\nmultiply-add in registers  ${text(peaks.fma)} GFLOP/s\ncopy                       ${peaks.copy.toFixed(1)} GB/s`,
  )
  console.log(JSON.stringify({ adapter: gpu.facts.name, peaks }))
  gpu.close()
}
