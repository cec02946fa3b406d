/** What our jobs share: settings and time. */
import { plainSampling } from '../../src/bench/data.ts'
import type { SamplingParams } from '../../src/common/types.ts'
import type { Gpu } from '../../src/gpu/gpu.ts'
import type { ModelFiles } from '../../src/model/files/open.ts'
import { LINEAR_MODULES } from '../../src/model/decoder/shapes.ts'
import type { Job, Result } from './job.ts'
import { median } from './table.ts'

/** As in the peers' LoraConfig; B is zero, so the adapter does not change the model. */
export const LORA = { rank: 8, alpha: 32, dropout: 0, targetModules: [...LINEAR_MODULES], seed: 0 }

export const sampling = (over: Partial<SamplingParams>): SamplingParams => ({
  ...plainSampling,
  temperature: 1,
  max_tokens: 16,
  ...over,
})

/** What every work needs. */
export interface Bench {
  job: Job
  gpu: Gpu
  files: ModelFiles
  /** Writes a figure with the name of the adapter. */
  report: (result: Omit<Result, 'peakBytes'>) => void
}

/** The median time of `run` in seconds, after `warmUp` runs that do not count. */
export async function secondsOf(run: () => Promise<unknown>, repeats: number, warmUp = 1): Promise<number> {
  for (let i = 0; i < warmUp; i++) await run()
  const times: number[] = []
  for (let i = 0; i < repeats; i++) {
    const begin = performance.now()
    await run()
    times.push((performance.now() - begin) / 1000)
  }
  return median(times)
}
