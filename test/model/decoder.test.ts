/** What holds of the decoder whatever its numbers are (test/golden has those): nothing depends on how rows are packed, and memory comes back. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Tape } from '../../src/autograd/tape.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import { GpuMemoryError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { capacityOf } from '../../src/gpu/size.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { reloadDecoder } from '../../src/model/decoder/reload.ts'
import { readLora, refreshWeights } from '../../src/model/decoder/trained.ts'
import { decoderHidden, type Checkpointing, type Decoder, type RowBatch } from '../../src/model/decoder/decoder.ts'
import type { CacheArguments, LayerCache } from '../../src/model/decoder/layer-cache.ts'
import { openModel } from '../../src/model/files/open.ts'
import { pack } from '../../src/model/decoder/packed.ts'
import { forwardLogprobs, makeBatch, writeBatch, type DeviceBatch } from '../../src/trainer/device-batch.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { fixtures, openCase, openDecoder, relativeError } from '../golden/cases.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

const dir = `${fixtures}golden/qwen3`
const adapterDir = `${dir}/adapter`
const temperature = 0.8

function sample(ids: number[], promptLength: number, promptKey?: string): TrainingSample {
  return {
    ids: Int32Array.from(ids),
    lossMask: Uint8Array.from(ids, (_, i) => Number(i >= promptLength)),
    inferenceLogprobs: new Float32Array(ids.length).fill(-6),
    advantages: Float32Array.from(ids, (_, i) => Math.sin(i + ids[i])),
    promptKey,
    promptLength,
  }
}

const prompt = [5, 100, 7, 33, 250, 6, 7]
const completions = [[9, 8, 7, 6, 5], [44], [300, 2, 2, 2, 80, 12, 90, 1, 17], [21, 22]]
const grouped = completions.map((c) => sample([...prompt, ...c], prompt.length, 'prompt'))
const alone = completions.map((c) => sample([...prompt, ...c], prompt.length))

describe('a loaded model', () => {
  let decoder: Decoder
  beforeAll(async () => (decoder = await openDecoder(gpu, `${dir}/model`, 'lora', { adapterDir })))
  afterAll(() => decoder.release())

  const score = (samples: TrainingSample[], microBatchTokens = 4096) =>
    scoreSamples(decoder, samples, { temperature, microBatchTokens })
  const gradients = async (
    samples: TrainingSample[],
    options: { microBatchTokens?: number; checkpointing?: Checkpointing } = {},
  ) => {
    const { microBatchTokens = 4096, checkpointing = false } = options
    const loss = await loadLoss('cispo', { mask_ratio_low: 0.125, mask_ratio_high: 8 })
    decoder.store!.zeroGradients()
    const lossTokenCount = samples.reduce((sum, s) => sum + s.lossMask.reduce((a, b) => a + b, 0), 0)
    const batch = { step: 0, samples, lossTokenCount }
    const result = await accumulateGradients(decoder, batch, { loss, temperature, checkpointing, microBatchTokens })
    const found: Float32Array[] = []
    for (const p of decoder.store!.parameters) found.push(await decoder.store!.read(p, 'gradients'))
    return { ...result, gradients: found }
  }

  test('a token has the same bits alone, in a batch, and in any micro-batch', async () => {
    const together = await score(alone)
    expect(await score(alone, 3)).toEqual(together)
    for (const [i, s] of alone.entries()) expect(await score([s])).toEqual([together[i]])
    expect((await score([alone[2], sample([1], 1), sample([3, 4], 1), alone[0]])).filter((_, i) => i % 3 === 0)).toEqual([
      together[2],
      together[0],
    ])
  })

  test('a prompt that is shared changes no bit', async () => {
    expect(await score(grouped)).toEqual(await score(alone))
  })

  test('the gradient is that of separate sequences, in fewer rows', async () => {
    const [shared, separate] = [await gradients(grouped), await gradients(alone)]
    expect(shared.rows).toBe(separate.rows - (completions.length - 1) * prompt.length)
    expect(shared.loss).toBeCloseTo(separate.loss, 6)
    // The sums over rows run in another order.
    for (const [i, g] of shared.gradients.entries()) expect(relativeError(g, separate.gradients[i])).toBeLessThan(1e-5)
  })

  test('the gradient does not change with the size of the micro-batches', async () => {
    const [one, many] = [await gradients(grouped), await gradients(grouped, { microBatchTokens: 12 })]
    expect(one.microBatches).toBe(1)
    expect(many.microBatches).toBeGreaterThan(2)
    expect(many.loss).toBeCloseTo(one.loss, 6)
    for (const [i, g] of many.gradients.entries()) expect(relativeError(g, one.gradients[i])).toBeLessThan(1e-5)
  })

  test('checkpointing changes no bit, and neither does doing it again', async () => {
    const plain = await gradients(grouped)
    const dispatches: number[] = []
    for (const checkpointing of [true, 'keep attention', false] as const) {
      const before = gpu.dispatches
      expect((await gradients(grouped, { checkpointing })).gradients).toEqual(plain.gradients)
      dispatches.push(gpu.dispatches - before)
    }
    // Counted as they are recorded and as they are sent, of all layers but the last: attention, and what is made again at all.
    const [whole, kept, none] = dispatches.map((n) => n / 2 / (decoder.layers.length - 1))
    expect(whole - kept).toBe(1)
    expect(none).toBeLessThan(kept)
  })

  test('all memory is given back, with or without checkpointing, after scores and after gradients', async () => {
    await score(grouped)
    const start = gpu.pool.bytesInUse
    await score(alone)
    expect(gpu.pool.bytesInUse).toBe(start)
    for (const checkpointing of [false, true, 'keep attention'] as const) {
      await gradients(grouped, { checkpointing })
      expect(gpu.pool.bytesInUse).toBe(start)
    }
  })

  test('a cached pass, token by token, has the bits of a whole one', async () => {
    const ids = [...prompt, ...completions[2]]
    const whole = await hidden(rowsAt(ids, 0, ids.length, 0))
    const { layers, kvHeads, headDim } = decoder.config
    const width = kvHeads * headDim
    const rows = 40
    const room = () => gpu.pool.acquire(rows * width * 4, 'cache')
    const cache: LayerCache[] = Array.from({ length: layers }, () => ({ k: room(), v: room() }))
    // The sequence's keys lie in cache rows 11 and on.
    const first = 11
    const parts = [7, 1, 1, 3, 1, 1, 1, 1]
    const got: number[] = []
    let at = 0
    for (const count of parts) {
      const slots = gpu.upload(
        Uint32Array.from({ length: 2 * count }, (_, i) => at + (i >> 1) + (i % 2 === 0 ? first : 0)),
        'slots',
      )
      got.push(...(await hidden(rowsAt(ids, at, count, first), { layers: cache, slots })))
      slots.release()
      at += count
    }
    expect(at).toBe(ids.length)
    expect(Float32Array.from(got)).toEqual(whole)
    for (const { k, v } of cache) for (const buffer of [k, v]) buffer.release()
  })

  /** Rows from .. from + count of one sequence whose keys start at row `own`. */
  function rowsAt(ids: number[], from: number, count: number, own: number): RowBatch & { release: () => void } {
    const info = Uint32Array.from({ length: count * 4 }, (_, i) => [0, 0, own, from + Math.floor(i / 4)][i % 4])
    const buffers = [gpu.upload(Uint32Array.from(ids.slice(from, from + count)), 'ids'), gpu.upload(info, 'info')]
    return {
      rows: count,
      ids: buffers[0],
      info: buffers[1],
      positions: from + count,
      release: () => buffers.forEach((b) => b.release()),
    }
  }

  async function hidden(batch: RowBatch & { release: () => void }, cache?: CacheArguments) {
    const out = decoderHidden(new Tape(gpu, false), decoder, batch, { cache })
    const values = await gpu.readF32(out.buffer, capacityOf(out.count))
    out.drop()
    batch.release()
    return values
  }

  test('sequences longer than any before get a longer rotary table', async () => {
    const ids = Array.from({ length: 600 }, (_, i) => (i * 7919) % decoder.config.vocabSize)
    const [long] = await score([sample(ids, 1)])
    const [short] = await score([sample(ids.slice(0, 50), 1)])
    expect(short.logprobs).toEqual(long.logprobs.slice(0, 50))
  })

  test('a whole step that was recorded gives the same gradients when it is replayed, also on other tokens', async () => {
    const coefficientOf = (count: number) => Float32Array.from({ length: count }, (_, i) => Math.cos(i) / count)
    const packed = pack(grouped, [{ prefix: prompt.length, members: [0, 1, 2, 3] }], 'loss')
    const other = {
      ...packed,
      ids: packed.ids.map((id) => (id * 31 + 5) % decoder.config.vocabSize),
      targets: packed.targets.map((id) => (id + 3) % 300),
    }
    const store = decoder.store!
    const room = (p: typeof packed) => {
      const batch = makeBatch(gpu, { rows: p.rows, scored: p.targets.length })
      writeBatch(gpu, batch, p)
      return batch
    }
    const step = (batch: DeviceBatch, coefficient: ReturnType<typeof gpu.upload>) => {
      store.zeroGradients()
      const tape = new Tape(gpu, true)
      const out = forwardLogprobs(tape, decoder, batch, { temperature, checkpointing: true })
      out.backward(coefficient)
      tape.backward()
      out.release()
    }
    const read = async () => {
      const found: Float32Array[] = []
      for (const p of store.parameters) found.push(await store.read(p, 'gradients'))
      return found
    }
    const eager: Float32Array[][] = []
    for (const p of [packed, other]) {
      const [batch, coefficient] = [room(p), gpu.upload(coefficientOf(p.targets.length), 'coefficient')]
      step(batch, coefficient)
      eager.push(await read())
      batch.release()
      coefficient.release()
    }
    expect(relativeError(eager[0][0], eager[1][0])).toBeGreaterThan(0.1)

    const [batch, coefficient] = [room(packed), gpu.upload(coefficientOf(packed.targets.length), 'coefficient')]
    const plan = gpu.record(() => step(batch, coefficient))
    const made = gpu.pool.buffersMade
    gpu.replay(plan)
    expect(await read()).toEqual(eager[0])
    gpu.write(batch.rows.ids, other.ids)
    gpu.write(batch.targets, other.targets)
    gpu.replay(plan)
    expect(await read()).toEqual(eager[1])
    gpu.write(batch.rows.ids, packed.ids)
    gpu.write(batch.targets, packed.targets)
    gpu.replay(plan)
    expect(await read()).toEqual(eager[0])
    expect(gpu.pool.buffersMade).toBe(made)
    batch.release()
    coefficient.release()
  })
})

test('a fresh adapter changes nothing, is made from its seed, and is read back without its padding', async () => {
  const files = await openModel(`${dir}/model`)
  const lora = { rank: 12, alpha: 24, dropout: 0, targetModules: ['q_proj', 'down_proj'], seed: 3 }
  const load = (seed: number) => loadDecoder(gpu, files, { lora: { ...lora, seed } })
  const [plain, a, again, b] = [await loadDecoder(gpu, files), await load(3), await load(3), await load(4)]
  files.close()
  const scored = await scoreSamples(plain, alone, { temperature, microBatchTokens: 4096 })
  expect(await scoreSamples(a, alone, { temperature, microBatchTokens: 4096 })).toEqual(scored)
  const [pairs, samePairs, otherPairs] = [await readLora(a), await readLora(again), await readLora(b)]
  expect([...pairs.keys()].map((path) => path.split('.').at(-1))).toEqual(
    Array.from({ length: plain.config.layers }, () => ['q_proj', 'down_proj']).flat(),
  )
  const path = 'model.layers.0.mlp.down_proj'
  const { A, B, r } = pairs.get(path)!
  expect([r, A.length, B.length]).toEqual([12, 12 * plain.config.intermediateSize, 12 * plain.config.hiddenSize])
  expect(B.every((v) => v === 0)).toBe(true)
  // Uniform within 1 / sqrt(inputs): its deviation is that over sqrt(3).
  const limit = 1 / Math.sqrt(plain.config.intermediateSize)
  expect(Math.max(...A.map(Math.abs))).toBeLessThanOrEqual(limit)
  const deviation = Math.sqrt(A.reduce((sum, v) => sum + v * v, 0) / A.length)
  expect(deviation / (limit / Math.sqrt(3))).toBeGreaterThan(0.95)
  expect(deviation / (limit / Math.sqrt(3))).toBeLessThan(1.05)
  expect(samePairs.get(path)!.A).toEqual(A)
  expect(otherPairs.get(path)!.A).not.toEqual(A)
  for (const decoder of [plain, a, again, b]) decoder.release()
})

test('wholly trained: the working copies follow the masters, rounded to the dtype of the files', async () => {
  const decoder = await openDecoder(gpu, `${dir}/model`, 'full')
  const score = async () => (await scoreSamples(decoder, alone, { temperature, microBatchTokens: 4096 }))[0].logprobs
  const before = await score()
  refreshWeights(decoder)
  expect(await score()).toEqual(before)
  const parameter = decoder.store!.parameters.find((p) => p.name === 'model.layers.0.mlp.up_proj.weight')!
  const values = await decoder.store!.read(parameter)
  // Less than half a bf16 step of any value: rounded away.
  decoder.store!.write(
    parameter,
    values.map((v) => v * (1 + 2 ** -10)),
  )
  refreshWeights(decoder)
  expect(await score()).toEqual(before)
  decoder.store!.write(
    parameter,
    values.map((v) => v * 1.5),
  )
  refreshWeights(decoder)
  expect(relativeError(await score(), before)).toBeGreaterThan(1e-3)
  decoder.release()
})

test('a model that does not fit gives back what was made of it, and the device can be used as before', async () => {
  const files = await openModel(`${dir}/model`)
  gpu.pool.trim()
  const [bytesInUse, reserved] = [gpu.pool.bytesInUse, gpu.pool.bytesReserved]
  const whole = await loadDecoder(gpu, files, { full: true })
  const bytes = gpu.pool.bytesReserved - reserved
  whole.release()
  try {
    for (const share of [0.05, 0.3, 0.6, 0.9]) {
      gpu.pool.limitBytes = reserved + share * bytes
      await expect(loadDecoder(gpu, files, { full: true }), `${share}`).rejects.toThrow(GpuMemoryError)
      expect(gpu.pool.bytesInUse, `${share}`).toBe(bytesInUse)
    }
  } finally {
    gpu.pool.limitBytes = Infinity
  }
  await gpu.sync()
  files.close()
})

test('rotary tables of two kinds of layers are made again if there was memory for only one', async () => {
  const { pool } = gpu
  const { bytesInUse } = pool
  const decoder = await openDecoder(gpu, `${fixtures}odd/gemma3/model`, 'frozen')
  const { rotary, config } = decoder
  pool.trim()
  pool.limitBytes = pool.bytesReserved + config.headDim * 4 * 256
  expect(() => rotary.table(256)).toThrow(GpuMemoryError)
  pool.limitBytes = Infinity
  const tables = [rotary.table(256), rotary.table(256, config.slidingLayers![0])]
  expect(tables.map(({ released }) => released)).toEqual([false, false])
  expect(tables[0]).not.toBe(tables[1])
  decoder.release()
  expect(pool.bytesInUse).toBe(bytesInUse)
})

test('the head of a tied model gives its gradient to the embedding', async () => {
  const c = await openCase(`${fixtures}odd/llama-odd`)
  const decoder = await openDecoder(gpu, `${fixtures}odd/llama-odd/model`, 'full')
  expect(decoder.config.tieWordEmbeddings).toBe(true)
  expect(decoder.store!.parameters.filter((p) => p.rows === decoder.config.vocabSize).map((p) => p.name)).toEqual([
    'model.embed_tokens.weight',
  ])
  expect(decoder.head.trained!.weight).toBe(decoder.embedding.trained!.weight)
  expect(c.expected.has('full.clipped.grad.lm_head.weight')).toBe(false)
  decoder.release()
})

test('a head beside the embedding that it is tied to must be the same: transformers 4 and 5 run different ones', async () => {
  const files = await openModel(`${fixtures}odd/llama-odd/model`)
  const { tensors } = files
  const withHead = (isOther: boolean) => ({
    ...files,
    tensors: {
      ...tensors,
      names: () => [...tensors.names(), 'lm_head.weight'],
      has: (name: string) => name === 'lm_head.weight' || tensors.has(name),
      shape: (name: string) => tensors.shape(name),
      read: async (name: string, options?: { round?: boolean }) => {
        if (name !== 'lm_head.weight') return await tensors.read(name, options)
        const head = await tensors.read('model.embed_tokens.weight', options)
        if (isOther) head.data[5] += 1
        return head
      },
      close: () => {},
    },
  })
  const decoder = await loadDecoder(gpu, withHead(false))
  const refusal = /tie_word_embeddings is true in config.json, and lm_head.weight is another matrix/
  await expect(loadDecoder(gpu, withHead(true))).rejects.toThrow(refusal)
  await reloadDecoder(decoder, withHead(false))
  await expect(reloadDecoder(decoder, withHead(true))).rejects.toThrow(refusal)
  decoder.release()
  files.close()
})
