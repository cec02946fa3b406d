/** Weights of q, k, v and of gate, up lie side by side and are multiplied at once where a pass keeps nothing: with the bits of one by one. */
import { afterAll, describe, expect, test } from 'vitest'
import { Tape } from '../../src/autograd/tape.ts'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { capacityOf } from '../../src/gpu/size.ts'
import { takesGroup } from '../../src/kernels/matmul/group.ts'
import { widenBf16 } from '../../src/model/bf16.ts'
import { loadDecoder } from '../../src/model/decoder-load.ts'
import { decoderHidden, type Decoder } from '../../src/model/decoder.ts'
import { openModel } from '../../src/model/open.ts'
import type { TensorSource } from '../../src/model/types.ts'
import { fixtures, openDecoder } from '../golden/cases.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

/** Hidden states of one sequence, and how many dispatches they took. */
async function hidden(decoder: Decoder, rows: number, recording: boolean): Promise<{ values: Float32Array; dispatches: number }> {
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
  const out = decoderHidden(tape, decoder, { rows, ids, info, positions: rows })
  const dispatches = gpu.dispatches - before
  const values = await gpu.readF32(out.buffer, capacityOf(out.count))
  tape.discard()
  for (const held of [out.buffer, ids, info]) if (!held.released) held.release()
  return { values, dispatches }
}

const together = (decoder: Decoder): boolean[] =>
  decoder.layers.flatMap(({ q, k, v, gate, up }) => [takesGroup(gpu, [q, k, v]), takesGroup(gpu, [gate, up])])

/** With the facts of another adapter, where it is another's kernels that are tested. */
async function as(facts: Partial<GpuFacts>, fn: () => Promise<void>): Promise<void> {
  const own = gpu.facts
  Object.assign(gpu, { facts: { ...own, ...facts } })
  try {
    await fn()
  } finally {
    Object.assign(gpu, { facts: own })
  }
}

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
        expect(plain.dispatches).toBeLessThan(kept.dispatches)
      }
      decoder.release()
    },
  )
})

test('as on a GPU: RMSNorm, LoRA and the projections of an input are two dispatches', async () => {
  await as({ software: false, subgroupSize: 0 }, async () => {
    const dir = `${fixtures}golden/qwen2`
    const decoder = await openDecoder(gpu, `${dir}/model`, 'lora', { adapterDir: `${dir}/adapter` })
    expect(new Set(together(decoder))).toEqual(new Set([true]))
    const { layers } = decoder.config
    // A layer's 2 norms, 12 products of these inputs and SiLU-gate: 7 dispatches where they are recorded, 4 of few rows else.
    const [kept, plain] = [await hidden(decoder, 7, true), await hidden(decoder, 7, false)]
    expect(plain.values).toEqual(kept.values)
    expect(kept.dispatches - plain.dispatches).toBe(3 * layers)
    decoder.release()
  })
})

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
  expect(apart.layers.map(({ k, up }) => [k.weight.bf16, up.weight.bf16])[0]).toEqual([false, false])
  expect(together(apart).slice(0, 3)).toEqual([false, false, true])
  for (const rows of [1, 9]) expect((await hidden(apart, rows, false)).values).toEqual((await hidden(same, rows, false)).values)
  const held = gpu.pool.bytesInUse
  apart.release()
  same.release()
  expect(gpu.pool.bytesInUse).toBeLessThan(held)
})
