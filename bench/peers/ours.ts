/**
 * Our side: one job in a fresh process, as a run would do it. Only what the job needs is loaded, as in our commands.
 *
 *     node bench/peers/ours.ts JOB.json     (started by run.ts)
 */
import { readFileSync } from 'node:fs'
import { Gpu } from '../../src/gpu/gpu.ts'
import { openModel } from '../../src/model/files/open.ts'
import { gainsByWideVectors } from '../../src/model/decoder/wide-vectors.ts'
import { say, type Job, type Result } from './job.ts'
import type { Bench } from './ours-shared.ts'

const reinforcement = async () => (await import('./ours-rl.ts')).reinforcementSteps
const works: Record<Job['work'], () => Promise<(bench: Bench) => Promise<void>>> = {
  check: async () => (await import('./ours-score.ts')).check,
  generate: async () => (await import('./ours-generate.ts')).generate,
  score: async () => (await import('./ours-score.ts')).score,
  'lora step': async () => (await import('./ours-score.ts')).loraStep,
  'rl smollm2': reinforcement,
  'rl tiny lora': reinforcement,
  'rl tiny full': reinforcement,
  matmul: async () => (await import('./ours-small.ts')).matmul,
  'small step': async () => (await import('./ours-small.ts')).smallStep,
}

const job = JSON.parse(readFileSync(process.argv[2], 'utf8')) as Job
const files = await openModel(job.model)
// Vector width as in a run; the peer of these two has 256 bits on the same driver.
const beside = job.work === 'matmul' || job.work === 'small step'
const gpu = await Gpu.open({ wideVectors: !beside && gainsByWideVectors([files.config], { trains: true }) })
const where = { on: gpu.facts.name, device: gpu.facts.software ? ('cpu' as const) : ('gpu' as const) }
// On a software adapter GPU buffers are memory of this process.
const report = (result: Omit<Result, 'peakBytes'>) =>
  say({ ...result, ...where, versions: { node: process.version } }, gpu.facts.software ? 0 : gpu.pool.peakBytes)
const work = await works[job.work]()
await work({ job, gpu, files, report })
files.close()
gpu.close()
process.exit(0)
