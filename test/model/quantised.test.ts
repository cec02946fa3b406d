/** Models whose layers are held in blocks: the very numbers of the same values in bf16, in less memory. */
import '../gpu/optimised.ts'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { hashSeed, Random } from '../../src/common/random.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder, type LoadOptions, type ModelTensors } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { blocksOf, quantiseQ8 } from '../../src/model/decoder/quantise.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import { linearShapes } from '../../src/model/decoder/shapes.ts'
import { engineOf, sampling } from '../inference/helpers.ts'
import { batchOf, freshLora, readAll, trainerOptions, withTrainer } from '../trainer/helpers.ts'
import { inEightBits, quantisedFormats, widened, writeQuantisedGguf } from './blocks.ts'
import { fixtures, golden, newFolder, smollm2, userErrorOf, withoutSmollm2 } from './helpers.ts'
import { withFacts } from '../facts.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const dir = newFolder()
const path = join(dir, 'mixed.gguf')
writeQuantisedGguf(path, 'mixed')

/** What a model samples, what two steps of training make of its adapter, and what it samples then. */
async function played(files: ModelTensors, options: LoadOptions, { tokens = 8, checkpointing = true } = {}) {
  const before = gpu.pool.bytesInUse
  const decoder = await loadDecoder(gpu, files, { ...freshLora(), round: true, ...options })
  const bytes = gpu.pool.bytesInUse - before
  const engine = engineOf(decoder)
  const random = new Random(hashSeed('played'))
  const ids = (length: number) => Array.from({ length }, () => random.int(files.config.vocabSize))
  const prompts = [ids(5), ids(9), ids(3)]
  const sampled = () =>
    Promise.all(
      prompts.map(async (promptIds, seed) => {
        const { ids, logprobs } = await engine.generate({ promptIds, sampling: sampling({ max_tokens: tokens, seed }) })
        return { ids, logprobs }
      }),
    )
  const first = await sampled()
  const samples = prompts.map((prompt, i) => {
    const all = [...prompt, ...first[i].ids]
    const loss = all.map((_, at) => Number(at >= prompt.length))
    return {
      ids: Int32Array.from(all),
      lossMask: Uint8Array.from(loss),
      inferenceLogprobs: Float32Array.from(all, (_, at) => first[i].logprobs[at - prompt.length] ?? 0),
      advantages: Float32Array.from(loss, (on) => on * (i - 1)),
    }
  })
  const trained = await withTrainer(decoder, await trainerOptions(dir, { checkpointing }), async (trainer) => {
    for (const step of [1, 2]) await trainer.trainStep(batchOf(samples, step))
    return await readAll(decoder)
  })
  engine.publish(2)
  const second = await sampled()
  await engine.close()
  decoder.release()
  expect(gpu.pool.bytesInUse).toBe(before)
  return { bytes, numbers: { first, trained, second } }
}

test('of a GGUF of all formats as of one that is widened: tokens, log-probabilities and the adapter after two steps', async () => {
  const files = await openModel(path)
  const { formats, values } = blocksOf(files.config, files.tensors, 'gguf')
  expect(formats.toSorted()).toEqual(quantisedFormats.map(({ name }) => name).toSorted())
  const linear = [...linearShapes(files.config).values()].reduce((sum, [rows, columns]) => sum + rows * columns, 0)
  expect(values).toBe(linear - 128 * 256)
  for (const facts of [{}, { software: false, subgroupSize: 0 }]) {
    await withFacts(gpu, facts, async () => {
      const [plain, held] = [await played(files, {}), await played(files, { quantization: 'gguf' })]
      expect(plain.numbers.first[0].ids).not.toEqual(plain.numbers.second[0].ids)
      expect(held.numbers).toEqual(plain.numbers)
    })
  }
  const [plain, kept] = [await played(files, {}), await played(files, { quantization: 'gguf' }, { checkpointing: false })]
  expect(kept.numbers).toEqual(plain.numbers)
  files.close()
})

test('8-bit blocks are the bytes of gguf-py', async () => {
  const source = await openSafetensors(join(fixtures, 'golden-quantised/q8_0.safetensors'))
  const { data } = await source.readFloat32('values')
  expect(quantiseQ8(data)).toEqual((await source.readRaw('bytes')).data)
  source.close()
})

test('what is not finite makes its block of 8 bits NaN, and no other', () => {
  const q8 = quantisedFormats.find(({ name }) => name === 'Q8_0')!
  for (const bad of [NaN, Infinity, -Infinity]) {
    const values = new Float32Array(96).fill(0.5)
    values[40] = bad
    const out = widened(q8, quantiseQ8(values))
    expect([...out.subarray(32, 64)].every(Number.isNaN)).toBe(true)
    expect([...out.subarray(0, 32), ...out.subarray(64)].every((v) => Math.abs(v - 0.5) < 1e-3)).toBe(true)
  }
})

describe.each(['llama', 'qwen2', 'qwen3'])('q8_0 of the golden %s', (name) => {
  test('has the numbers of its weights rounded to 8 bits', async () => {
    const files = await openModel(join(golden, name, 'model'))
    const [held, plain] = [
      await played(files, { quantization: 'q8_0' }),
      await played({ ...files, tensors: inEightBits(files) }, {}),
    ]
    expect(held.numbers).toEqual(plain.numbers)
    expect(held.numbers).not.toEqual((await played(files, {})).numbers)
    files.close()
  })
})

test('q8_0 keeps what a GGUF has in blocks, and rounds the rest', async () => {
  const files = await openModel(path)
  expect(blocksOf(files.config, files.tensors, 'q8_0').values).toBe(
    blocksOf(files.config, files.tensors, 'gguf').values + 128 * 256,
  )
  const { bytes } = await played(files, { quantization: 'q8_0' })
  expect(bytes).toBeLessThan((await played(files, { quantization: 'gguf' })).bytes)
  files.close()
})

describe('other weights into a model in blocks', () => {
  const first = async (decoder: Decoder) => {
    const engine = engineOf(decoder)
    const { ids, logprobs } = await engine.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 6 }) })
    return { engine, result: { ids, logprobs } }
  }

  test('of the same formats, and of others', async () => {
    const other = join(dir, 'other.gguf')
    writeQuantisedGguf(other, 'other')
    const [files, next] = [await openModel(path), await openModel(other)]
    const [decoder, fresh] = [
      await loadDecoder(gpu, files, { quantization: 'gguf' }),
      await loadDecoder(gpu, next, { quantization: 'gguf' }),
    ]
    const { engine, result: before } = await first(decoder)
    await engine.reloadWeights(next)
    const after = await engine.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 6 }) })
    const wanted = await first(fresh)
    expect({ ids: after.ids, logprobs: after.logprobs }).toEqual(wanted.result)
    expect(wanted.result).not.toEqual(before)
    // Not in blocks: nothing is written.
    const plain = { ...next, tensors: { ...inEightBits(next), blocks: undefined } }
    expect(await userErrorOf(() => engine.reloadWeights(plain))).toMatch(/is not in Q4_0 in these files.*Load a GGUF file/)
    const again = await engine.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 6 }) })
    expect({ ids: again.ids, logprobs: again.logprobs }).toEqual(wanted.result)
    await Promise.all([engine.close(), wanted.engine.close()])
    for (const one of [decoder, fresh]) one.release()
    for (const one of [files, next]) one.close()
  })

  test('in 8 bits, of plain files', async () => {
    const files = await openModel(join(golden, 'qwen3', 'model'))
    const decoder = await loadDecoder(gpu, files, { quantization: 'q8_0' })
    const { engine, result } = await first(decoder)
    await engine.reloadWeights(files)
    const { ids, logprobs } = await engine.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 6 }) })
    expect({ ids, logprobs }).toEqual(result)
    await engine.close()
    decoder.release()
    files.close()
  })
})

test('what cannot be held so is refused', async () => {
  const files = await openModel(join(golden, 'llama', 'model'))
  expect(await userErrorOf(() => loadDecoder(gpu, files, { quantization: 'gguf' }))).toMatch(
    /has no quantised matrices.*Name a quantised .gguf, or take "q8_0"/,
  )
  expect(await userErrorOf(() => loadDecoder(gpu, files, { quantization: 'q8_0', full: true }))).toMatch(/train an adapter/)
  files.close()
})

test.skipIf(withoutSmollm2)(
  'SmolLM2 as its GGUF has it: the same numbers in half of the memory',
  { timeout: 240_000 },
  async () => {
    const files = await openModel(smollm2)
    const [plain, held] = [await played(files, {}, { tokens: 4 }), await played(files, { quantization: 'gguf' }, { tokens: 4 })]
    expect(held.numbers).toEqual(plain.numbers)
    expect(held.bytes / plain.bytes).toBeLessThan(0.6)
    files.close()
  },
)
