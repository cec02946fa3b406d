/** Scoring, a supervised LoRA step, and the results that both sides must agree on. */
import type { TrainingSample } from '../../src/common/types.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { engineOf, greedy } from './ours-generate.ts'
import { LORA, secondsOf, type Bench } from './ours-shared.ts'
import { supervisedTrainer } from './ours-trainer.ts'

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

export async function check({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true, lora: LORA })
  const tokenizer = await files.tokenizer()
  const promptIds = job.prompts.map((content) => tokenizer.encodeChat([{ role: 'user', content }], { addGenerationPrompt: true }))
  const engine = engineOf(decoder, promptIds.length, 256)
  const answers = await greedy(engine, promptIds, job.tokens)
  await engine.close()
  const scored = await scoreSamples(decoder, job.sequences.map(sampleOf), { temperature: 1, microBatchTokens: job.microBatch })
  report({ name: 'check', promptIds, answers, logprobs: scored.flatMap(({ logprobs }) => [...logprobs.subarray(1)]) })
}

export async function score({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true })
  const samples = job.sequences.map(sampleOf)
  const options = { temperature: 1, microBatchTokens: job.microBatch }
  const seconds = await secondsOf(() => scoreSamples(decoder, samples, options), job.repeats)
  report({ name: 'score', value: job.sequences.flat().length / seconds })
}

export async function loraStep({ job, gpu, files, report }: Bench): Promise<void> {
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
