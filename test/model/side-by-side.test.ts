/**
 * Weights of q, k, v and of gate, up lie side by side and are multiplied at once, on GPUs gate and up where a pass keeps nothing: with the same bits either way.
 * Those of one by one are held in test/kernels/group.test.ts.
 */
import { afterAll, describe, expect, test } from 'vitest'
import { Tape } from '../../src/autograd/tape.ts'
import { modelShapes, randomModel } from '../../src/bench/shapes.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { capacityOf } from '../../src/gpu/size.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { useMatrixUnits } from '../../src/kernels/common/matrix-units.ts'
import { groupTier } from '../../src/kernels/matmul/group.ts'
import { widenBf16 } from '../../src/model/bf16.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import { decoderHidden, projectionsOf, type Decoder } from '../../src/model/decoder/decoder.ts'
import type { CacheArguments } from '../../src/model/decoder/layer-cache.ts'
import { openModel } from '../../src/model/files/open.ts'
import { LINEAR_MODULES } from '../../src/model/decoder/shapes.ts'
import type { TensorSource } from '../../src/model/types.ts'
import { fixtures, openDecoder } from '../golden/cases.ts'
import { withFacts } from '../facts.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

/** Hidden states of one sequence, and how many dispatches they took. */
async function hidden(
  decoder: Decoder,
  rows: number,
  recording: boolean,
  cache?: CacheArguments,
): Promise<{ values: Float32Array; dispatches: number }> {
  const ids = gpu.upload(
    Uint32Array.from({ length: rows }, (_, i) => (i * 7919) % decoder.config.vocabSize),
    'ids',
  )
  const info = gpu.upload(
    Uint32Array.from({ length: rows * 4 }, (_, i) => (i % 4 === 3 ? Math.floor(i / 4) : 0)),
    'info',
  )
  const tape = new Tape(gpu, recording)
  const before = gpu.dispatches
  const out = decoderHidden(tape, decoder, { rows, ids, info, positions: rows }, { cache })
  const dispatches = gpu.dispatches - before
  const values = await gpu.readF32(out.buffer, capacityOf(out.count))
  tape.discard()
  for (const held of [out.buffer, ids, info]) if (!held.released) held.release()
  return { values, dispatches }
}

const together = (decoder: Decoder): boolean[] =>
  decoder.layers.flatMap((layer) => {
    const [qkv, , gated] = projectionsOf(layer)
    return [!!groupTier(gpu, qkv, false), !!groupTier(gpu, gated, true)]
  })

describe.each(['llama', 'qwen2', 'qwen3'])('%s', (name) => {
  const dir = `${fixtures}golden/${name}`
  test.each(['lora', 'full', 'frozen'] as const)(
    'a pass that keeps nothing has the bits of one that is recorded: %s',
    async (mode) => {
      const decoder = await openDecoder(gpu, `${dir}/model`, mode, { adapterDir: `${dir}/adapter` })
      expect(new Set(together(decoder))).toEqual(new Set([true]))
      for (const rows of [1, 2, 7, 33]) {
        const [kept, plain] = [await hidden(decoder, rows, true), await hidden(decoder, rows, false)]
        expect(plain.values).toEqual(kept.values)
        // Kernels of CPU drivers keep what the way back reads; LoRA's first products have the norm along where nothing is kept.
        if (cpuLanes(gpu).LANES > 0 && mode !== 'lora') expect(plain.dispatches).toBe(kept.dispatches)
        else expect(plain.dispatches).toBeLessThan(kept.dispatches)
      }
      decoder.release()
    },
  )
})

test('as on a GPU: LoRA with RMSNorm and the projections of an input are two dispatches', async () => {
  await withFacts(gpu, { software: false, subgroupSize: 0 }, async () => {
    const dir = `${fixtures}golden/qwen2`
    const decoder = await openDecoder(gpu, `${dir}/model`, 'lora', { adapterDir: `${dir}/adapter` })
    expect(new Set(together(decoder))).toEqual(new Set([true]))
    const { layers } = decoder.config
    // A layer's 2 norms, 12 products of these inputs and SiLU-gate: 7 dispatches where they are recorded, 4 else, and of many rows 6.
    const [kept, plain] = [await hidden(decoder, 7, true), await hidden(decoder, 7, false)]
    expect(plain.values).toEqual(kept.values)
    expect(kept.dispatches - plain.dispatches).toBe(3 * layers)
    const [many, alone] = [await hidden(decoder, 70, true), await hidden(decoder, 70, false)]
    expect(alone.values).toEqual(many.values)
    expect(many.dispatches - alone.dispatches).toBe(layers)
    decoder.release()
  })
})

/** A narrow model whose weights are as wide as matrix units want them for activations that another kernel leaves in f16. */
const narrow = {
  ...modelShapes['qwen3-0.6b'],
  hiddenSize: 256,
  intermediateSize: 512,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 64,
  vocabSize: 64,
}
const none = gpu.facts.matrixUnits.length === 0 ? ' (skipped: this adapter shows no matrix units)' : ''
/** Dispatches of a pass over `narrow` as on a GPU, which has the same bits recorded, not, and over a cache: these three on matrix units, then in float32. */
async function dispatchesOf(rows: number, lora?: LoadOptions['lora']): Promise<number[]> {
  const counts: number[] = []
  await withFacts(gpu, { software: false }, async () => {
    for (const matrixUnits of [true, false]) {
      const decoder = await loadDecoder(gpu, randomModel('narrow', narrow), { round: true, lora, matrixUnits })
      try {
        const { cache, release } = cacheOf(decoder, rows)
        const runs = [
          await hidden(decoder, rows, true),
          await hidden(decoder, rows, false),
          await hidden(decoder, rows, false, cache),
        ]
        release()
        const [kept, ...others] = runs
        for (const { values } of others) expect(values).toEqual(kept.values)
        expect(kept.values.every(Number.isFinite)).toBe(true)
        counts.push(...runs.map(({ dispatches }) => dispatches))
      } finally {
        useMatrixUnits(gpu, false)
        decoder.release()
      }
    }
  })
  return counts
}
test.skipIf(none)(`matrix units: what they multiply in f16 is left by LoRA's first products${none}`, async () => {
  const counts = await dispatchesOf(7, { rank: 8, alpha: 16, dropout: 0, targetModules: [...LINEAR_MODULES], seed: 0 })
  // As many as where nothing has to be in f16.
  expect(counts.slice(0, 3)).toEqual(counts.slice(3))
})

test.skipIf(none)(
  `matrix units: without an adapter their input is made in f16, with the bits of what is staged${none}`,
  async () => {
    const counts = await dispatchesOf(40)
    const staged = [0, 1, 2].map((i) => counts[i] - counts[i + 3])
    // What is recorded keeps its values in float32, and stages them; else only what attention over the batch's own keys gives is staged.
    expect(staged).toEqual([4 * narrow.layers, narrow.layers, 0])
  },
)

/** A cache of float32 for the rows of one sequence, which go to its first rows. */
function cacheOf({ config: { layers, kvHeads, headDim } }: Decoder, rows: number) {
  const room = () => gpu.pool.acquire(rows * kvHeads * headDim * 4, 'cache')
  const slots = gpu.upload(
    Uint32Array.from({ length: 2 * rows }, (_, i) => Math.floor(i / 2)),
    'slots',
  )
  const made = Array.from({ length: layers }, () => ({ k: room(), v: room() }))
  const release = () => [slots, ...made.flatMap(({ k, v }) => [k, v])].forEach((buffer) => buffer.release())
  return { cache: { layers: made, slots, rows }, release }
}

test.each(['llama', 'qwen3'])(
  'RoPE goes along with q, k and v, into a cache too, but where heads have norms: %s',
  async (name) => {
    const run = async (rows: number) => {
      const decoder = await openDecoder(gpu, `${fixtures}golden/${name}/model`, 'frozen', {})
      const { cache, release } = cacheOf(decoder, rows)
      const [own, cached] = [await hidden(decoder, rows, false), await hidden(decoder, rows, false, cache)]
      expect(cached.values).toEqual(own.values)
      // Norms and RoPE of own rows are two dispatches, over a cache one, where a lane holds both values of a pair; else four and three.
      expect(own.dispatches - cached.dispatches).toBe(name === 'qwen3' ? decoder.config.layers : 0)
      release()
      decoder.release()
    }
    await run(7)
    await withFacts(gpu, { software: false, subgroupSize: 0 }, () => run(7))
  },
)

test('weights of two dtypes lie apart, and change nothing', async () => {
  const files = await openModel(`${fixtures}golden/qwen2/model`)
  const { tensors } = files
  const widened = /layers\.0\.(self_attn\.k_proj|mlp\.up_proj)\.weight/
  const mixed: TensorSource = {
    names: () => tensors.names(),
    has: (name) => tensors.has(name),
    shape: (name) => tensors.shape(name),
    close: () => tensors.close(),
    read: async (name, options) => {
      const data = await tensors.read(name, options)
      if (data.dtype !== 'bf16' || !widened.test(name)) return data
      return { dtype: 'f32', shape: data.shape, data: widenBf16(data.data) }
    },
  }
  const [same, apart] = [
    await loadDecoder(gpu, files),
    await loadDecoder(gpu, { name: files.name, config: files.config, tensors: mixed }),
  ]
  files.close()
  expect([projectionsOf(apart.layers[0])[0][1], apart.layers[0].up].map(({ weight }) => weight.bf16)).toEqual([false, false])
  expect(together(apart).slice(0, 3)).toEqual([false, false, true])
  for (const rows of [1, 9]) expect((await hidden(apart, rows, false)).values).toEqual((await hidden(same, rows, false)).values)
  const held = gpu.pool.bytesInUse
  apart.release()
  same.release()
  expect(gpu.pool.bytesInUse).toBeLessThan(held)
})
