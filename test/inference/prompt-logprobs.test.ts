/** Log-probabilities of prompts' tokens, from the engine: the trainer's bits, whatever else runs and however the prompt is cut. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { GenerationRequest, LogprobsRequest } from '../../src/common/types.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { engineOf, goldenDecoder, goldenSequences, sampling, scoreAfter } from './helpers.ts'
import { logitsOf, logSoftmax, ranked } from './reference.ts'

const gpu = await Gpu.open({ checks: true })
const sequences = goldenSequences('llama')
let decoder: Decoder
beforeAll(async () => {
  decoder = await goldenDecoder(gpu, 'llama')
})
afterAll(() => {
  decoder.release()
  gpu.close()
})

describe.each([
  { plans: true, ahead: false },
  { plans: true, ahead: true },
  { plans: false, ahead: true },
  { plans: true, ahead: true, readBlock: 4 },
])('prompts with %j', (options) => {
  it.each([256, 7])('are scored beside those that are not, %i rows a step', async (maxPrefillRows) => {
    const engine = engineOf(decoder, { maxSequences: 4, maxPrefillRows, ...options })
    const prompts = [sequences[2].slice(0, 40), sequences[0], sequences[2].slice(0, 40), sequences[0].slice(0, 1)]
    const asks: (LogprobsRequest | undefined)[] = [{ prompt: 3 }, { prompt: 0, mode: 'raw' }, undefined, { prompt: 5, top: 2 }]
    const requests = prompts.map((promptIds, i): GenerationRequest => ({
      promptIds,
      sampling: sampling({ seed: i, max_tokens: 5 }),
      logprobs: asks[i],
    }))
    const results = await Promise.all(requests.map((request) => engine.generate(request)))
    for (const [i, { promptIds }] of requests.entries()) {
      const { promptLogprobs, ids } = results[i]
      const ask = asks[i]
      // The same tokens come out, asked or not.
      expect(await engine.generate({ ...requests[i], logprobs: { mode: ask?.mode } })).toMatchObject({
        ids,
        logprobs: results[i].logprobs,
      })
      if (!ask) {
        expect(promptLogprobs).toBeUndefined()
        continue
      }
      const temperature = ask.mode === 'raw' ? 1 : 0.8
      expect(promptLogprobs).toHaveLength(promptIds.length)
      expect(promptLogprobs![0]).toBeNull()
      if (promptIds.length === 1) continue
      const trainers = await scoreAfter(decoder, promptIds.slice(0, 1), promptIds.slice(1), temperature)
      expect(promptLogprobs!.slice(1).map((entry) => entry!.logprob)).toEqual(trainers)
      const logits = await logitsOf(decoder, promptIds)
      promptLogprobs!.slice(1).forEach((entry, t) => {
        const told = logSoftmax(logits[t].map((z) => z / temperature))
        expect(entry!.ids).toEqual(ranked(told).slice(0, ask.prompt))
        expect(entry!.rank).toBe(1 + told.filter((l) => l > told[promptIds[t + 1]]).length)
        entry!.ids.forEach((id, k) => expect(Math.abs(entry!.logprobs[k] - told[id])).toBeLessThan(3e-5))
      })
    }
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, failed: 0 })
    await engine.close()
  })
})
