/** Golden models on the device with an engine, and the trainer's scoring to compare with. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect } from 'vitest'
import { neutralSampling } from '../../src/common/sampling.ts'
import type { GenerationRequest, GenerationResult, SamplingParams, TrainingSample } from '../../src/common/types.ts'
import type { Gpu } from '../../src/gpu/gpu.ts'
import { Engine, type EngineOptions } from '../../src/inference/engine.ts'
import { pad } from '../../src/autograd/parameters.ts'
import { hashSeed, Random } from '../../src/common/random.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { refreshWeights } from '../../src/model/decoder/trained.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'

/** The folder of a golden case. */
export const golden = (name: string): string => join(import.meta.dirname, '../fixtures/golden', name)

/** The model of a golden case on the device, with its adapter unless `adapter` is false. */
export async function goldenDecoder(gpu: Gpu, name: string, options: { adapter?: boolean } = {}): Promise<Decoder> {
  const files = await openModel(golden(join(name, 'model')))
  const adapter = (options.adapter ?? true) ? await readAdapter(golden(join(name, 'adapter'))) : undefined
  const decoder = await loadDecoder(gpu, files, { adapter })
  files.close()
  return decoder
}

/** The token sequences of a golden case. */
export function goldenSequences(name: string): number[][] {
  const batch = JSON.parse(readFileSync(golden(join(name, 'batch.json')), 'utf8')) as { input_ids: number[] }[]
  return batch.map((sequence) => sequence.input_ids)
}

/** An expected tensor of a golden case. */
export async function goldenTensor(name: string, tensor: string): Promise<number[]> {
  const source = await openSafetensors(golden(join(name, 'expected.safetensors')))
  try {
    return [...(await source.readRaw(tensor)).data].map(Number)
  } finally {
    source.close()
  }
}

/** Maps each token to one letter, so that texts can be read back. */
export const letters = (ids: readonly number[]): string => ids.map((id) => String.fromCodePoint(0x4e00 + id)).join('')

export function engineOf(decoder: Decoder, options: Partial<EngineOptions> = {}): Engine {
  // Short prompts take the way of long ones, too: one or two tiles of keys.
  return new Engine(decoder, { maxSequences: 8, maxLength: 64, eosTokenIds: [], decode: letters, sharedKeys: 16, ...options })
}

export function sampling(changes: Partial<SamplingParams> = {}): SamplingParams {
  return { ...neutralSampling, temperature: 0.8, max_tokens: 12, seed: 1, ...changes }
}

/** Turns a request and its result into a sample for the trainer. */
export function sampleOf(promptIds: number[], result: GenerationResult, promptKey?: string): TrainingSample {
  const ids = Int32Array.from([...promptIds, ...result.ids])
  return {
    ids,
    lossMask: Uint8Array.from(ids, (_, i) => Number(i >= promptIds.length)),
    inferenceLogprobs: Float32Array.from([...promptIds.map(() => 0), ...result.logprobs]),
    advantages: new Float32Array(ids.length),
    promptKey,
    promptLength: promptKey === undefined ? undefined : promptIds.length,
  }
}

/** The trainer's log-probabilities of the tokens after a prompt. */
export async function scoreAfter(decoder: Decoder, promptIds: number[], ids: number[], temperature: number): Promise<number[]> {
  const nothing = { logprobs: ids.map(() => 0), versions: [], text: '', finishReason: 'stop', stopCondition: '' } as const
  const sample = sampleOf(promptIds, { ...nothing, ids, versions: [] })
  const [{ logprobs }] = await scoreSamples(decoder, [sample], { temperature, microBatchTokens: 4096 })
  return [...logprobs.subarray(promptIds.length)]
}

/** Moves the trained parameters (of an adapter, its B matrices) as a large optimizer step would, in a different direction for each step. */
export async function moveAdapter(decoder: Decoder, step: number): Promise<void> {
  const { store } = decoder
  const random = new Random(hashSeed(step, 'move'))
  for (const parameter of store!.parameters) {
    if (!/lora_B/.test(parameter.name) && store!.parameters.some((p) => p.name.includes('lora_B'))) continue
    const values = await store!.read(parameter)
    const size = Math.hypot(...values.slice(0, 1000)) / Math.sqrt(Math.min(values.length, 1000)) || 0.02
    store!.write(parameter, pad(values.map((v) => v + 0.2 * size * random.normal()), parameter)) // prettier-ignore
  }
  refreshWeights(decoder)
}

/** Expects the trainer to compute the engine's log-probability of every sampled token, bit for bit. All results must have the same temperature. */
export async function expectTrainersBits(
  decoder: Decoder,
  pairs: { request: GenerationRequest; result: GenerationResult }[],
): Promise<void> {
  const { temperature } = pairs[0].request.sampling
  for (const shared of [false, true]) {
    const samples = pairs.map(({ request: r, result }) => sampleOf(r.promptIds, result, shared ? r.promptIds.join() : undefined))
    const scored = await scoreSamples(decoder, samples, { temperature: temperature || 1, microBatchTokens: shared ? 4096 : 96 })
    pairs.forEach(({ request, result }, i) => {
      const logprobs = [...scored[i].logprobs.subarray(request.promptIds.length)]
      expect(result.logprobs, `sequence ${i} of ${pairs.length}, prompts ${shared ? 'shared' : 'apart'}`).toEqual(logprobs)
    })
  }
}
