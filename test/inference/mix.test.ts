/** 200 requests of all kinds at once, in a cache that is too small for them: each gets the tokens and log-probabilities that it gets alone, bit for bit. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { GenerationRequest, GenerationResult } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { seed, seedWords } from '../seed.ts'
import { engineOf, goldenDecoder, goldenSequences, letters, sampling } from './helpers.ts'

const gpu = await Gpu.open()
const count = 200
let decoder: Decoder
beforeAll(async () => {
  decoder = await goldenDecoder(gpu, 'qwen3')
})
afterAll(() => {
  decoder.release()
  gpu.close()
})

/** A request as nobody would write it, of what a request may ask for. */
function anyRequest(random: Random, texts: number[][], vocabulary: number): GenerationRequest {
  const one = (odds: number): boolean => random.int(odds) === 0
  const text = random.pick(texts)
  // Many begin alike.
  const promptIds = [...text.slice(0, 1 + random.int(text.length)), ...(one(2) ? [random.int(vocabulary)] : [])]
  const max_tokens = 1 + random.int(24)
  return {
    promptIds,
    sampling: sampling({
      temperature: one(4) ? 0 : 0.3 + 2 * random.next(),
      top_p: one(4) ? 0.7 : 1,
      top_k: one(4) ? 5 : 0,
      min_p: one(6) ? 0.05 : 0,
      repetition_penalty: one(6) ? 1.3 : 1,
      presence_penalty: one(8) ? 0.5 : 0,
      frequency_penalty: one(8) ? 0.5 : 0,
      max_tokens,
      min_tokens: one(5) ? random.int(max_tokens) : 0,
      stop: one(3) ? [letters([random.int(vocabulary)])] : [],
      stop_token_ids: one(3) ? Array.from({ length: 20 }, () => random.int(vocabulary)) : [],
      ...(one(8) && { logit_bias: { [random.int(vocabulary)]: 5 } }),
      ...(one(10) && { allowed_token_ids: Array.from({ length: 9 }, () => random.int(vocabulary)) }),
      seed: random.int(2 ** 31),
    }),
    ...(one(3) && { cacheSalt: `salt ${random.int(2)}` }),
    ...(one(4) && { logprobs: { mode: random.pick(['policy', 'raw', 'processed'] as const), top: random.int(4) } }),
    ...(one(12) && { logprobs: { prompt: 1 } }),
  }
}

const apart = ({ cachedTokens: _cached, ...result }: GenerationResult) => result

describe(`${count} requests together`, () => {
  it.each([
    { ahead: false, readBlock: 1 },
    { ahead: true, readBlock: 1 },
    { ahead: true, readBlock: 3 },
  ])('give each what it gives alone; no page is held after them (%j)', async (way) => {
    const random = new Random(seed)
    const { vocabSize } = decoder.config
    const requests = Array.from({ length: count }, () => anyRequest(random, goldenSequences('qwen3'), vocabSize))
    const engine = engineOf(decoder, { maxSequences: 16, maxLength: 96, cacheRows: 16 * 24, maxPrefillRows: 24, ...way })
    const running = requests.map((request) => {
      const cancel = random.int(4) === 0 ? new AbortController() : undefined
      if (cancel) setTimeout(() => cancel.abort(), random.int(1500))
      return engine.generate({ ...request, signal: cancel?.signal })
    })
    const together = await Promise.all(running)
    const stats = engine.stats()
    expect(stats, seedWords).toMatchObject({ running: 0, waiting: 0, kvRowsUsed: 0, failed: 0 })
    expect(stats.preemptions, seedWords).toBeGreaterThan(0)
    expect(stats.sharedPromptTokens, seedWords).toBeGreaterThan(0)
    for (const [i, request] of requests.entries()) {
      engine.resetPrefixCache()
      const alone = await engine.generate(request)
      const result = together[i]
      const words = `${seedWords}, request ${i}: ${JSON.stringify(request)}`
      if (result.finishReason !== 'abort') {
        expect(apart(result), words).toEqual(apart(alone))
        continue
      }
      // What a cancelled one has is the beginning of what it would have had.
      const n = result.ids.length
      expect([result.ids, result.logprobs], words).toEqual([alone.ids.slice(0, n), alone.logprobs.slice(0, n)])
    }
    await engine.close()
  })
})
