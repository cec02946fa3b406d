/** Runs a case of test/fixtures (made by PyTorch, transformers and PEFT) through the decoder, and measures how far off every tensor is. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { TrainingSample } from '../../src/common/types.ts'
import type { Gpu } from '../../src/gpu/gpu.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { inverseFrequencies } from '../../src/model/decoder/rope.ts'
import { openSafetensors, type SafetensorsSource } from '../../src/model/files/safetensors.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'

export const fixtures = fileURLToPath(new URL('../fixtures/', import.meta.url))

/** Bounds on ||x - reference|| / ||reference|| (docs/house.md, "Numbers"). */
export const bars = { logprobs: 1e-5, gradients: 1e-4 }

export interface CaseFacts {
  temperature: number
  mask_ratio_low: number
  mask_ratio_high: number
  tokens: number
  [other: string]: number | unknown[] | Record<string, unknown>
}

export interface Case {
  samples: TrainingSample[]
  facts: CaseFacts
  expected: SafetensorsSource
  adapterDir: string
}

export async function openCase(dir: string, expectedDir = dir): Promise<Case> {
  return {
    samples: await readBatch(join(dir, 'batch.json')),
    facts: JSON.parse(readFileSync(join(expectedDir, 'case.json'), 'utf8')) as CaseFacts,
    expected: await openSafetensors(join(expectedDir, 'expected.safetensors')),
    adapterDir: join(dir, 'adapter'),
  }
}

/** A decoder of `ref`: with the case's adapter, or trained whole, or frozen. */
export async function openDecoder(
  gpu: Gpu,
  ref: string,
  mode: 'lora' | 'full' | 'frozen',
  options: { adapterDir?: string; bf16Rope?: boolean; matrixUnits?: boolean } = {},
): Promise<Decoder> {
  const files = await openModel(ref)
  try {
    const config = options.bf16Rope ? withBf16Rope(files.config) : files.config
    const adapter = mode === 'lora' ? await readAdapter(options.adapterDir!) : undefined
    return await loadDecoder(gpu, { ...files, config }, { adapter, full: mode === 'full', matrixUnits: options.matrixUnits })
  } finally {
    files.close()
  }
}

/**
 * The same model with its rotary frequencies rounded to bf16. That is what the maker of the golden LoRA cases of llama, qwen2 and qwen3
 * computed with (its PEFT model was made from one that had been cast to bf16, buffers included): PEFT with exact frequencies is 1.4e-3
 * away from them, with rounded ones 1.7e-7. test/fixtures/golden-exact holds the same cases with exact frequencies.
 */
function withBf16Rope(config: ModelConfig): ModelConfig {
  const rounded = widenBf16(roundToBf16(inverseFrequencies(config)))
  const plain = inverseFrequencies({ ...config, ropeScaling: { type: 'default' } })
  return { ...config, ropeScaling: { type: 'factors', factors: plain.map((f, i) => f / rounded[i]) } }
}

/** ||got - expected|| / ||expected||; 0 where both are 0. */
export function relativeError(got: ArrayLike<number>, expected: ArrayLike<number>): number {
  if (got.length !== expected.length) return Infinity
  let [difference, norm] = [0, 0]
  for (let i = 0; i < expected.length; i++) {
    difference += (got[i] - expected[i]) ** 2
    norm += expected[i] ** 2
  }
  return difference === 0 ? 0 : Math.sqrt(difference / norm)
}

export async function floats(source: SafetensorsSource, name: string): Promise<Float32Array> {
  return (await source.readFloat32(name)).data
}

/** Errors of log-probabilities and entropies, `mode` being the prefix of the expected tensors. */
export async function scoreErrors(decoder: Decoder, c: Case, mode: string, microBatchTokens = 4096) {
  const results = await scoreSamples(decoder, c.samples, { temperature: c.facts.temperature, microBatchTokens })
  const whole = (field: 'logprobs' | 'entropy') => Float32Array.from(results.flatMap((r) => [...r[field]]))
  return {
    logprobs: relativeError(whole('logprobs'), await floats(c.expected, `${mode}.logprobs`)),
    entropy: relativeError(whole('entropy'), await floats(c.expected, `${mode}.entropy`)),
  }
}

export interface GradientErrors {
  /** Of the loss and the norm, relative; undefined where the case has none. */
  loss: number
  norm: number
  /** Worst tensor. */
  worst: number
  worstName: string
  /** Tensors compared, and expected tensors that the decoder does not have. */
  count: number
  missing: string[]
}

/** Errors of loss, norm and every expected gradient. */
export async function gradientErrors(
  decoder: Decoder,
  c: Case,
  mode: 'lora' | 'full',
  lossName: 'cispo' | 'cispo_mask',
  options: { checkpointing?: boolean; microBatchTokens?: number } = {},
): Promise<GradientErrors> {
  const store = decoder.store!
  const { temperature, mask_ratio_low, mask_ratio_high, tokens } = c.facts
  store.zeroGradients()
  const result = await accumulateGradients(
    decoder,
    { step: 0, samples: c.samples, lossTokenCount: tokens },
    {
      loss: await loadLoss(lossName, { mask_ratio_low, mask_ratio_high }),
      temperature,
      checkpointing: options.checkpointing ?? false,
      microBatchTokens: options.microBatchTokens ?? 4096,
    },
  )
  const form = lossName === 'cispo' ? 'clipped' : 'masked'
  const prefix = `${mode}.${form}.grad.`
  const missing = new Set(c.expected.names().filter((name) => name.startsWith(prefix)))
  const count = missing.size
  let [squares, worst, worstName] = [0, 0, '']
  for (const parameter of store.parameters) {
    const gradient = await store.read(parameter, 'gradients')
    for (const value of gradient) squares += value * value
    const name = prefix + parameter.name
    if (!missing.delete(name)) continue
    const sameShape = c.expected.shape(name).join() === parameter.shape.join()
    const error = sameShape ? relativeError(gradient, await floats(c.expected, name)) : Infinity
    if (!(error <= worst)) [worst, worstName] = [error, parameter.name]
  }
  const relative = (got: number, key: string) => {
    const expected = c.facts[`${mode}.${form}.${key}`] as number
    return expected === got ? 0 : Math.abs(got - expected) / Math.abs(expected)
  }
  const [loss, norm] = [relative(result.loss, 'loss'), relative(Math.sqrt(squares), 'grad_norm')]
  return { loss, norm, worst, worstName, count, missing: [...missing] }
}
