/** Sequences of a model with states (Qwen3.5, LFM2): each goes on from its own, however they come, wait and go. */
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { GenerationRequest } from '../../src/common/types.ts'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Engine } from '../../src/inference/engine.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { withFacts } from '../facts.ts'
import { randomAdapter } from './adapter-folders.ts'
import { engineOf, expectTrainersBits, sampling } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

let decoder: Decoder
let dir: string

/** Runs `fn` with the model, and sees that everything comes back. */
async function withModel(facts: Partial<GpuFacts>, fn: () => Promise<void>): Promise<void> {
  const held = gpu.pool.bytesInUse
  await withFacts(gpu, facts, async () => {
    const files = await openModel(join(dir, 'model'))
    decoder = await loadDecoder(gpu, files, { adapter: await readAdapter(join(dir, 'adapter')) })
    files.close()
    await fn()
    decoder.release()
  })
  expect(gpu.pool.bytesInUse).toBe(held)
}

const prompt = (length: number, seed = 0) => Array.from({ length }, (_, i) => (i * 37 + seed) % 128)
const request = (promptIds: number[], seed: number, max_tokens = 9): GenerationRequest => ({
  promptIds,
  sampling: sampling({ seed, max_tokens }),
})

async function expectBits(engine: Engine, requests: GenerationRequest[]): Promise<void> {
  const results = await Promise.all(requests.map((one) => engine.generate(one)))
  await expectTrainersBits(
    decoder,
    requests.map((one, i) => ({ request: one, result: results[i] })),
  )
}

describe.each(['qwen35', 'lfm2'])('%s', (name) => {
  beforeAll(() => {
    dir = join(import.meta.dirname, '../fixtures/odd', name)
  })

  it('a group computes its prompt once, in chunks, and each completion goes on from a copy of its state', async () => {
    await withModel({}, async () => {
      const engine = engineOf(decoder, { maxSequences: 6, maxPrefillRows: 5 })
      const group = Array.from({ length: 6 }, (_, seed) => request(prompt(17), seed, 4 + 2 * seed))
      await expectBits(engine, group)
      expect(engine.stats().sharedPromptTokens).toBe(5 * 17)
      // Slots are used again, by others and by the same prompt, whose pages say nothing of a state any more.
      await expectBits(engine, [
        request(prompt(3, 1), 7),
        ...group.slice(0, 3),
        request(prompt(17), 9),
        request(prompt(29, 5), 8),
      ])
      await engine.close()
    })
  })

  it('more requests than slots, some that end at once or are aborted, and some that lose their pages', async () => {
    await withModel({}, async () => {
      const engine = engineOf(decoder, { maxSequences: 3, maxPrefillRows: 7, maxLength: 64, cacheRows: 96 })
      const stop = new AbortController()
      const aborted = [4, 30].map((length) => engine.generate({ ...request(prompt(length, 3), 1, 30), signal: stop.signal }))
      const others = Array.from({ length: 9 }, (_, i) => request(prompt(5 + 7 * (i % 3)), i, 1 + ((11 * i) % 40)))
      const done = expectBits(engine, others)
      await new Promise((resolve) => setTimeout(resolve, 30))
      stop.abort()
      await done
      for (const { finishReason } of await Promise.all(aborted)) expect(finishReason).toBe('abort')
      // Three that each grow to half of the six pages.
      const growing = [0, 1, 2].map((seed) => request(prompt(12, seed), seed, 36))
      await expectBits(engine, growing)
      expect(engine.stats().preemptions).toBeGreaterThan(0)
      expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0 })
      await engine.close()
    })
  })

  it('the same with the kernels of GPUs, ahead of the host, and without plans', async () => {
    await withModel({ software: false }, async () => {
      for (const options of [{}, { plans: false }, { kvCacheDtype: 'f32' as const, ahead: true }]) {
        const engine = engineOf(decoder, { maxSequences: 4, maxPrefillRows: 6, ...options })
        await expectBits(
          engine,
          [0, 1, 2, 3, 4].map((seed) => request(prompt(seed < 3 ? 11 : 8), seed)),
        )
        await engine.close()
      }
    })
  })

  it('sequences of different adapters in one step have the bits that each has alone', async () => {
    await withModel({}, async () => {
      const engine = engineOf(decoder, { maxSequences: 4, maxPrefillRows: 6 })
      for (const adapter of ['one', 'two'])
        await engine.adapters.load(adapter, await randomAdapter(decoder.config, `${name}-${adapter}`))
      const requests = [undefined, 'one', 'two', 'one'].map((adapter, seed) => ({ ...request(prompt(13), seed), adapter }))
      const together = await Promise.all(requests.map((one) => engine.generate(one)))
      const texts = together.map(({ ids }) => ids.join())
      expect(new Set(texts).size).toBe(4)
      for (const [i, one] of requests.entries()) {
        const { ids, logprobs } = await engine.generate(one)
        expect(together[i]).toMatchObject({ ids, logprobs })
      }
      await engine.close()
    })
  })
})
