/** The engine's own business: rows of the cache, fairness, versions, errors, memory. Numbers are in engine-bits.test.ts. */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { GenerationResult } from '../../src/common/types.ts'
import { GpuMemoryError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Engine } from '../../src/inference/engine.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import {
  engineOf as anyEngine,
  expectTrainersBits,
  goldenDecoder,
  goldenSequences,
  letters,
  moveAdapter,
  sampling,
  scoreAfter,
} from './helpers.ts'
import { testGenerator } from './generator.suite.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const sequences = goldenSequences('llama')
const prompts = [sequences[0].slice(0, 9), sequences[0].slice(3, 17), sequences[2].slice(0, 5)]

const ways = [
  { way: 'in turn with the host', ahead: false, readBlock: 1 },
  { way: 'a step ahead of the host', ahead: true, readBlock: 1 },
  { way: 'blocks of steps ahead of the host', ahead: true, readBlock: 4 },
]

describe.each(ways)('$way', ({ ahead, readBlock }) =>
  testGenerator('embedded engine', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = anyEngine(decoder, { ahead, readBlock })
    const close = async () => {
      await engine.close()
      decoder.release()
    }
    const push = async () => {
      await moveAdapter(decoder, engine.version)
      engine.publish(engine.version + 1)
    }
    return {
    generator: engine, prompts, decode: letters, maxLength: 64, batchInvariant: true, close, push,
    score: (promptIds, ids, temperature) => scoreAfter(decoder, promptIds, ids, temperature),
    bound: 0, switchesInFlight: true, tellsFiltered: true,
  } // prettier-ignore
  }),
)

describe.each(ways)('engine, $way', ({ ahead, readBlock }) => {
  const engineOf = (of: Decoder, options = {}) => anyEngine(of, { ahead, readBlock, ...options })
  let decoder: Decoder
  let engine: Engine
  beforeAll(async () => {
    decoder = await goldenDecoder(gpu, 'llama')
  })
  afterEach(async () => {
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0 })
    await engine.close()
  })
  const ask = (promptIds: number[], changes = {}, signal?: AbortSignal) =>
    engine.generate({ promptIds, sampling: sampling(changes), signal })
  /** Waits until `condition` holds, looking between steps. */
  const until = async (condition: () => boolean) => {
    while (!condition() && engine.stats().failed === 0) await new Promise((resolve) => setTimeout(resolve, 2))
  }

  it('ends at an end-of-sequence token', async () => {
    engine = engineOf(decoder)
    const free = await ask(prompts[0], { seed: 4 })
    await engine.close()
    engine = engineOf(decoder, { eosTokenIds: [free.ids[3]] })
    const at = free.ids.indexOf(free.ids[3])
    const result = await ask(prompts[0], { seed: 4 })
    expect(result).toMatchObject({ ids: free.ids.slice(0, at + 1), finishReason: 'stop', stopCondition: 'eos' })
    expect(result.text).toBe(letters(free.ids.slice(0, at)))
    // Ahead: at most the rest of its block and another one were begun before the end was known here.
    await engine.pause()
    expect(engine.stats().decodeSteps).toBeLessThanOrEqual(at + 1 + (ahead ? 2 * readBlock - 1 : 0))
  })

  it('computes the prompt of a group once', async () => {
    engine = engineOf(decoder)
    await Promise.all([1, 2, 3, 4].map((seed) => ask(prompts[1], { seed })))
    expect(engine.stats()).toMatchObject({ prefillTokens: 14, sharedPromptTokens: 42, tokensGenerated: 48, finished: 4 })
    // What it left in the cache is found, but for the last token, which is computed in any case.
    const cached = await ask(prompts[1])
    expect(cached.cachedTokens).toBe(13)
    expect(engine.stats()).toMatchObject({ prefillTokens: 15, sharedPromptTokens: 55, promptTokens: 5 * 14, kvRowsUsed: 0 })
    engine.resetPrefixCache()
    expect(await ask(prompts[1])).toMatchObject({ ids: cached.ids, logprobs: cached.logprobs, cachedTokens: 0 })
    expect(engine.stats()).toMatchObject({ prefillTokens: 29, kvRowsUsed: 0 })
  })

  it('takes pages from those that came last where there is no room, and all of them end with their own tokens', async () => {
    engine = engineOf(decoder, { cacheRows: 40, maxLength: 40, pageSize: 4 })
    const wanted = [10, 6, 26, 3, 3, 12, 1, 20]
    const results = await Promise.all(wanted.map((max_tokens, i) => ask(prompts[i % 3], { max_tokens, seed: i })))
    expect(results.map((r) => r.ids.length)).toEqual(wanted)
    expect(engine.stats().preemptions).toBeGreaterThan(0)
    expect(engine.stats()).toMatchObject({ kvRowsUsed: 0, running: 0, waiting: 0 })
    for (const [i, { ids, logprobs }] of results.entries()) {
      expect(await ask(prompts[i % 3], { max_tokens: wanted[i], seed: i })).toMatchObject({ ids, logprobs })
    }
  })

  it('frees the rows of an aborted request at once, running or waiting', async () => {
    engine = engineOf(decoder, { maxSequences: 2, pageSize: 4 })
    const controls = Array.from({ length: 4 }, () => new AbortController())
    const results = controls.map((c, i) => ask(prompts[0], { max_tokens: 40, seed: i }, c.signal))
    await until(() => engine.stats().decodeSteps > 2)
    expect(engine.stats()).toMatchObject({ running: 2, waiting: 2 })
    const used = engine.stats().kvRowsUsed
    // The prompt has two full pages, which both have, and a part of a third, which each has for itself.
    expect(used).toBeGreaterThanOrEqual(4 * 4)
    controls[3].abort()
    expect(engine.stats()).toMatchObject({ running: 2, waiting: 1 })
    controls[0].abort()
    expect(engine.stats()).toMatchObject({ running: 1, waiting: 1, kvRowsUsed: 8 + (used - 8) / 2 })
    expect((await results[0]).ids.length).toBeGreaterThan(1)
    expect((await results[3]).ids).toEqual([])
    controls[1].abort()
    controls[2].abort()
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0, aborted: 4 })
    await engine.idle()
  })

  it('names the version that made each token, and gives new requests a prompt of the new weights', async () => {
    engine = engineOf(decoder)
    const { store } = decoder
    const lora = store!.parameters.find((p) => p.name.endsWith('v_proj.lora_B.weight'))!
    const [old, bank] = [await store!.read(lora), store!.banks[lora.pieces[0].bank].values]
    engine.publish(7)
    const inFlight = ask(prompts[1], { max_tokens: 30, seed: 2 })
    await until(() => engine.stats().decodeSteps > 5)
    // As the optimizer does: the weights change in place, by a command, and the version with them.
    gpu.write(
      bank,
      old.map((x) => x * 2 + 0.01),
      lora.pieces[0].offset * 4,
    )
    engine.publish(8)
    const before = engine.stats().prefillTokens
    const fresh = await ask(prompts[1], { max_tokens: 4, seed: 3 })
    expect(engine.stats().prefillTokens - before).toBe(14)
    expect(fresh.versions).toEqual([8, 8, 8, 8])
    await expectTrainersBits(decoder, [{ request: { promptIds: prompts[1], sampling: sampling() }, result: fresh }])
    const result = await inFlight
    const first = result.versions.indexOf(8)
    expect(first).toBeGreaterThan(5)
    expect(result.versions).toEqual(result.ids.map((_, i) => (i < first ? 7 : 8)))
    // With the old weights, the tokens before the change come out again, and those after it do not.
    gpu.write(bank, old, lora.pieces[0].offset * 4)
    engine.publish(7)
    const again = await ask(prompts[1], { max_tokens: 30, seed: 2 })
    expect(again.logprobs.slice(0, first)).toEqual(result.logprobs.slice(0, first))
    expect(again.logprobs[first]).not.toBe(result.logprobs[first])
  })

  it('pauses between steps', async () => {
    engine = engineOf(decoder)
    const result = ask(prompts[0], { max_tokens: 20 })
    await until(() => engine.stats().decodeSteps > 3)
    await engine.pause()
    const { decodeSteps } = engine.stats()
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(engine.stats()).toMatchObject({ decodeSteps, paused: true, running: 1 })
    expect(engine.stats().oldestMs).toBeGreaterThan(90)
    engine.resume()
    expect((await result).ids).toHaveLength(20)
    await engine.idle()
    expect(engine.stats().oldestMs).toBe(0)
  })

  it('holds no more memory after many requests than after a few, and makes no more buffers', async () => {
    engine = engineOf(decoder)
    const round = async (seed: number) => {
      const results = Array.from({ length: 12 }, (_, i) =>
        ask(prompts[i % 3], { seed: seed + i, max_tokens: 1 + (i % 7), repetition_penalty: i % 4 ? 1 : 1.2 }),
      )
      await Promise.all(results)
      await engine.idle()
    }
    // The engine makes its plans while the first steps run.
    for (let i = 0; i < 8; i++) await round(i)
    const [inUse, reserved, groups] = [gpu.pool.bytesInUse, gpu.pool.bytesReserved, gpu.bindGroups]
    for (let i = 0; i < 12; i++) await round(100 * i)
    expect(gpu.pool.bytesInUse).toBe(inUse)
    expect(gpu.pool.bytesReserved).toBe(reserved)
    expect(gpu.bindGroups).toBeLessThan(groups * 1.5)
    expect(engine.stats().finished).toBe(240)
  })

  it('gives its memory back when it is closed, and rejects what is left', async () => {
    const before = gpu.pool.bytesInUse
    engine = engineOf(decoder)
    const left = [ask(prompts[0], { max_tokens: 40 }), ask(prompts[1], { max_tokens: 40 })]
    await until(() => engine.stats().decodeSteps > 1)
    const closed = engine.close()
    for (const promise of left) await expect(promise).rejects.toThrow('closed')
    await closed
    expect(gpu.pool.bytesInUse).toBe(before)
    await expect(ask(prompts[0])).rejects.toThrow('closed')
  })

  it('pauses when those that run have ended, or ends them', async () => {
    engine = engineOf(decoder, { maxSequences: 2 })
    const order: string[] = []
    const requests = [10, 20, 5].map(async (max_tokens, i) => {
      const result = await ask(prompts[i], { max_tokens })
      order.push(`${i}`)
      return result
    })
    await until(() => engine.stats().decodeSteps > 2)
    await engine.pause('wait').then(() => order.push('paused'))
    // The third had not begun: it waits.
    expect(order).toEqual(['0', '1', 'paused'])
    expect(engine.stats()).toMatchObject({ paused: true, running: 0, waiting: 1 })
    engine.resume()
    expect((await requests[2]).ids).toHaveLength(5)
    const long = [0, 1, 2].map((i) => ask(prompts[i], { max_tokens: 40 }))
    await until(() => engine.stats().decodeSteps > 24)
    await engine.pause('abort')
    const ended = await Promise.all(long)
    expect(ended.map(({ finishReason }) => finishReason)).toEqual(['abort', 'abort', 'abort'])
    expect(ended[2].ids).toEqual([])
    expect(engine.stats()).toMatchObject({ paused: true, running: 0, waiting: 0, kvRowsUsed: 0 })
    engine.resume()
    expect((await ask(prompts[0], { max_tokens: 3 })).ids).toHaveLength(3)
  })

  it('pauses only when those have ended, too, that lost their pages before their first token', async () => {
    engine = engineOf(decoder, { cacheRows: 40, maxLength: 40, pageSize: 4, maxPrefillRows: 1 })
    const long = [...prompts[1], ...prompts[0]]
    // While the second prompt is computed, the first request needs its pages.
    const requests = [ask(prompts[2], { max_tokens: 30 }), ask(long, { max_tokens: 3 })]
    await until(() => engine.stats().running === 2)
    const begun = Promise.all(requests)
    const later = ask(prompts[0], { max_tokens: 2 })
    await engine.pause('wait')
    expect(engine.stats()).toMatchObject({ preemptions: 1, paused: true, finished: 2, running: 0, waiting: 1 })
    expect((await begun).map(({ ids }) => ids.length)).toEqual([30, 3])
    engine.resume()
    expect((await later).ids).toHaveLength(2)
  })

  it('goes on when it is resumed before those that run have ended', async () => {
    engine = engineOf(decoder)
    const result = ask(prompts[0], { max_tokens: 40 })
    await until(() => engine.stats().decodeSteps > 2)
    const pause = engine.pause('wait')
    engine.resume()
    await pause
    expect(engine.paused).toBe(false)
    expect((await result).ids).toHaveLength(40)
  })

  it('keeps keys and values as f16: half the room, and nearly the same numbers', async () => {
    const bytes = gpu.pool.bytesInUse
    engine = engineOf(decoder)
    const exact = await ask(prompts[1], { temperature: 0, max_tokens: 20 })
    await engine.close()
    engine = engineOf(decoder, { plans: false })
    const whole = gpu.pool.bytesInUse - bytes
    await engine.close()
    engine = engineOf(decoder, { kvCacheDtype: 'f16', plans: false })
    const { layers, kvHeads, headDim } = decoder.config
    // A page more is for padding. In textures, rows are copied by way of a buffer for two pages of each of the 8 sequences, and some go through common keys together.
    const inTextures = 2 * 8 * 16 * kvHeads * headDim * 8 + 256
    const between = cpuLanes(gpu).LANES > 0 ? inTextures : 0
    expect(whole - (gpu.pool.bytesInUse - bytes)).toBe(2 * layers * (engine.cacheRows + 16) * kvHeads * headDim * 2 + between)
    const half = await ask(prompts[1], { temperature: 0, max_tokens: 20 })
    const scored = await scoreAfter(decoder, prompts[1], half.ids, 1)
    const worst = Math.max(...scored.map((logprob, i) => Math.abs(logprob - half.logprobs[i])))
    expect(worst).toBeGreaterThan(0)
    expect(worst).toBeLessThan(5e-3)
    expect(half.ids.slice(0, 4)).toEqual(exact.ids.slice(0, 4))
  })

  it('penalises repetition in what is drawn, not in the log-probability', async () => {
    engine = engineOf(decoder)
    const plain = await ask(prompts[0], { temperature: 0, max_tokens: 24 })
    const penalised = await ask(prompts[0], { temperature: 0, max_tokens: 24, repetition_penalty: 50 })
    expect(new Set(penalised.ids).size).toBeGreaterThan(new Set(plain.ids).size)
    // No token of the prompt, none twice: at 50 every listed token loses.
    expect(new Set([...prompts[0], ...penalised.ids]).size).toBe(new Set(prompts[0]).size + 24)
    await expectTrainersBits(decoder, [
      { request: { promptIds: prompts[0], sampling: sampling({ temperature: 0 }) }, result: penalised },
    ])
    const frequency = await ask(prompts[0], { temperature: 0, max_tokens: 24, frequency_penalty: 100 })
    expect(new Set(frequency.ids).size).toBe(24)
  })

  it.each([
    [{ temperature: -1 }, /temperature is -1/],
    [{ temperature: 1e-308 }, /temperature is 1e-308, which float32, the GPU's numbers, cannot hold/],
    [{ presence_penalty: -1e39 }, /presence_penalty is -1e\+39, which float32/],
    [{ temperature: Number.NaN }, /temperature is NaN/],
    [{ top_p: 1.5 }, /top_p is 1.5; it must be between 0 and 1/],
    [{ max_tokens: 0 }, /max_tokens is 0/],
    [{ repetition_penalty: 0 }, /repetition_penalty is 0; it must be more than 0/],
  ])('refuses %j', async (changes, words) => {
    engine = engineOf(decoder)
    await expect(ask(prompts[0], changes)).rejects.toThrow(UserError)
    await expect(ask(prompts[0], changes)).rejects.toThrow(words)
    await expect(ask([1, 100000])).rejects.toThrow(/Token 100000/)
  })
})

describe.each(ways)('a step that fails, $way', ({ ahead, readBlock }) => {
  const engineOf = (of: Decoder, options = {}) => anyEngine(of, { ahead, readBlock, ...options })
  it('rejects all requests, those that wait too, and later ones', async () => {
    const lost = await Gpu.open({ checks: true })
    const decoder = await goldenDecoder(lost, 'llama')
    const engine = engineOf(decoder, { maxSequences: 2 })
    const results: Promise<GenerationResult>[] = [0, 1, 2, 3].map((seed) =>
      engine.generate({ promptIds: prompts[0], sampling: sampling({ seed, max_tokens: 40 }) }),
    )
    const settled = Promise.allSettled(results)
    while (engine.stats().decodeSteps < 2 && engine.stats().failed === 0) await new Promise((resolve) => setTimeout(resolve, 2))
    lost.device.destroy()
    for (const outcome of await settled) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: { name: 'DeviceLostError' } })
    }
    await expect(engine.generate({ promptIds: prompts[0], sampling: sampling() })).rejects.toThrow(/GPU/)
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0, failed: 5 })
    await engine.idle()
    lost.close()
  })

  it('for want of memory leaves nothing in the cache that was not computed', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder)
    const request = { promptIds: prompts[1], sampling: sampling() }
    decoder.rotary.table(64)
    gpu.pool.trim()
    gpu.pool.limitBytes = gpu.pool.bytesReserved
    // Both end before any step, for want of room for one.
    for (let i = 0; i < 2; i++) await expect(engine.generate(request)).rejects.toThrow(GpuMemoryError)
    gpu.pool.limitBytes = Infinity
    const result = await engine.generate(request)
    expect(result.cachedTokens).toBe(0)
    await engine.close()
    const other = engineOf(decoder)
    expect(await other.generate(request)).toEqual(result)
    await other.close()
    decoder.release()
  })

  it('for want of memory in the midst of a draw gives back what the draw had taken', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder, { prefixCaching: false })
    const request = {
      promptIds: prompts[1],
      sampling: sampling({ max_tokens: 1, top_k: 5, logit_bias: { 3: 2 } }),
      logprobs: { mode: 'processed', top: 2 } as const,
    }
    const result = await engine.generate(request)
    const missing = new Set<string>()
    for (let more = 0; ; more += 256) {
      gpu.pool.trim()
      const held = gpu.pool.bytesInUse
      gpu.pool.limitBytes = gpu.pool.bytesReserved + more
      const outcome = await engine.generate(request).catch((error: unknown) => error as Error)
      gpu.pool.limitBytes = Infinity
      if (!(outcome instanceof Error)) {
        expect(outcome).toEqual(result)
        break
      }
      expect(outcome).toBeInstanceOf(GpuMemoryError)
      expect(gpu.pool.bytesInUse, outcome.message).toBe(held)
      missing.add(/'(.*)'/.exec(outcome.message)![1])
    }
    expect([...missing]).toEqual(expect.arrayContaining(['logits', 'changed logits']))
    await engine.close()
    decoder.release()
  })

  it('that the device has no memory for are rejected, and the next request asks again', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder)
    const request = { promptIds: prompts[1], sampling: sampling() }
    const { device } = gpu
    const [make, refused] = [device.createBuffer.bind(device), gpu.facts.limits.maxBuffer]
    decoder.rotary.table(64)
    gpu.pool.trim()
    // The software driver promises a larger buffer than it makes; a real GPU would have to be filled for this.
    device.createBuffer = (asked) => make(asked.label === 'scratch' && gpu.facts.software ? { ...asked, size: refused } : asked)
    try {
      if (gpu.facts.software) for (let i = 0; i < 2; i++) await expect(engine.generate(request)).rejects.toThrow(GpuMemoryError)
    } finally {
      device.createBuffer = make
    }
    expect((await engine.generate(request)).ids.length).toBeGreaterThan(0)
    expect(gpu.failure).toBeUndefined()
    await engine.close()
    decoder.release()
  })

  it('rejects only the request whose text can not be made', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const decode = (ids: readonly number[]) => {
      if (ids.length === 3) throw new Error('no text')
      return letters(ids)
    }
    const engine = engineOf(decoder, { decode })
    const [bad, good] = [3, 4].map((max_tokens) => engine.generate({ promptIds: prompts[0], sampling: sampling({ max_tokens }) }))
    await expect(bad).rejects.toThrow('no text')
    expect((await good).ids).toHaveLength(4)
    await engine.close()
    decoder.release()
  })
})

it('takes no memory for more tokens of prompts in a step than its sequences have', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const bytesOf = async (maxPrefillRows: number) => {
    const before = gpu.pool.bytesInUse
    const engine = anyEngine(decoder, { maxSequences: 2, maxLength: 24, maxPrefillRows })
    await engine.generate({ promptIds: [5, 6, 7], sampling: sampling({ max_tokens: 2 }) })
    const bytes = gpu.pool.bytesInUse - before
    await engine.close()
    return bytes
  }
  // The first one also makes what stays.
  await bytesOf(48)
  const bytes = await bytesOf(48)
  expect(await bytesOf(4096)).toBe(bytes)
  expect(await bytesOf(8)).toBeLessThan(bytes)
  decoder.release()
})

it('that could not be made does not count as one that training shares the device with', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const { engines } = gpu.share
  gpu.pool.trim()
  gpu.pool.limitBytes = gpu.pool.bytesReserved + 2 ** 16
  try {
    expect(() => anyEngine(decoder)).toThrow(GpuMemoryError)
  } finally {
    gpu.pool.limitBytes = Infinity
  }
  expect(() => anyEngine(decoder, { maxAdapterRank: 5 })).toThrow(UserError)
  expect(gpu.share.engines).toBe(engines)
  decoder.release()
})

it('refuses steps whose activations are more than the adapter binds at once', async () => {
  const decoder = await goldenDecoder(gpu, 'llama')
  const { hiddenSize, intermediateSize, kvHeads, headDim } = decoder.config
  const { limits } = gpu.facts
  const { maxBinding } = limits
  const rows = 4 * Math.max(hiddenSize, intermediateSize)
  limits.maxBinding = Math.max(300 * rows, 4 * kvHeads * headDim * 128)
  const most = Math.floor(limits.maxBinding / rows)
  const words = new RegExp(
    `tokens does not fit this GPU, which can bind the activations of at most ${most} at once\\. Lower max_num_batched`,
  )
  expect(() => anyEngine(decoder, { maxPrefillRows: most })).toThrow(words)
  limits.maxBinding = maxBinding
  decoder.release()
})
