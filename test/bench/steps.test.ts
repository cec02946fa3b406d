/** Whole steps and decode at the smallest size: their rows, and that a wrong model is not timed. */
import { readdirSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { randomFloats } from '../../src/bench/data.ts'
import { benchDecode } from '../../src/bench/decode.ts'
import { measurePeaks, peakOf, type Peaks } from '../../src/bench/peaks.ts'
import { referenceLogprobs } from '../../src/bench/reference.ts'
import { runBench } from '../../src/bench/run.ts'
import { modelFor, modelShapes, randomModel } from '../../src/bench/shapes.ts'
import { weightCount } from '../../src/model/decoder/shapes.ts'
import { benchStep, loraOptions, randomSamples, stepKinds } from '../../src/bench/step.ts'
import { kernelShares, modelFlops } from '../../src/bench/usage.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { Engine } from '../../src/inference/engine.ts'
import type { EngineStats } from '../../src/inference/types.ts'
import { loadDecoder, type ModelTensors } from '../../src/model/decoder/load.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { newFolder } from '../folders.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
let peaks: Peaks
beforeAll(async () => {
  peaks = await measurePeaks(gpu, { repeats: 1, seconds: 0.01 })
})
const small = { ...modelShapes.tiny, layers: 2, vocabSize: 300 }
const size = { sequences: 2, length: 9 }

/** Every reading of `tensor` after the first gives other weights. */
function changing(tensor: string): ModelTensors {
  const files = randomModel('changing', small)
  let reads = 0
  const read: ModelTensors['tensors']['read'] = async (name, options) => {
    const data = await files.tensors.read(name, options)
    if (name === tensor && reads++ > 0) data.data.reverse()
    return data
  }
  return { ...files, tensors: { ...files.tensors, read } }
}

/** Vectors that are not all ones; decays (A_log) of some tokens' reach. */
function varied(files: ModelTensors): ModelTensors {
  const read: ModelTensors['tensors']['read'] = async (name, options) => {
    const { shape } = await files.tensors.read(name, options)
    if (shape.length === 2) return await files.tensors.read(name, options)
    const values = randomFloats(
      files.tensors.shape(name).reduce((a, b) => a * b, 1),
      name,
    )
    return { dtype: 'f32', shape, data: values.map((value) => value / 4 + (name.endsWith('A_log') ? -3 : 1)) }
  }
  return { ...files, tensors: { ...files.tensors, read } }
}

describe('steps', () => {
  test.each(stepKinds)('%s', async (kind) => {
    const row = await benchStep(gpu, randomModel('small', small), kind, size, peaks, 1)
    expect(row).toMatchObject({ group: 'step', name: kind, model: 'small (random weights)', ...size })
    expect(row.tokensPerSecond).toBeCloseTo(18 / row.seconds)
    for (const value of [row.mfu, row.peakBytes, row.rssBytes]) expect(value).toBeGreaterThan(0)
    expect(row.error).toBeLessThan(1e-5)
    if (!gpu.facts.timestamps) return
    const shares = Object.values(row.kernels!.byFamily)
    expect(shares.reduce((a, b) => a + b, 0)).toBeCloseTo(1)
    expect(row.kernels!.byFamily.matmul).toBeGreaterThan(0)
    expect(row.idleShare).toBeLessThanOrEqual(1)
  })
  test('scoring with other weights than the files have is not timed', async () => {
    const files = changing('model.layers.1.mlp.up_proj.weight')
    await expect(benchStep(gpu, files, 'score', size, peaks, 1)).rejects.toThrow(
      /^step score of changing .*: the log-probability of token 1 is/,
    )
  })
  test('gradient checkpointing takes less memory', async () => {
    const files = randomModel('small', { ...small, layers: 6 })
    const bytes: number[] = []
    for (const checkpointing of [false, true]) {
      const row = await benchStep(gpu, files, 'lora', { sequences: 4, length: 64, checkpointing }, peaks, 1)
      bytes.push(row.peakBytes)
    }
    expect(bytes[1]).toBeLessThan(bytes[0])
  })
  test('as many are timed as --repeats says', async () => {
    const sync = vi.spyOn(gpu, 'sync')
    const asked = { models: ['tiny'], tokens: 8, repeats: 3, versions: {}, command: '' }
    const { rows } = await runBench(gpu, { topics: ['step'], ...asked })
    expect(rows).toHaveLength(stepKinds.length)
    expect(sync.mock.calls.filter(([name]) => name === 'before')).toHaveLength(3 * stepKinds.length)
    sync.mockRestore()
  })
  test('no folder is made that Ctrl-C would leave behind', async () => {
    const folder = newFolder('interrupted')
    vi.stubEnv('TMPDIR', folder)
    const found: string[] = []
    const sync = vi.spyOn(gpu, 'sync').mockImplementation(async (name) => {
      found.push(...readdirSync(folder))
      await Gpu.prototype.sync.call(gpu, name)
    })
    try {
      await benchStep(gpu, randomModel('small', small), 'lora', size, peaks, 1)
      expect(sync).toHaveBeenCalled()
      expect(found).toEqual([])
    } finally {
      sync.mockRestore()
      vi.unstubAllEnvs()
    }
  })
  test('nothing is left on the device', () => {
    expect(gpu.pool.bytesInUse).toBe(0)
  })
})

test('decode: a row for a number of sequences, its tokens scored', async () => {
  const decoder = await loadDecoder(gpu, randomModel('small', small), { round: true, lora: loraOptions })
  const row = await benchDecode(decoder, { sequences: 3, shared: 2, promptTokens: 7, tokens: 10 }, peaks, 1)
  decoder.release()
  expect(row).toMatchObject({ group: 'decode', sequences: 3, promptTokens: 7 })
  for (const value of [row.decodeTokensPerSecond, row.tokensPerSecond, row.stepMs, row.dispatches, row.mfu])
    expect(value).toBeGreaterThan(0)
  expect(row.decodeTokensPerSecond).toBeCloseTo((3 * 1000) / row.stepMs)
  expect(row.error).toBeLessThan(1e-5)
})

test('decode: only layers with attention count operations of attention', async () => {
  const { qwen35 } = modelShapes['qwen3.5-0.8b']
  const config: ModelConfig = {
    ...small,
    family: 'qwen3_5_text',
    normsFromOne: true,
    qwen35: { ...qwen35!, deltaLayers: [0], keyHeads: 2, valueHeads: 2, keyDim: 16, valueDim: 16 },
    rotaryDim: 8,
  }
  const decoder = await loadDecoder(gpu, randomModel('hybrid', config), { round: true })
  try {
    const row = await benchDecode(decoder, { sequences: 2, shared: 1, promptTokens: 40, tokens: 10 }, peaks, 1)
    const each = (row.mfu * peakOf(peaks.fma) * 1e9 * row.stepMs) / 1000 / 2
    // 45 keys on average, which one layer attends to beside the token itself.
    expect(each).toBeCloseTo(modelFlops(config, [1], 1, 'nothing') + 4 * config.heads * config.headDim * 45, 0)
  } finally {
    decoder.release()
  }
})

test('decode: the steps that are timed compute no prompts, and have a token of every sequence', async () => {
  const decoder = await loadDecoder(gpu, randomModel('small', small), { round: true })
  const stats = vi.spyOn(Engine.prototype, 'stats')
  try {
    // Prompts of 256 tokens a step: four steps. And rows that fill their pages to the last.
    for (const [promptTokens, tokens] of [
      [100, 12],
      [20, 12],
    ]) {
      stats.mockClear()
      await benchDecode(decoder, { sequences: 8, shared: 1, promptTokens, tokens }, peaks, 1)
      const [from, to] = stats.mock.results.map(({ value }) => value as EngineStats)
      expect(to.prefillTokens).toBe(from.prefillTokens)
      const steps = to.decodeSteps - from.decodeSteps
      expect(steps).toBeGreaterThanOrEqual(tokens - Math.ceil((8 * promptTokens) / 256) - 1)
      expect(to.tokensGenerated - from.tokensGenerated).toBe(8 * steps)
    }
    await expect(benchDecode(decoder, { sequences: 8, shared: 1, promptTokens: 400, tokens: 8 }, peaks, 1)).rejects.toThrow(
      /^8 tokens of each sequence are too few: the first sequence ends before the last of 8 prompts is computed\.$/,
    )
  } finally {
    stats.mockRestore()
    decoder.release()
  }
})

test.each([
  ['qwen3', {}],
  [
    'llama, wide groups, head of its own',
    { family: 'llama', qkNorm: false, heads: 6, kvHeads: 1, headDim: 16, tieWordEmbeddings: false },
  ],
  ['qwen2, biases', { family: 'qwen2', qkNorm: false, qkvBias: true }],
  ['stretched positions', { ropeScaling: { type: 'linear', factor: 4 } }],
  ['a window in some layers', { family: 'qwen2', qkNorm: false, slidingWindow: 3, slidingLayers: [1] }],
  ['smollm3, a layer that turns nothing', { family: 'smollm3', qkNorm: false, layersWithoutRope: [1] }],
  [
    'gemma, a window',
    {
      family: 'gemma3_text',
      activation: 'gelu',
      norms: 'around',
      normsFromOne: true,
      embeddingScale: 8,
      embeddingScaleRounded: true,
      attentionScale: 20 ** -0.5,
      slidingLayers: [0],
      slidingWindow: 3,
      localRopeTheta: 100,
    },
  ],
  [
    'granite',
    { family: 'granite', qkNorm: false, embeddingScale: 7.3, attentionScale: 0.3, residualScale: 0.27, logitsScaling: 0.6 },
  ],
  [
    'granite 4, gate and up in one matrix',
    {
      family: 'granitemoehybrid',
      qkNorm: false,
      fused: ['gate_up_proj'],
      attentionScale: 0.3,
      residualScale: 0.27,
      layersWithoutRope: [0, 1],
    },
  ],
  [
    'qwen3.5',
    {
      family: 'qwen3_5_text',
      normsFromOne: true,
      qwen35: { deltaLayers: [0], keyHeads: 2, valueHeads: 4, keyDim: 16, valueDim: 8, taps: 4 },
      rotaryDim: 8,
    },
  ],
  ['olmo 2, norms after', { family: 'olmo2', norms: 'after', qkNormWhole: true }],
  [
    'olmo 3, yarn where there is no window',
    {
      family: 'olmo3',
      norms: 'after',
      qkNormWhole: true,
      slidingLayers: [0],
      slidingWindow: 3,
      localRopeTheta: 100,
      ropeScaling: {
        type: 'yarn',
        factor: 4,
        attentionFactor: 1.3,
        betaFast: 4,
        betaSlow: 1,
        truncate: true,
        originalMaxPositionEmbeddings: 64,
      },
    },
  ],
  ['lfm2', { family: 'lfm2', shortConv: { layers: [0], taps: 3 } }],
] as [string, Partial<ModelConfig>][])('the float64 pass and the kernels agree: %s', async (_, change) => {
  const files = varied(randomModel('small', { ...small, ...change }))
  const [sample] = randomSamples({ sequences: 1, length: 11 }, 300)
  const want = await referenceLogprobs(files, [...sample.ids])
  const decoder = await loadDecoder(gpu, files, { round: true })
  const [{ logprobs }] = await scoreSamples(decoder, [sample], { temperature: 1, microBatchTokens: 64 })
  decoder.release()
  want.forEach((value, i) => expect(Math.abs(logprobs[i + 1] - value)).toBeLessThan(1e-5 * Math.max(1, Math.abs(value))))
})

test('shapes: weights as their models have them, random ones the same each time, others refused', async () => {
  const millions = (name: string) => Math.round(weightCount(modelShapes[name]) / 1e5) / 10
  expect(millions('smollm2-135m')).toBe(134.5)
  expect(millions('qwen3-0.6b')).toBe(596)
  expect(millions('qwen3-1.7b')).toBe(1720.6)
  expect(millions('qwen3-4b')).toBe(4022.5)
  expect(millions('qwen3.5-0.8b')).toBe(752.4)
  expect(millions('gemma-3-270m')).toBe(268.1)
  expect(millions('olmo-2-1b')).toBe(1484.9)
  expect(millions('lfm2-350m')).toBe(354.5)
  expect(millions('granite-4.0-350m')).toBe(352.4)
  const [a, b] = await Promise.all(
    ['tiny', 'tiny'].map(async (name) => await (await modelFor(name)).tensors.read('model.layers.0.mlp.up_proj.weight')),
  )
  expect(a).toEqual(b)
  const other = await (await modelFor('tiny')).tensors.read('model.layers.1.mlp.up_proj.weight')
  expect(other).not.toEqual(a)
  await expect(modelFor('qwen3-4B')).rejects.toThrow(
    '--model qwen3-4B is neither a file or folder here nor a shape with random weights, which are tiny, smollm2-135m, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3.5-0.8b, gemma-3-270m, olmo-2-1b, lfm2-350m, granite-4.0-350m. Did you mean qwen3-4b?',
  )
})

test('operations of a pass, by hand', () => {
  const config = modelShapes.tiny
  const inner = weightCount(config) - 512 * 128
  const attention = 4 * 4 * 4 * 32 * (3 + 6)
  expect(modelFlops(config, [2, 3], 4, 'nothing')).toBe(2 * inner * 5 + 2 * 512 * 128 * 4 + attention)
  expect(modelFlops(config, [2, 3], 4, 'lora')).toBe(4 * inner * 5 + 4 * 512 * 128 * 4 + 3 * attention)
  expect(modelFlops(config, [2, 3], 4, 'full')).toBe(6 * inner * 5 + 6 * 512 * 128 * 4 + 3 * attention)
})

test('shares of kernels by their folders, a step at a time', () => {
  const times = [
    { label: 'matmul/tile(A=1)', calls: 4, milliseconds: 6 },
    { label: 'matmul/units(A=1)', calls: 2, milliseconds: 2 },
    { label: 'src/trainer/losses/cispo(PER=1)', calls: 2, milliseconds: 2 },
  ]
  const { byFamily, longest, totalMs } = kernelShares(times, 2)
  expect(byFamily).toEqual({ matmul: 0.8, losses: 0.2 })
  expect(longest[0]).toEqual({ label: 'matmul/tile(A=1)', calls: 2, ms: 3, share: 0.6 })
  expect(totalMs).toBe(5)
})
