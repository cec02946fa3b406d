/** Several adapters in one batch: each request has the tokens and the bits that it has alone, while others come, go and change. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { pad } from '../../src/autograd/parameters.ts'
import type { GenerationRequest, GenerationResult } from '../../src/common/types.ts'
import { GpuMemoryError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Engine } from '../../src/inference/engine.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { refreshWeights } from '../../src/model/decoder/trained.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { randomAdapter } from './adapter-folders.ts'
import { engineOf, expectTrainersBits, golden, goldenDecoder, goldenSequences, moveAdapter, sampling } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

async function decoderWith(name: string, dir: string): Promise<Decoder> {
  const files = await openModel(golden(join(name, 'model')))
  const decoder = await loadDecoder(gpu, files, { adapter: await readAdapter(dir) })
  files.close()
  return decoder
}

/** Requests of `name`'s prompts, one after the other with each adapter. */
function requestsOf(name: string, count: number, adapters: (string | null | undefined)[]): GenerationRequest[] {
  const sequences = goldenSequences(name)
  return Array.from({ length: count }, (_, i) => ({
    promptIds: sequences[i % 3].slice(0, 3 + 4 * (i % 4)),
    sampling: sampling({ seed: i, max_tokens: 4 + ((5 * i) % 13) }),
    adapter: adapters[i % adapters.length],
  }))
}

const all = (engine: Engine, requests: GenerationRequest[]) => Promise.all(requests.map((request) => engine.generate(request)))

const pairsOf = (requests: GenerationRequest[], results: GenerationResult[], adapter: string | null | undefined) =>
  requests.flatMap((request, i) => (request.adapter === adapter ? [{ request, result: results[i] }] : []))

describe.each(['llama', 'qwen2', 'qwen3'])('%s', (name) => {
  it.each([
    { own: true, plans: true, ahead: false },
    { own: true, plans: false, ahead: true },
    { own: false, plans: true, ahead: true },
    { own: true, plans: true, ahead: true, readBlock: 3 },
  ])('the policy, the model alone and two others in one batch, each as alone (%j)', async ({ own, ...way }) => {
    const decoder = await goldenDecoder(gpu, name, { adapter: own })
    const { config } = decoder
    const engine = engineOf(decoder, { maxSequences: 7, maxPrefillRows: 9, ...way })
    const few = await randomAdapter(config, `${name}-few`, { rank: 3, modules: ['q_proj', 'v_proj', 'down_proj'] })
    const wide = await randomAdapter(config, `${name}-wide`, { rank: 16 })
    expect(await engine.adapters.load('few', few)).toEqual({ name: 'few', path: few, rank: 3, version: 1 })
    // Wider than what is there, so that is arranged anew.
    await all(engine, requestsOf(name, 2, ['few']))
    await engine.adapters.load('wide', wide)
    const requests = requestsOf(name, 16, [undefined, null, 'few', 'wide'])
    const together = await all(engine, requests)
    // Another order, with other neighbours, in and out of the cache.
    for (const reset of [false, true]) {
      if (reset) engine.resetPrefixCache()
      const again = await all(engine, requests.toReversed())
      again.toReversed().forEach(({ ids, logprobs }, i) => expect({ ids, logprobs }).toEqual(bits(together[i])))
    }
    for (const i of [0, 1, 2, 3]) {
      engine.resetPrefixCache()
      expect(bits(await engine.generate(requests[i]))).toEqual(bits(together[i]))
    }
    await expectTrainersBits(decoder, pairsOf(requests, together, undefined))
    if (!own) {
      await expectTrainersBits(decoder, pairsOf(requests, together, null))
      expect(bits(together[1])).toEqual(bits(await engine.generate({ ...requests[1], adapter: undefined })))
    }
    await engine.close()
    decoder.release()
    // As decoders of their own have it, to the bit.
    const owners: [string | null, Promise<Decoder>][] = [
      ['few', decoderWith(name, few)],
      ['wide', decoderWith(name, wide)],
      [null, goldenDecoder(gpu, name, { adapter: false })],
    ]
    for (const [adapter, loading] of owners) {
      const owner = await loading
      await expectTrainersBits(owner, pairsOf(requests, together, adapter))
      owner.release()
    }
    expect(new Set(together.map(({ ids }) => ids.join())).size).toBeGreaterThan(12)
  })
})

const bits = ({ ids, logprobs }: GenerationResult) => ({ ids, logprobs })

it("the golden adapter by name has the bits that it has as the decoder's own", async () => {
  const [plain, owner] = [await goldenDecoder(gpu, 'qwen2', { adapter: false }), await goldenDecoder(gpu, 'qwen2')]
  const [engine, other] = [engineOf(plain), engineOf(owner)]
  await engine.adapters.load('golden', golden('qwen2/adapter'))
  const requests = requestsOf('qwen2', 6, ['golden'])
  const results = await all(engine, requests)
  const asOwn = await all(other, requests.map((request) => ({ ...request, adapter: undefined }))) // prettier-ignore
  expect(results.map(bits)).toEqual(asOwn.map(bits))
  for (const one of [engine, other]) await one.close()
  for (const one of [plain, owner]) one.release()
})

it('requests go on while the policy is published, and adapters are replaced and taken away', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const engine = engineOf(decoder, { maxSequences: 6, maxAdapters: 2 })
  const [a, b] = [await randomAdapter(decoder.config, 'a'), await randomAdapter(decoder.config, 'b', { rank: 12 })]
  await engine.adapters.load('one', a)
  await engine.adapters.load('two', b)
  const done: Promise<GenerationResult>[] = []
  const start = (adapter: string | null | undefined, seed: number, tokens = 30) => {
    const promptIds = goldenSequences('llama')[seed % 3].slice(0, 5)
    const result = engine.generate({ promptIds, adapter, sampling: sampling({ seed, max_tokens: tokens }) })
    done.push(result)
    return result
  }
  const tokens = async (more: number) => {
    const goal = engine.stats().tokensGenerated + more
    while (engine.stats().tokensGenerated < goal) await new Promise((resolve) => setTimeout(resolve, 1))
  }
  const [one, two, policy, none] = [start('one', 1), start('two', 2), start(undefined, 3), start(null, 4)]
  await tokens(12)
  // Between two steps, so that it is certain who runs; the next test does it beside them.
  await engine.pause()
  await moveAdapter(decoder, 1)
  engine.publish(1)
  expect(await engine.adapters.load('one', b, { inPlace: true })).toMatchObject({ version: 2, rank: 12, path: b })
  await engine.adapters.unload('two')
  expect(engine.adapters.has('two')).toBe(false)
  expect(engine.adapters.list().map((info) => info.name)).toEqual(['one'])
  await expect(start('two', 5)).rejects.toThrow(/no adapter "two": loaded are one/)
  void done.pop()
  // The place is its requests' until they have ended.
  await expect(engine.adapters.load('three', a)).rejects.toThrow(
    /at most 2 can be loaded, and there are already one, two \(until its requests/,
  )
  engine.resume()
  await two
  await engine.adapters.load('three', a)
  const three = start('three', 6, 6)
  const results = await Promise.all(done)
  expect(results.every(({ finishReason }) => finishReason === 'length')).toBe(true)
  const versions = [one, policy].map(async (result) => [...new Set((await result).versions)])
  expect(await Promise.all(versions)).toEqual([
    [1, 2],
    [0, 1],
  ])
  expect((await one).versions).toEqual((await one).versions.toSorted((x, y) => x - y))
  expect(new Set([...(await two).versions, ...(await three).versions])).toEqual(new Set([1]))
  expect(new Set((await none).versions)).toEqual(new Set([0]))
  // What is sampled from here on has the new weights alone: nothing of the old ones is found in the cache.
  const fresh = requestsOf('llama', 8, [undefined, 'one', 'three', null])
  const after = await all(engine, fresh)
  await expectTrainersBits(decoder, pairsOf(fresh, after, undefined))
  for (const [adapter, dir] of [['one', b], ['three', a]]) {
    const owner = await decoderWith('llama', dir)
    await expectTrainersBits(owner, pairsOf(fresh, after, adapter))
    owner.release()
  } // prettier-ignore
  expect(engine.stats()).toMatchObject({ failed: 0, running: 0, waiting: 0 })
  await engine.close()
  decoder.release()
})

it('no request fails while adapters come and go beside it', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const engine = engineOf(decoder, { maxAdapters: 3 })
  const dirs = await Promise.all([4, 8, 16].map((rank) => randomAdapter(decoder.config, `storm-${rank}`, { rank })))
  await engine.adapters.load('stays', dirs[0])
  const [kept, changed] = [requestsOf('llama', 60, ['stays', undefined, null]), requestsOf('llama', 60, ['changes', 'stays'])]
  const alone = await all(engine, kept)
  engine.resetPrefixCache()
  const running = [all(engine, kept)]
  const changes = (async () => {
    for (let i = 0; i < 12; i++) {
      const info = await engine.adapters.load('changes', dirs[i % 3], { inPlace: i % 2 === 1 })
      expect(info.version).toBe(i + 1)
      if (i === 2) running.push(all(engine, changed))
      if (i % 2 === 1) await engine.adapters.unload('changes')
    }
  })()
  const [results] = await Promise.all(running)
  await changes
  expect(results.map(bits)).toEqual(alone.map(bits))
  for (const { versions } of (await Promise.all(running)).flat()) {
    expect(versions).toEqual(versions.toSorted((x, y) => x - y))
  }
  expect(engine.stats()).toMatchObject({ failed: 0, running: 0, waiting: 0 })
  await engine.close()
  decoder.release()
})

it('refuses what does not fit, in words, and goes on with what is there', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const { config } = decoder
  const engine = engineOf(decoder, { maxAdapters: 1 })
  const request = { promptIds: [5, 6, 7], sampling: sampling(), adapter: 'good' }
  await expect(engine.generate(request)).rejects.toThrow('There is no adapter "good": none is loaded.')
  await expect(engine.adapters.unload('good')).rejects.toThrow('There is no adapter "good"')
  const good = await randomAdapter(config, 'good')
  await engine.adapters.load('good', good)
  const result = await engine.generate(request)
  // Before any file is read.
  await expect(engine.adapters.load('good', 'nowhere')).rejects.toThrow(
    /good has already been loaded: unload it first, or load it in place/,
  )
  const again = (dir: string) => engine.adapters.load('good', dir, { inPlace: true })
  await expect(again(await randomAdapter(config, 'large', { rank: 24 }))).rejects.toThrow(/has rank 24 .* but 16 is the largest/)
  await expect(again(await randomAdapter(config, 'nan', { spoil: Number.NaN }))).rejects.toThrow(/a value that is not finite/)
  await expect(again(golden('qwen3/model'))).rejects.toThrow(/has no adapter_config.json/)
  await expect(again(await randomAdapter({ ...config, intermediateSize: 168 }, 'other'))).rejects.toThrow(/is for another model/)
  const layers = await randomAdapter({ ...config, layers: config.layers + 1 }, 'layers')
  await expect(again(layers)).rejects.toThrow(/Is it for another model\?/)
  const saved = await randomAdapter(config, 'saved')
  writeFileSync(join(saved, 'adapter_config.json'), JSON.stringify({ peft_type: 'LORA', r: 8, lora_alpha: 8, modules_to_save: ['lm_head'] })) // prettier-ignore
  await expect(again(saved)).rejects.toThrow(/modules_to_save is \["lm_head"\]/)
  await expect(engine.adapters.load('second', 'nowhere')).rejects.toThrow(/no place for the adapter second: at most 1/)
  expect(() => engineOf(decoder, { maxAdapterRank: 12 })).toThrow(/maxAdapterRank is 12; it must be a multiple of 8/)
  await engineOf(decoder, { maxAdapterRank: 8 }).close()
  expect(engine.adapters.list()).toEqual([{ name: 'good', path: good, rank: 8, version: 1 }])
  expect(bits(await engine.generate(request))).toEqual(bits(result))
  const late = again(good)
  await Promise.all([engine.close(), expect(late).rejects.toThrow('the engine is closed')])
  decoder.release()
})

it('what finds no memory changes nothing, and goes well once there is some', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const engine = engineOf(decoder, { maxSequences: 4, prefixCaching: false })
  const [a, b] = [await randomAdapter(decoder.config, 'small'), await randomAdapter(decoder.config, 'wider', { rank: 16 })]
  const request = { promptIds: goldenSequences('llama')[0].slice(0, 9), sampling: sampling() }
  const ask = async (adapter?: string | null) => bits(await engine.generate({ ...request, adapter }))
  const policy = await ask()
  /** Tries with more and more room, until there is enough. @returns how often there was not */
  const withRoom = async (work: () => Promise<unknown>, unchanged: () => Promise<void>): Promise<number> => {
    for (let tries = 0; ; tries++) {
      await gpu.sync()
      gpu.pool.trim()
      gpu.pool.limitBytes = gpu.pool.bytesReserved + 2 ** (10 + tries)
      const error: unknown = await work().then(() => {}, (reason: unknown) => reason) // prettier-ignore
      gpu.pool.limitBytes = Infinity
      if (!error) return tries
      expect(error).toBeInstanceOf(GpuMemoryError)
      await unchanged()
    }
  }
  // The first step with several adapters makes the room for them.
  const first = await withRoom(
    () => ask(null),
    async () => expect(await ask()).toEqual(policy),
  )
  expect(first).toBeGreaterThan(3)
  const none = await ask(null)
  const kept: [string | null | undefined, unknown][] = [[undefined, policy], [null, none]] // prettier-ignore
  const keeps = async () => {
    for (const [adapter, result] of kept) expect(await ask(adapter)).toEqual(result)
  }
  for (const [name, dir] of [['one', a], ['two', b], ['one', b]]) {
    const tries = await withRoom(() => engine.adapters.load(name, dir, { inPlace: engine.adapters.has(name) }), keeps)
    expect(tries, name).toBeGreaterThan(0)
    const at = kept.findIndex(([adapter]) => adapter === name)
    kept.splice(at < 0 ? kept.length : at, 1, [name, await ask(name)])
    await keeps()
    const owner = await decoderWith('llama', dir)
    await expectTrainersBits(owner, [{ request, result: await engine.generate({ ...request, adapter: name }) }])
    owner.release()
  } // prettier-ignore
  await engine.close()
  decoder.release()
})

it('steps with several adapters make nothing once they are warm, and all memory comes back', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  decoder.rotary.table(64)
  gpu.pool.trim()
  const before = gpu.pool.bytesInUse
  const engine = engineOf(decoder)
  await engine.adapters.load('a', await randomAdapter(decoder.config, 'warm-a'))
  await engine.adapters.load('b', await randomAdapter(decoder.config, 'warm-b'))
  expect(engine.adapters.bank.bytes).toBeGreaterThan(0)
  const round = (seed: number) =>
    all(
      engine,
      requestsOf('llama', 8, [undefined, null, 'a', 'b']).map((request) => {
        return { ...request, sampling: sampling({ seed: seed + request.sampling.seed, max_tokens: 30 }) }
      }),
    )
  for (const seed of [0, 10, 20, 30]) await round(seed)
  const made = () => [gpu.pool.buffersMade, gpu.readBuffersMade, gpu.bindGroups, gpu.kernels.size, gpu.pool.bytesInUse]
  const running = round(40)
  const goal = engine.stats().tokensGenerated + 30
  while (engine.stats().tokensGenerated < goal) await new Promise((resolve) => setTimeout(resolve, 1))
  await engine.pause()
  const [warm, submits, steps] = [made(), gpu.submits, engine.stats().decodeSteps]
  engine.resume()
  await running
  expect(made()).toEqual(warm)
  expect(engine.stats().decodeSteps - steps).toBeGreaterThan(5)
  // A GPU gets a plan in several submits the first time (src/gpu/pace.ts).
  if (gpu.facts.software) expect(gpu.submits - submits).toBe(engine.stats().decodeSteps - steps)
  await engine.close()
  expect(gpu.pool.bytesInUse).toBe(before)
  decoder.release()
})

it('an adapter beside a model that is trained whole: nothing of it is found again once the weights below it have changed', async () => {
  const files = await openModel(golden('llama/model'))
  const decoder = await loadDecoder(gpu, files, { full: true })
  files.close()
  const engine = engineOf(decoder)
  await engine.adapters.load('one', await randomAdapter(decoder.config, 'over-trained'))
  const [promptIds] = goldenSequences('llama')
  const ask = () => engine.generate({ promptIds, adapter: 'one', sampling: sampling({ max_tokens: 4 }) })
  await ask()
  expect((await ask()).cachedTokens).toBeGreaterThan(0)
  const store = decoder.store!
  for (const p of store.parameters) {
    const values = await store.read(p)
    store.write(p, pad(values.map((v) => v * 1.5), p)) // prettier-ignore
  }
  refreshWeights(decoder)
  engine.publish(1)
  const after = await ask()
  expect(after.cachedTokens).toBe(0)
  engine.resetPrefixCache()
  expect(await ask()).toEqual(after)
  await engine.close()
  decoder.release()
})
