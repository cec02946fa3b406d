/** Shared by the trainer's tests: a golden model on the device, its batch, a trainer for it, and comparisons. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll } from 'vitest'
import type { TrainingBatch, TrainingSample } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel, type ModelFiles } from '../../src/model/files/open.ts'
import { readAdapter, type LoraConfig } from '../../src/model/files/peft.ts'
import { inverseFrequencies } from '../../src/model/decoder/rope.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { Trainer, type TrainerOptions } from '../../src/trainer/trainer.ts'
import { newFolder } from '../folders.ts'

const golden = fileURLToPath(new URL('../fixtures/golden', import.meta.url))
export const goldenPath = (...parts: string[]): string => join(golden, ...parts)

/** Settings and expected losses of a golden case. */
export interface GoldenCase {
  temperature: number
  mask_ratio_low: number
  mask_ratio_high: number
  tokens: number
  lr: number
  weight_decay: number
  betas: [number, number]
  eps: number
  max_grad_norm: number
  lora_rank: number
  lora_alpha: number
  [value: string]: unknown
}

/** Opens a device with checks on, which is closed after the tests of the file. */
export function openGpu(): { gpu: Promise<Gpu> } {
  const gpu = Gpu.open({ checks: true })
  afterAll(async () => (await gpu).close())
  return { gpu }
}

/** Creates a folder that is removed after the tests of the file. */
export function tempFolder(): string {
  return newFolder('trainer')
}

/**
 * The config with rotary frequencies rounded to bf16. The adapter cases of llama, qwen2 and qwen3 were computed with them, because of a mistake in
 * the script that made them.
 */
export function withRoundedFrequencies(config: ModelConfig): ModelConfig {
  const rounded = widenBf16(roundToBf16(inverseFrequencies(config)))
  const base = inverseFrequencies({ ...config, ropeScaling: { type: 'default' } })
  return { ...config, ropeScaling: { type: 'factors', factors: base.map((x, i) => x / rounded[i]) } }
}

export interface Case {
  settings: GoldenCase
  files: ModelFiles
  batch: TrainingBatch
  expected: (name: string) => Promise<Float32Array>
  hasExpected: (name: string) => boolean
}

export async function openCase(name: string): Promise<Case> {
  const settings = JSON.parse(readFileSync(goldenPath(name, 'case.json'), 'utf8')) as GoldenCase
  const source = await openSafetensors(goldenPath(name, 'expected.safetensors'))
  afterAll(() => source.close())
  return {
    settings,
    files: await openModel(goldenPath(name, 'model')),
    batch: batchOf(await readBatch(goldenPath(name, 'batch.json'))),
    expected: async (tensor) => (await source.readFloat32(tensor)).data,
    hasExpected: (tensor) => source.has(tensor),
  }
}

/** Loads a golden model with its adapter, or for full fine-tuning. */
export async function loadCase(gpu: Gpu, name: string, how: 'adapter' | 'full', extra: LoadOptions = {}): Promise<Decoder> {
  const { files } = await openCase(name)
  if (how === 'full') return await loadDecoder(gpu, files, { full: true, ...extra })
  const adapter = await readAdapter(goldenPath(name, 'adapter'))
  return await loadDecoder(gpu, { ...files, config: withRoundedFrequencies(files.config) }, { adapter, ...extra })
}

export const batchOf = (samples: TrainingSample[], step = 1): TrainingBatch => ({
  step,
  samples,
  lossTokenCount: samples.reduce((sum, s) => sum + s.lossMask.reduce((a, b) => a + b, 0), 0),
})

export const bounds = { mask_ratio_low: 0.125, mask_ratio_high: 8 }

/** Trainer options for tests, with changes. */
export async function trainerOptions(runFolder: string, options: Partial<TrainerOptions> = {}): Promise<TrainerOptions> {
  return {
    loss: await loadLoss('cispo', bounds),
    temperature: 0.8,
    microBatchTokens: 256,
    checkpointing: true,
    optimizer: { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.01, maxGradNorm: 1 },
    schedule: { type: 'constant', learningRate: 1e-3, warmupSteps: 0, maxSteps: 100 },
    seed: 1,
    runFolder,
    ...options,
  }
}

export const freshLora = (
  targetModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
  dropout = 0,
) => ({
  lora: { rank: 4, alpha: 8, dropout, targetModules, seed: 3 },
})

export const loraConfig: LoraConfig = {
  r: 4, loraAlpha: 8, loraDropout: 0, useRslora: false, baseModel: 'tiny',
  targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
} // prettier-ignore

/** ||a - b|| / ||b||; 0 if both are zero. */
export function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) throw new Error(`${a.length} values against ${b.length}`)
  let [difference, norm] = [0, 0]
  for (let i = 0; i < b.length; i++) {
    difference += (a[i] - b[i]) ** 2
    norm += b[i] ** 2
  }
  return difference === 0 ? 0 : Math.sqrt(difference / norm)
}

/** Reads the values or gradients of all parameters, by name. */
export async function readAll(decoder: Decoder, what: 'values' | 'gradients' = 'values'): Promise<Map<string, Float32Array>> {
  const all = new Map<string, Float32Array>()
  for (const parameter of decoder.store!.parameters) all.set(parameter.name, await decoder.store!.read(parameter, what))
  return all
}

/** The largest distance among all parameters, with the parameter's name. */
export function worst(a: Map<string, Float32Array>, b: Map<string, Float32Array>): { name: string; distance: number } {
  let found = { name: '', distance: 0 }
  for (const [name, value] of a) {
    const d = distance(value, b.get(name)!)
    if (!(d <= found.distance)) found = { name, distance: d }
  }
  return found
}

/** Runs `fn` with a trainer, which is released afterwards. */
export async function withTrainer<T>(
  decoder: Decoder,
  options: TrainerOptions,
  fn: (trainer: Trainer) => Promise<T>,
): Promise<T> {
  const trainer = new Trainer(decoder, options)
  try {
    return await fn(trainer)
  } finally {
    trainer.release()
  }
}
