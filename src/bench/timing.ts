/**
 * Measures how long work takes on this adapter: by the clock, and on a software adapter also by the processor time of the driver's threads divided by
 * the cores, which is what an idle machine would take, whatever else is running.
 */
import { availableParallelism } from 'node:os'
import { driverSeconds } from '../common/cpu-time.ts'
import { awakenClock } from '../gpu/clock.ts'
import type { Gpu } from '../gpu/gpu.ts'

export interface TimingOptions {
  /** Number of measurements, of which the best counts; one more is made before them. Default 3. */
  repeats?: number
  /** How long one measurement should take; the number of calls follows from it. Default 0.1. */
  seconds?: number
}

/** Seconds per call. */
interface Timing {
  clock: number
  /** Software adapters only: the driver's processor time divided by the number of cores. */
  idle?: number
}

/** A long case is not measured again after this many seconds. */
const enough = 3

/** The better of the two figures, on which rates and shares are based. */
export const bestSeconds = ({ clock, idle }: Timing): number => idle ?? clock

/**
 * Times `run`, which records commands, repeating it as often as fills a measurement.
 * @param name of the wait, whose length is learned; other work needs another name
 */
export async function timeCalls(gpu: Gpu, name: string, run: () => void, options: TimingOptions): Promise<Timing> {
  const { repeats = 3, seconds = 0.1 } = options
  const measure = async (calls: number): Promise<Timing> => {
    const [cpu, start] = [driverSeconds(), performance.now()]
    for (let i = 0; i < calls; i++) run()
    await gpu.sync(`${name} x${calls}`)
    const clock = (performance.now() - start) / 1000 / calls
    if (!gpu.facts.software) return { clock }
    return { clock, idle: driverSeconds(cpu).seconds / calls / availableParallelism() }
  }
  await measure(1) // compiles
  const once = await measure(1)
  // A short call is mostly waiting.
  const { clock } = once.clock < 0.005 ? await measure(8) : once
  const calls = Math.max(1, Math.min(4096, Math.ceil(seconds / clock)))
  if (!gpu.facts.software) await awakenClock(gpu, run, clock)
  const best: Timing = calls === 1 ? once : gpu.facts.software ? { clock: Infinity, idle: Infinity } : { clock: Infinity }
  const end = performance.now() + enough * 1000
  for (let repeat = calls === 1 ? 1 : 0; repeat <= repeats; repeat++) {
    if (repeat > 1 && performance.now() > end) break
    const timing = await measure(calls)
    if (repeat === 0) continue // teaches the wait its length
    best.clock = Math.min(best.clock, timing.clock)
    if (best.idle !== undefined) best.idle = Math.min(best.idle, timing.idle!)
  }
  return best
}
