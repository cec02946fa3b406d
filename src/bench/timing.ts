/**
 * How long work takes on this adapter: by the clock, and on a software adapter also by the processor time of the driver's threads spread
 * over the cores, which is what an idle machine would take, whatever else runs.
 */
import { availableParallelism } from 'node:os'
import { driverSeconds } from '../common/cpu-time.ts'
import { awakenClock } from '../gpu/clock.ts'
import type { Gpu } from '../gpu/gpu.ts'

export interface TimingOptions {
  /** Measurements, of which the best counts; one more goes before them. Default 3. */
  repeats?: number
  /** What one measurement should last, by which the number of calls is chosen. Default 0.1. */
  seconds?: number
}

/** Seconds of one call. */
interface Timing {
  clock: number
  /** Software adapters only: processor time of the driver divided by the cores. */
  idle?: number
}

/** Seconds after which a long case is not measured again. */
const enough = 3

/** The better of the two figures: what rates and shares are made of. */
export const bestSeconds = ({ clock, idle }: Timing): number => idle ?? clock

/**
 * Times `run`, which records commands, as many times in a row as fill a measurement.
 * @param name of the wait, so that its length is learned: another one for other work
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
  // A single call is mostly waiting where it is short.
  const { clock } = once.clock < 0.005 ? await measure(8) : once
  const calls = Math.max(1, Math.min(4096, Math.ceil(seconds / clock)))
  if (!gpu.facts.software) await awakenClock(gpu, run, clock)
  const best: Timing = calls === 1 ? once : gpu.facts.software ? { clock: Infinity, idle: Infinity } : { clock: Infinity }
  const end = performance.now() + enough * 1000
  for (let repeat = calls === 1 ? 1 : 0; repeat <= repeats; repeat++) {
    if (repeat > 1 && performance.now() > end) break
    const timing = await measure(calls)
    if (repeat === 0) continue // teaches the wait how long it takes
    best.clock = Math.min(best.clock, timing.clock)
    if (best.idle !== undefined) best.idle = Math.min(best.idle, timing.idle!)
  }
  return best
}
