/**
 * Raises a GPU's clock before measurements. The clock falls while the GPU is idle, for example while the host makes data or compiles kernels, and
 * takes seconds to rise again.
 */
import type { Gpu } from './gpu.ts'

/** Seconds to wait at most for the highest clock; an H200 takes 2.5 s (bench/LOG.md, "On an H200"). */
const rising = 4

/**
 * Runs a case until half a second has passed without a better time; to be called before the case is timed. Does nothing on software adapters, which
 * have no clock of their own.
 * @param run records one call
 * @param seconds approximate duration of one call
 */
export async function awakenClock(gpu: Gpu, run: () => void, seconds: number): Promise<void> {
  const calls = Math.max(1, Math.min(4096, Math.ceil(0.05 / seconds)))
  const begin = performance.now()
  let [best, since] = [Infinity, begin]
  for (let now = begin; now - since < 500 && now - begin < rising * 1000;) {
    const from = now
    for (let i = 0; i < calls; i++) run()
    await gpu.sync('clock')
    now = performance.now()
    if (now - from < best * 0.98) [best, since] = [now - from, now]
  }
}
