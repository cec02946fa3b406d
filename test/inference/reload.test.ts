/** Other weights into a model that is being sampled from. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { hashSeed, Random } from '../../src/common/random.ts'
import { UserError } from '../../src/common/errors.ts'
import type { GenerationResult } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder, type ModelTensors } from '../../src/model/decoder/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import { openSafetensors, writeSafetensors } from '../../src/model/files/safetensors.ts'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { seed } from '../seed.ts'
import { randomAdapter } from './adapter-folders.ts'
import { engineOf, expectTrainersBits, golden, goldenSequences, sampling, scoreAfter } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
const root = mkdtempSync(join(tmpdir(), 'dawn-rl-reload-'))
afterAll(() => {
  gpu.close()
  rmSync(root, { recursive: true, force: true })
})

/** Weights of a model of this shape, as a file; values are exact in bf16 where `halves` says so. @param spoilt a token whose embedding is not a number */
async function otherWeights(
  config: ModelConfig,
  name: string,
  halves: boolean,
  spoilt?: number,
): Promise<ModelTensors & { close(): void }> {
  const path = join(root, `${name}.safetensors`)
  const random = new Random(hashSeed(seed, name))
  const tensors = [...tensorShapes(config)].map(([tensor, shape]) => {
    const values = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => {
      const value = random.normal() * 0.1 + Number(/norm/.test(tensor))
      // Vectors are not rounded when weights are reloaded, and are when they are loaded.
      return halves || shape.length === 1 ? Math.round(value * 64) / 64 : value
    })
    if (spoilt !== undefined && tensor.endsWith('embed_tokens.weight'))
      values.fill(NaN, spoilt * shape[1], (spoilt + 1) * shape[1])
    return [tensor, { dtype: 'F32' as const, shape, data: values }] as const
  })
  await writeSafetensors(path, Object.fromEntries(tensors), { format: 'pt' })
  const source = await openSafetensors(path)
  return { name, config, tensors: source, close: () => source.close() }
}

const bits = ({ ids, logprobs }: GenerationResult) => ({ ids, logprobs })

it.each(['llama', 'qwen2', 'qwen3', 'gemma3', 'qwen35', 'olmo2', 'olmo3', 'lfm2', 'granite', 'granite4', 'phi3', 'phi4'])(
  'what runs goes on with the new weights, what comes has their bits: %s',
  async (name) => {
    const isOdd = ['gemma3', 'qwen35', 'olmo2', 'olmo3', 'lfm2', 'granite', 'granite4', 'phi3', 'phi4'].includes(name)
    const where = isOdd ? join(import.meta.dirname, '../fixtures/odd') : golden('.')
    const model = await openModel(join(where, name, 'model'))
    const { config } = model
    const decoder = await loadDecoder(gpu, model)
    const engine = engineOf(decoder)
    const dir = await randomAdapter(config, `reload-${name}`)
    await engine.adapters.load('one', dir)
    const inUse = gpu.pool.bytesInUse
    const [prompt] = isOdd ? [Array.from({ length: 12 }, (_, i) => (i * 37) % config.vocabSize)] : goldenSequences(name)
    const request = { promptIds: prompt.slice(0, 11), sampling: sampling({ max_tokens: 24 }) }
    const named = { ...request, adapter: 'one' }
    const before = [await engine.generate(request), await engine.generate(named)]
    const files = await otherWeights(config, name, name === 'qwen2')
    const running = engine.generate(request)
    while (engine.stats().tokensGenerated < 2 * 24 + 3) await new Promise((resolve) => setTimeout(resolve, 1))
    expect(await engine.reloadWeights(files)).toBe(1)
    expect(engine.paused).toBe(false)
    const { ids, versions } = await running
    expect(versions).toEqual(versions.toSorted((a, b) => a - b))
    expect(new Set(versions)).toEqual(new Set([0, 1]))
    expect(ids).toHaveLength(24)
    const after = [await engine.generate(request), await engine.generate(named)]
    expect(after[0].versions).toEqual(ids.map(() => 1))
    // An adapter's version counts how often it was loaded.
    expect(after[1].versions).toEqual(ids.map(() => 1))
    const fresh = await loadDecoder(gpu, files, { round: true })
    await expectTrainersBits(fresh, [{ request, result: after[0] }])
    await expectTrainersBits(decoder, [{ request, result: after[0] }])
    const other = engineOf(fresh)
    await other.adapters.load('one', dir)
    expect(bits(await other.generate(named))).toEqual(bits(after[1]))
    await other.close()
    fresh.release()
    // And back.
    await engine.pause()
    expect(await engine.reloadWeights(model)).toBe(2)
    expect(engine.paused).toBe(true)
    engine.resume()
    expect([await engine.generate(request), await engine.generate(named)].map(bits)).toEqual(before.map(bits))
    expect(gpu.pool.bytesInUse).toBeGreaterThanOrEqual(inUse)
    await engine.close()
    decoder.release()
    model.close()
    files.close()
  },
)

it('a Gemma in float32 takes the scale of embeddings that files in bf16 have', async () => {
  const model = await openModel(join(import.meta.dirname, '../fixtures/odd/gemma3/model'))
  const files = await otherWeights(model.config, 'gemma in float32', false)
  const decoder = await loadDecoder(gpu, files)
  const engine = engineOf(decoder)
  const request = { promptIds: [5, 6, 7, 8, 9], sampling: sampling() }
  await engine.generate(request)
  const fresh = await loadDecoder(gpu, model)
  expect(decoder.embedding.scale).not.toBe(fresh.embedding.scale)
  await engine.reloadWeights(model)
  const result = await engine.generate(request)
  await expectTrainersBits(decoder, [{ request, result }])
  const wanted = await scoreAfter(fresh, request.promptIds, result.ids, request.sampling.temperature)
  result.logprobs.forEach((logprob, i) => expect(logprob).toBeCloseTo(wanted[i], 5))
  // And back.
  await engine.reloadWeights(files)
  expect(decoder.embedding.scale).toBe(Math.fround(Math.sqrt(48)))
  await expectTrainersBits(decoder, [{ request, result: await engine.generate(request) }])
  await engine.close()
  for (const one of [decoder, fresh]) one.release()
  for (const one of [model, files]) one.close()
})

it('takes a tied head that is written out beside its embedding, and no other', async () => {
  const model = await openModel(golden('qwen3/model'))
  const decoder = await loadDecoder(gpu, model)
  const engine = engineOf(decoder)
  const { tensors } = model
  const written = (head: string): ModelTensors => ({
    name: 'written',
    config: { ...model.config, tieWordEmbeddings: false },
    tensors: {
      names: () => [...tensors.names(), 'lm_head.weight'],
      has: () => true,
      shape: (tensor) => tensors.shape(tensor === 'lm_head.weight' ? 'model.embed_tokens.weight' : tensor),
      read: (tensor, options) => tensors.read(tensor === 'lm_head.weight' ? head : tensor, options),
      close: () => {},
    },
  })
  expect(await engine.reloadWeights(written('model.embed_tokens.weight'))).toBe(1)
  const other = engine.reloadWeights(written('model.layers.0.mlp.up_proj.weight'))
  await expect(other).rejects.toThrow(/its lm_head.weight is not the same as its embedding/)
  await engine.close()
  decoder.release()
  model.close()
})

it('refuses what does not fit before anything is written', async () => {
  const model = await openModel(golden('llama/model'))
  const decoder = await loadDecoder(gpu, model)
  const engine = engineOf(decoder)
  const request = { promptIds: [5, 6, 7], sampling: sampling() }
  const before = await engine.generate(request)
  const files = await otherWeights(model.config, 'refused', true)
  const { config, tensors } = files
  const changed = (change: Partial<ModelTensors['tensors']>) => ({ ...files, tensors: { ...others(), ...change } })
  const others = (): ModelTensors['tensors'] => ({
    names: () => tensors.names(),
    has: (tensor) => tensors.has(tensor),
    shape: (tensor) => tensors.shape(tensor),
    read: (tensor, options) => tensors.read(tensor, options),
    close: () => {},
  })
  const cases: [ModelTensors, RegExp][] = [
    [{ ...files, config: { ...config, layers: 3 } }, /refused is another model than .*: its layers is 3, not 2/],
    [{ ...files, config: { ...config, ropeTheta: 5 } }, /its ropeTheta is 5/],
    [changed({ has: (tensor) => tensor !== 'model.norm.weight' }), /Tensor model.norm.weight is missing in refused/],
    [changed({ shape: () => [3, 3] }), /has shape \[3, 3\], and its config asks for/],
    [changed({ read: (tensor, o) => (tensor === 'model.norm.weight' ? Promise.reject(new Error('cut off')) : tensors.read(tensor, o)) }), /cut off/],
  ] // prettier-ignore
  for (const [given, words] of cases) await expect(engine.reloadWeights(given)).rejects.toThrow(words)
  engine.resetPrefixCache()
  expect(await engine.generate(request)).toMatchObject({ ...bits(before), versions: before.ids.map(() => 0) })
  const trained = await loadDecoder(gpu, model, { full: true })
  const trainers = engineOf(trained)
  await expect(trainers.reloadWeights(files)).rejects.toThrow(/are being trained/)
  for (const one of [engine, trainers]) await one.close()
  for (const one of [decoder, trained]) one.release()
  model.close()
  files.close()
})

it('of which a file is gone once some are written leave nothing to sample from, until they are loaded again', async () => {
  const model = await openModel(golden('llama/model'))
  const decoder = await loadDecoder(gpu, model)
  const engine = engineOf(decoder)
  const request = { promptIds: [5, 6, 7], sampling: sampling() }
  const before = await engine.generate(request)
  const files = await otherWeights(model.config, 'gone', true)
  const { tensors } = files
  let reads = 0
  const gone: ModelTensors = {
    ...files,
    tensors: {
      names: () => tensors.names(),
      has: (tensor) => tensors.has(tensor),
      shape: (tensor) => tensors.shape(tensor),
      read: (tensor, options) =>
        tensor === 'model.norm.weight' && ++reads > 1
          ? Promise.reject(new UserError('gone.safetensors cannot be read (EIO).'))
          : tensors.read(tensor, options),
      close: () => {},
    },
  }
  const words =
    /gone\.safetensors cannot be read \(EIO\)\. .*Some weights of gone had been written .*: nothing is sampled until weights are loaded again\./
  await engine.pause()
  const [running, waiting] = [engine.generate(request), engine.generate(request)]
  const refused = [running, waiting].map((promise) => expect(promise).rejects.toThrow(words))
  await expect(engine.reloadWeights(gone)).rejects.toThrow(words)
  engine.resume()
  await Promise.all(refused)
  for (let i = 0; i < 2; i++) await expect(engine.generate(request)).rejects.toThrow(words)
  expect(engine.version).toBe(0)
  // Weights that are refused change nothing of that.
  await expect(engine.reloadWeights({ ...files, config: { ...files.config, layers: 3 } })).rejects.toThrow('another model')
  await expect(engine.generate(request)).rejects.toThrow(words)
  expect(await engine.reloadWeights(model)).toBe(1)
  expect(bits(await engine.generate(request))).toEqual(bits(before))
  await engine.close()
  decoder.release()
  model.close()
  files.close()
})

it.each(['are checked', 'are written'])('a reload ends before close does, while its files %s', async (when) => {
  const model = await openModel(golden('qwen3/model'))
  const decoder = await loadDecoder(gpu, model)
  const engine = engineOf(decoder)
  const { tensors } = model
  const reached = Promise.withResolvers<void>()
  let reads = 0
  const read: typeof tensors.read = async (tensor, options) => {
    if (tensor === 'model.norm.weight' && ++reads === (when === 'are checked' ? 1 : 2)) {
      reached.resolve()
      await new Promise((resolve) => setTimeout(resolve, 30))
    }
    return await tensors.read(tensor, options)
  }
  const slow = { names: () => tensors.names(), has: (t: string) => tensors.has(t), shape: (t: string) => tensors.shape(t), read }
  let ended = false
  const reload = engine.reloadWeights({ ...model, tensors: { ...slow, close: () => {} } }).finally(() => (ended = true))
  const refused = expect(reload).rejects.toThrow('the engine was closed')
  await reached.promise
  await engine.close()
  expect(ended).toBe(true)
  // Its owner releases the decoder next.
  decoder.release()
  await refused
  await gpu.sync()
  await expect(engine.reloadWeights(model)).rejects.toThrow('the engine is closed')
  model.close()
})

it('a prompt whose logits are not finite fails alone, also where others begin or come with it', async () => {
  const model = await openModel(golden('llama/model'))
  const files = await otherWeights(model.config, 'spoilt', true, 200)
  model.close()
  const decoder = await loadDecoder(gpu, files)
  const others = [1, 2, 3].map((n) => Array.from({ length: 20 }, (_, i) => 10 * n + (i % 7)))
  const requestOf = (promptIds: number[]) => ({ promptIds, sampling: sampling() })
  const alone = engineOf(decoder, { prefixCaching: false })
  const want = []
  for (const ids of others) want.push(bits(await alone.generate(requestOf(ids))))
  await alone.close()
  const engine = engineOf(decoder)
  // The second begins as the one that fails, which is computed with it, or before.
  const spoilt = [...others[1].slice(0, 18), 200, 5]
  for (const together of [true, false]) {
    const failed = engine.generate(requestOf(spoilt))
    const refused = expect(failed).rejects.toThrow('logits at token 0 are not finite')
    if (!together) await refused
    const results = await Promise.all(others.map((ids) => engine.generate(requestOf(ids))))
    await refused
    expect(results.map(bits)).toEqual(want)
    engine.resetPrefixCache()
  }
  await engine.close()
  decoder.release()
  files.close()
})
