/** Granite: what is drawn and reported is of its logits / logits_scaling, and the product that the residual is added to has a factor. */
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { withFacts } from '../facts.ts'
import { randomAdapter } from './adapter-folders.ts'
import { engineOf, expectTrainersBits, sampling } from './helpers.ts'
import { expectChoice, logitsOf, logSoftmax } from './reference.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
const dir = join(import.meta.dirname, '../fixtures/odd/granite')

const promptIds = Array.from({ length: 9 }, (_, i) => (i * 37) % 128)

it('draws from scaled logits: biases, penalties, filters, greedy, most likely tokens', async () => {
  const files = await openModel(join(dir, 'model'))
  expect(files.config.logitsScaling).toBe(1.7)
  const decoder = await loadDecoder(gpu, files)
  const engine = engineOf(decoder)
  const requests = [
    { logit_bias: { 5: 3, 6: 2.5, 100: -50 }, temperature: 1 },
    { repetition_penalty: 1.4, presence_penalty: 0.5, frequency_penalty: 0.3 },
    { top_k: 5, temperature: 1.3 },
    { temperature: 0 },
  ].flatMap((settings, seed) =>
    (['policy', 'raw', 'processed'] as const).map((mode) => ({
      promptIds,
      sampling: sampling({ seed, max_tokens: 8, ...settings }),
      logprobs: { mode, top: 20 },
    })),
  )
  const results = await Promise.all(requests.map((request) => engine.generate(request)))
  for (const [i, result] of results.entries())
    await expectChoice(decoder, requests[i], { ...result, cachedTokens: 0 }, { eos: [], name: `request ${i}` })
  await engine.close()
  decoder.release()
  files.close()
})

it("gives the trainer's bits with the kernels of GPUs, with an adapter and without", async () => {
  await withFacts(gpu, { software: false }, async () => {
    for (const adapter of [undefined, await readAdapter(join(dir, 'adapter'))]) {
      const files = await openModel(join(dir, 'model'))
      const decoder = await loadDecoder(gpu, files, { adapter })
      const engine = engineOf(decoder)
      const requests = [{}, { top_p: 0.8 }, { top_k: 5 }].map((settings, seed) => ({
        promptIds,
        sampling: sampling({ seed, max_tokens: 6, ...settings }),
      }))
      const results = await Promise.all(requests.map((request) => engine.generate(request)))
      await expectTrainersBits(
        decoder,
        requests.map((request, i) => ({ request, result: results[i] })),
      )
      const { ids, logprobs } = results[0]
      const logits = await logitsOf(decoder, [...promptIds, ...ids])
      ids.forEach((id, i) => {
        const tempered = logSoftmax(logits[promptIds.length - 1 + i].map((z) => z / requests[0].sampling.temperature))
        expect(Math.abs(logprobs[i] - tempered[id])).toBeLessThan(1e-5)
      })
      await engine.close()
      decoder.release()
      files.close()
    }
  })
})

it('an adapter of the matrix that is gate and up, by name, has the bits that it has as the own one', async () => {
  const granite4 = join(dir, '../granite4')
  const files = await openModel(join(granite4, 'model'))
  const plain = await loadDecoder(gpu, files)
  const owner = await loadDecoder(gpu, files, { adapter: await readAdapter(join(granite4, 'adapter')) })
  const [engine, other] = [engineOf(plain), engineOf(owner)]
  const wide = await randomAdapter(files.config, 'granite4-wide', { rank: 12 })
  for (const [name, folder] of [
    ['tuned', join(granite4, 'adapter')],
    ['wide', wide],
  ])
    await engine.adapters.load(name, folder)
  await other.adapters.load('wide', wide)
  const requests = (['tuned', 'wide', null] as const).map((adapter, seed) => ({
    promptIds,
    sampling: sampling({ seed, max_tokens: 8 }),
    adapter,
  }))
  const named = await Promise.all(requests.map((request) => engine.generate(request)))
  const own = await Promise.all(
    requests.map((request, i) => other.generate({ ...request, adapter: i === 0 ? undefined : request.adapter })),
  )
  const bits = ({ ids, logprobs }: (typeof named)[0]) => ({ ids, logprobs })
  expect(named.map(bits)).toEqual(own.map(bits))
  await expectTrainersBits(owner, [{ request: requests[0], result: named[0] }])
  await expectTrainersBits(plain, [{ request: requests[2], result: named[2] }])
  expect(new Set(named.map(({ logprobs }) => logprobs[0])).size).toBe(3)
  for (const one of [engine, other]) await one.close()
  for (const one of [plain, owner]) one.release()
})
