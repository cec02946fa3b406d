/** What every generator must do: the embedded engine, and a client of another server, go through the same tests. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { GenerationResult, Generator, SamplingParams } from '../../src/common/types.ts'
import { sampling } from './helpers.ts'

/** A generator ready to be tested. */
export interface GeneratorUnderTest {
  generator: Generator
  /** Prompts of this model, at least three different ones. */
  prompts: number[][]
  /** Text of tokens, as the generator makes it. */
  decode: (ids: number[]) => string
  /** Tokens of prompt and completion together at most; at least 40 more than the prompts have. */
  maxLength: number
  /** Whether a log-probability is known where filters shape what is drawn; else it is NaN, and not trained on. */
  tellsFiltered: boolean
  /** What the trainer, with the weights of this moment, says of tokens that follow a prompt: one log-probability each. */
  score: (promptIds: number[], ids: number[], temperature: number) => Promise<number[]>
  /** How far the generator's log-probabilities may be from those, in nats; 0: not a bit. */
  bound: number
  /** Moves the trainer's weights, by enough to be seen, and makes them the generator's as the next version. */
  push: () => Promise<void>
  /** Whether a request that runs goes on with new weights, or ends on those that it began with. */
  switchesInFlight: boolean
  /** A seed gives the same tokens whatever else runs, bit for bit (false: alone only). */
  batchInvariant: boolean
  close(): Promise<void>
}

export function testGenerator(name: string, create: () => Promise<GeneratorUnderTest>): void {
  describe(`generator: ${name}`, () => {
    let test: GeneratorUnderTest
    beforeAll(async () => {
      test = await create()
    })
    afterAll(async () => {
      await test.close()
    })
    const generate = (promptIds: number[], changes: Partial<SamplingParams> = {}, signal?: AbortSignal) =>
      test.generator.generate({ promptIds, sampling: sampling(changes), signal })

    it('gives each token a log-probability and a version, and stops at max_tokens', async () => {
      const result = await generate(test.prompts[0], { max_tokens: 9 })
      expectWhole(result)
      expect(result).toMatchObject({ finishReason: 'length', stopCondition: 'max_tokens', text: test.decode(result.ids) })
      expect(result.ids).toHaveLength(9)
      expect(result.versions.every((v) => v === test.generator.version)).toBe(true)
    })

    it('runs requests together, each with its own parameters', async () => {
      const together = test.prompts.flatMap((prompt, i) =>
        [1, 6, 12].map((max_tokens) => ({ prompt, max_tokens, temperature: [0, 0.7, 1.3][i % 3], seed: 10 * i + max_tokens })),
      )
      const results = await Promise.all(together.map(({ prompt, ...changes }) => generate(prompt, changes)))
      results.forEach(expectWhole)
      expect(results.map((r) => r.ids.length)).toEqual(together.map((t) => t.max_tokens))
      if (!test.batchInvariant) return
      for (const [i, { prompt, ...changes }] of together.entries()) {
        if (i % 2 === 0)
          expect({ ...(await generate(prompt, changes)), cachedTokens: 0 }).toEqual({ ...results[i], cachedTokens: 0 })
      }
    })

    it('is greedy at temperature 0, whatever the seed', async () => {
      const [a, b] = [
        await generate(test.prompts[0], { temperature: 0, seed: 1 }),
        await generate(test.prompts[0], { temperature: 0, seed: 2 }),
      ]
      expect(a.ids).toEqual(b.ids)
      const topOne = await generate(test.prompts[0], { temperature: 0.9, top_k: 1 })
      expect(topOne.ids).toEqual(a.ids)
    })

    it('repeats with the same seed and differs with another', async () => {
      const hot = { temperature: 1.5, max_tokens: 16 }
      const [a, again, b] = [
        await generate(test.prompts[1], { ...hot, seed: 5 }),
        await generate(test.prompts[1], { ...hot, seed: 5 }),
        await generate(test.prompts[1], { ...hot, seed: 6 }),
      ]
      expect(again).toEqual(a)
      expect(b.ids).not.toEqual(a.ids)
    })

    it('stops at a stop token, which the ids keep and the text does not', async () => {
      const free = await generate(test.prompts[2], { max_tokens: 12, seed: 3 })
      const at = free.ids.findIndex((id, i) => i > 2 && !free.ids.slice(0, i).includes(id))
      const result = await generate(test.prompts[2], { max_tokens: 12, seed: 3, stop_token_ids: [free.ids[at]] })
      expect(result).toMatchObject({
        finishReason: 'stop',
        ids: free.ids.slice(0, at + 1),
        text: test.decode(free.ids.slice(0, at)),
      })
      expectWhole(result)
    })

    it('stops at a stop string, over the border of two tokens', async () => {
      const free = await generate(test.prompts[2], { max_tokens: 12, seed: 3 })
      const upTo = (n: number) => test.decode(free.ids.slice(0, n))
      const stop = upTo(7).slice(upTo(5).length - 1)
      const result = await generate(test.prompts[2], { max_tokens: 12, seed: 3, stop: ['never said', stop] })
      expect(result).toMatchObject({ finishReason: 'stop', stopCondition: `stop: ${stop}` })
      expect(result.text).toBe(free.text.slice(0, free.text.indexOf(stop)))
      expect(test.decode(result.ids)).toContain(stop)
      expect(test.decode(result.ids.slice(0, -1))).not.toContain(stop)
      expectWhole(result)
    })

    it('draws only what it may, and ends no earlier than it may', async () => {
      const free = await generate(test.prompts[2], { max_tokens: 12, seed: 3 })
      const known = (logprobs: number[]) => logprobs.map((l) => test.tellsFiltered || Number.isFinite(l))
      const [first, second] = [...new Set(free.ids)]
      const two = await generate(test.prompts[2], { max_tokens: 12, seed: 3, allowed_token_ids: [first, second] })
      expect(two.ids.filter((id) => id !== first && id !== second)).toEqual([])
      const one = await generate(test.prompts[2], { max_tokens: 4, seed: 3, logit_bias: { [second]: 100 } })
      expect(one.ids).toEqual([second, second, second, second])
      for (const { logprobs } of [two, one]) expect(known(logprobs)).toEqual(logprobs.map(() => test.tellsFiltered))
      // Every token that would come in its time ends it, but not before the fifth.
      const ends = { stop_token_ids: [...new Set(free.ids)], min_tokens: 5 }
      const late = await generate(test.prompts[2], { max_tokens: 12, seed: 3, ...ends })
      expect(late.ids.length).toBeGreaterThan(5)
      expect(late.ids.slice(0, 5).some((id) => ends.stop_token_ids.includes(id))).toBe(false)
      expect(known(late.logprobs)).toEqual(late.ids.map((_, i) => test.tellsFiltered || i >= 5))
    })

    it('ends an aborted request with what it has', async () => {
      const before = new AbortController()
      before.abort()
      expect(await generate(test.prompts[0], {}, before.signal)).toMatchObject({ ids: [], text: '', finishReason: 'abort' })
      // This process may not get a core until the long one is over (seen beside vLLM's threads on 2 cores: turns of the event loop 1.8 s apart, with
      // 16 ms of processor time between them): such a round proves nothing, and another one follows.
      let ends: GenerationResult[] = []
      for (let round = 0; ends[0]?.finishReason !== 'abort' && round < 8; round++) {
        const control = new AbortController()
        const long = generate(test.prompts[0], { max_tokens: test.maxLength - test.prompts[0].length }, control.signal)
        const other = generate(test.prompts[0], { max_tokens: 8 })
        // Under way, and far from its last token: each takes time.
        for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve))
        control.abort()
        ends = await Promise.all([long, other])
      }
      const [aborted, other] = ends
      expect(aborted).toMatchObject({ finishReason: 'abort', stopCondition: 'abort', text: test.decode(aborted.ids) })
      expectWhole(aborted)
      expect(other.ids).toHaveLength(8)
    })

    it('refuses what can not fit, naming both counts', async () => {
      const prompt = test.prompts[0]
      const max_tokens = test.maxLength - prompt.length + 1
      const refused = generate(prompt, { max_tokens })
      await expect(refused).rejects.toThrow(UserError)
      await expect(refused).rejects.toThrow(new RegExp(`\\b${prompt.length}\\b.*\\b${max_tokens}\\b.*\\b${test.maxLength}\\b`))
      await expect(generate([], {})).rejects.toThrow(UserError)
    })

    it("gives the trainer's log-probabilities, at any temperature", async () => {
      for (const temperature of [1, 0.6, 1.4]) {
        const results = await Promise.all(
          test.prompts.map((prompt, seed) => generate(prompt, { temperature, seed, max_tokens: 16 })),
        )
        for (const [i, result] of results.entries()) await expectTrainers(test.prompts[i], result, temperature)
      }
    })

    it('takes new weights while requests run: every token has a version, and new requests the new one', async () => {
      const { generator, prompts } = test
      const begin = generator.version
      const room = test.maxLength - Math.max(...prompts.map((prompt) => prompt.length))
      // On a busy machine the long ones may be over too soon: such a round proves less, and another one follows.
      let inFlight = 0
      for (let round = 1; inFlight < 2 && round <= 8; round++) {
        const long = prompts.map((prompt, seed) => generate(prompt, { max_tokens: room, seed, temperature: 1.2 }))
        const over = settled(Promise.all(long))
        // Once a short one is through, the long ones are under way.
        await generate(prompts[1], { max_tokens: 3 })
        if (!over()) inFlight++
        await test.push()
        expect(generator.version).toBe(begin + round)
        const fresh = await generate(prompts[1], { max_tokens: 8, seed: round })
        expect(fresh.versions).toEqual(fresh.ids.map(() => begin + round))
        await expectTrainers(prompts[1], fresh, 0.8)
        for (const result of await Promise.all(long)) {
          expectWhole(result)
          expect(result.versions[0]).toBe(begin + round - 1)
          expect(result.versions).toEqual(result.versions.toSorted((a, b) => a - b))
          if (!test.switchesInFlight) expect(result.versions.at(-1)).toBe(begin + round - 1)
        }
      }
      expect(inFlight, 'pushes that came while requests ran').toBe(2)
    })

    const expectTrainers = async (prompt: number[], { ids, logprobs }: GenerationResult, temperature: number) => {
      const scored = await test.score(prompt, ids, temperature)
      if (test.bound === 0) expect(logprobs).toEqual(scored)
      else expect(Math.max(...logprobs.map((l, i) => Math.abs(l - scored[i])))).toBeLessThan(test.bound)
    }

    it('keeps the log-probability that of the full vocabulary, whatever filters what is drawn, or says that it cannot', async () => {
      const plain = await generate(test.prompts[1], { temperature: 0.8, max_tokens: 1, top_k: 1 })
      if (!test.tellsFiltered) return expect(plain.logprobs).toEqual([NaN])
      for (const filter of [{ top_p: 0.01 }, { min_p: 0.999 }, { top_k: 1, repetition_penalty: 1.0001 }]) {
        const result = await generate(test.prompts[1], { temperature: 0.8, max_tokens: 1, ...filter })
        expect(result.ids).toEqual(plain.ids)
        expect(result.logprobs[0]).toBeCloseTo(plain.logprobs[0], 5)
      }
    })
  })
}

/** Whether a promise has settled by the time of asking. */
export const settled = (promise: Promise<unknown>): (() => boolean) => {
  let done = false
  void promise.finally(() => (done = true)).catch(() => {})
  return () => done
}

function expectWhole({ ids, logprobs, versions }: GenerationResult): void {
  expect(logprobs).toHaveLength(ids.length)
  expect(versions).toHaveLength(ids.length)
  expect(logprobs.every((l) => l <= 0 && Number.isFinite(l))).toBe(true)
}
