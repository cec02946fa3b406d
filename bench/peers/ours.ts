/**
 * Our side: one job in a fresh process, as a run would do it.
 *
 *     node bench/peers/ours.ts JOB.json     (started by run.ts)
 */
import { readFileSync } from 'node:fs'
import type { TrainingSample } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Engine } from '../../src/inference/engine.ts'
import { loadDecoder } from '../../src/model/decoder-load.ts'
import type { Decoder } from '../../src/model/decoder.ts'
import { openModel } from '../../src/model/open.ts'
import { gainsByWideVectors } from '../../src/model/wide-vectors.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { say, type Job, type Result } from './job.ts'
import { reinforcementSteps } from './ours-rl.ts'
import { matmul, smallStep } from './ours-small.ts'
import { LORA, sampling, secondsOf, supervisedTrainer, type Bench } from './ours-shared.ts'

/** Each token but the first counts, with the weight 1: cross-entropy. */
function sampleOf(ids: number[]): TrainingSample {
  const mask = new Uint8Array(ids.length).fill(1, 1)
  return {
    ids: Int32Array.from(ids),
    lossMask: mask,
    inferenceLogprobs: new Float32Array(ids.length),
    advantages: Float32Array.from(mask),
  }
}

/** An engine without an end of sequence, so that both sides make the same number of tokens. */
const engineOf = (decoder: Decoder, maxSequences: number, maxLength: number): Engine =>
  new Engine(decoder, { maxSequences, full: true, prefixCaching: false, maxLength, eosTokenIds: [], decode: () => '' })

async function greedy(engine: Engine, prompts: number[][], tokens: number): Promise<number[][]> {
  const params = sampling({ temperature: 0, max_tokens: tokens })
  const all = await Promise.all(prompts.map((promptIds) => engine.generate({ promptIds, sampling: params })))
  return all.map(({ ids }) => ids)
}

async function check({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true, lora: LORA })
  const tokenizer = await files.tokenizer()
  const promptIds = job.prompts.map((content) => tokenizer.encodeChat([{ role: 'user', content }], { addGenerationPrompt: true }))
  const engine = engineOf(decoder, promptIds.length, 256)
  const answers = await greedy(engine, promptIds, job.tokens)
  await engine.close()
  const scored = await scoreSamples(decoder, job.sequences.map(sampleOf), { temperature: 1, microBatchTokens: job.microBatch })
  report({ name: 'check', promptIds, answers, logprobs: scored.flatMap(({ logprobs }) => [...logprobs.subarray(1)]) })
}

async function generate({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true })
  for (const batch of job.batches) {
    const prompts = job.windows.slice(0, batch)
    const engine = engineOf(decoder, batch, prompts[0].length + job.tokens)
    let answers: number[][] = []
    await greedy(engine, prompts, 4)
    const seconds = await secondsOf(async () => (answers = await greedy(engine, prompts, job.tokens)), job.repeats, 0)
    await engine.close()
    report({ name: `generate ${batch}`, value: (batch * job.tokens) / seconds, answers })
  }
}

async function score({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true })
  const samples = job.sequences.map(sampleOf)
  const options = { temperature: 1, microBatchTokens: job.microBatch }
  const seconds = await secondsOf(() => scoreSamples(decoder, samples, options), job.repeats)
  report({ name: 'score', value: job.sequences.flat().length / seconds })
}

async function loraStep({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true, lora: LORA })
  const trainer = supervisedTrainer(decoder, job.microBatch, job.checkpointing)
  const samples = job.sequences.map(sampleOf)
  const lossTokenCount = job.sequences.flat().length - samples.length
  const losses: number[] = []
  const seconds = await secondsOf(async () => {
    const { metrics } = await trainer.trainStep({ step: losses.length + 1, samples, lossTokenCount })
    losses.push(metrics['loss/mean']!)
  }, job.repeats)
  report({ name: 'lora step', value: job.sequences.flat().length / seconds, losses })
}

const works: Record<Job['work'], (bench: Bench) => Promise<void>> = {
  check,
  generate,
  score,
  'lora step': loraStep,
  'rl smollm2': reinforcementSteps,
  'rl tiny lora': reinforcementSteps,
  'rl tiny full': reinforcementSteps,
  matmul,
  'small step': smallStep,
}

const job = JSON.parse(readFileSync(process.argv[2], 'utf8')) as Job
const files = await openModel(job.model)
// As a run takes them; the peer of these two has 256 bits on the same driver.
const beside = job.work === 'matmul' || job.work === 'small step'
const gpu = await Gpu.open({ wideVectors: !beside && gainsByWideVectors([files.config], { trains: true }) })
const where = { on: gpu.facts.name, device: gpu.facts.software ? ('cpu' as const) : ('gpu' as const) }
// On a software adapter GPU buffers are memory of this process.
const report = (result: Omit<Result, 'peakBytes'>) =>
  say({ ...result, ...where, versions: { node: process.version } }, gpu.facts.software ? 0 : gpu.pool.peakBytes)
await works[job.work]({ job, gpu, files, report })
files.close()
gpu.close()
process.exit(0)
