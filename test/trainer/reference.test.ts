/** The KL term and its reference model: the term itself, on host and GPU; against PyTorch; what a run's reference is; what it does to a policy. */
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import { BUILT_IN } from '../../src/config/algorithm-schema.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import type { Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss, runHostLoss, runLossKernel, type Loss } from '../../src/trainer/losses/index.ts'
import { klTerm, withKl } from '../../src/trainer/losses/kl.ts'
import { checkSameTokens, loadOtherReference, loadReference, withoutAdapter } from '../../src/trainer/reference.ts'
import { bars, fixtures, floats, relativeError } from '../golden/cases.ts'
import { writeQuantisedGguf } from '../model/blocks.ts'
import { seed, seedWords } from '../seed.ts'
import { batchOf, bounds, freshLora, openCase, openGpu, readAll, tempFolder, trainerOptions, withTrainer } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()
const adapterOf = (name: string) => readAdapter(join(fixtures, 'golden', name, 'adapter'))

describe('the term', () => {
  test('is exp(d) - d - 1, near 0 too', () => {
    expect(klTerm(-2, -2)).toBe(0)
    expect(klTerm(-1, -2)).toBeCloseTo(Math.exp(-1) + 1 - 1, 14)
    // Of d = 1e-6 and 1e-4 by hand: d^2 / 2 + d^3 / 6 + ...
    expect(Math.abs(klTerm(0, 1e-6) / (5e-13 + 1e-18 / 6) - 1)).toBeLessThan(1e-9)
    expect(Math.abs(klTerm(0, -1e-4) / (5e-9 - 1e-12 / 6 + 1e-16 / 24) - 1)).toBeLessThan(1e-9)
  })

  test.each(BUILT_IN.loss)('added to %s on host and GPU alike, and the derivative is that of the loss', async (name) => {
    const random = new Random(seed)
    const device = await gpu
    const loss = await loadLoss(name, bounds)
    const [length, beta] = [500, 0.3]
    const values = (fn: () => number) => Float32Array.from({ length }, fn)
    const logprobs = values(() => -4 * random.next())
    const inputs = {
      logprobs,
      frozenLogprobs: logprobs,
      inferenceLogprobs: logprobs.map((l) => l + 0.5 * random.normal()),
      // From equal over tiny differences to far away: both branches of the kernel.
      refLogprobs: logprobs.map((l, i) => (i % 10 === 0 ? l : l + random.normal() * 10 ** (-(i % 7) + 0.5))),
      advantages: values(() => random.normal()),
      lossMask: new Uint8Array(length).fill(1),
      entropy: new Float32Array(length),
      lossTokenCount: 2 * length,
    }
    const own = runHostLoss(loss, inputs)
    const onHost = withKl(own, inputs, beta)
    // Not of the prompt, where both models' log-probabilities may be anything.
    expect(withKl(own, { ...inputs, lossMask: new Uint8Array(length) }, beta)).toEqual(own)
    const up = (data: Float32Array) => device.upload(data, 'test')
    const t = {
      logprobs: up(logprobs),
      inferenceLogprobs: up(inputs.inferenceLogprobs),
      advantages: up(inputs.advantages),
      refLogprobs: up(inputs.refLogprobs),
      gradient: up(new Float32Array(length).fill(NaN)),
      loss: up(new Float32Array(length).fill(NaN)),
    }
    runLossKernel(device, loss.kernel!, t, length, { lossTokenCount: inputs.lossTokenCount, beta })
    const [gradient, losses] = [await device.readF32(t.gradient, length), await device.readF32(t.loss, length)]
    for (let i = 0; i < length; i++) {
      // The two parts may cancel: relative to the larger.
      const size = Math.max(Math.abs(own.gradient[i]), Math.abs(onHost.gradient[i] - own.gradient[i]))
      expect(Math.abs(gradient[i] - onHost.gradient[i]), `token ${i}, ${seedWords}`).toBeLessThanOrEqual(2e-6 * size)
    }
    const sum = losses.reduce((a, b) => a + b, 0)
    expect(Math.abs(sum - onHost.loss), seedWords).toBeLessThan(1e-5 * losses.reduce((a, b) => a + Math.abs(b), 1e-9))
    // Alone, where the loss asks for nothing, to a few roundings: near 0 it is a difference of nearly equal numbers.
    device.write(t.advantages, new Float32Array(length))
    runLossKernel(device, loss.kernel!, t, length, { lossTokenCount: inputs.lossTokenCount, beta })
    const alone = await device.readF32(t.loss, length)
    const nothing = runHostLoss(loss, { ...inputs, advantages: new Float32Array(length) })
    for (let i = 0; i < length; i++) {
      if (nothing.gradient[i] !== 0) continue
      const term = (beta * klTerm(logprobs[i], inputs.refLogprobs[i])) / inputs.lossTokenCount
      expect(Math.abs(alone[i] - term), `token ${i} alone, ${seedWords}`).toBeLessThanOrEqual(5e-6 * term)
    }
    for (const buffer of Object.values(t)) buffer.release()
    // The derivative, in float64.
    for (const i of [1, 10, 13, 499]) {
      const [l, ref, h] = [logprobs[i], inputs.refLogprobs[i], 1e-4]
      const slope = (klTerm(l + h, ref) - klTerm(l - h, ref)) / (2 * h)
      const added = ((onHost.gradient[i] - own.gradient[i]) * inputs.lossTokenCount) / beta
      expect(Math.abs(added - slope), `token ${i}, ${seedWords}`).toBeLessThan(1e-4 * Math.max(1, Math.abs(slope)))
    }
  })
})

/** CISPO as a file of a user's: it runs on the host. */
const onHost = async (): Promise<Loss> => {
  const { run, args } = await loadLoss('cispo', bounds)
  return { name: 'mine.ts', run, args, checked: true }
}

describe('against PyTorch', () => {
  test.each(['on the GPU', 'on the host'])('loss and gradients of an adapter, the loss %s', async (where) => {
    const { files, batch, settings } = await openCase('llama')
    const expected = await openSafetensors(join(fixtures, 'golden-kl/llama.safetensors'))
    const decoder = await loadDecoder(await gpu, files, { adapter: await adapterOf('llama') })
    const loss = where === 'on the host' ? await onHost() : await loadLoss('cispo', bounds)
    const samples = batch.samples.map((sample) => ({ ...sample }))
    const work = { loss, temperature: settings.temperature, checkpointing: false, microBatchTokens: 64 }
    const result = await accumulateGradients(
      decoder,
      { ...batch, samples },
      { ...work, beta: 0.25, reference: withoutAdapter(decoder) },
    )
    expect(relativeError([result.loss], await floats(expected, 'loss'))).toBeLessThan(bars.gradients)
    for (const [i, { refLogprobs, lossMask }] of samples.entries()) {
      const want = await floats(expected, `ref_logprobs.${i}`)
      const scored = (values: ArrayLike<number>) => Array.from(lossMask, (counts, t) => (counts ? values[t] : 0))
      expect(relativeError(scored(refLogprobs!), scored(want))).toBeLessThan(bars.logprobs)
    }
    for (const parameter of decoder.store!.parameters) {
      const want = await floats(expected, `base_model.model.${parameter.name}`)
      expect(relativeError(await decoder.store!.read(parameter, 'gradients'), want), parameter.name).toBeLessThan(bars.gradients)
    }
    decoder.release()
  })
})

describe("a run's reference", () => {
  const score = async (decoder: Parameters<typeof scoreSamples>[0], name: string) => {
    const { batch, settings } = await openCase(name)
    const results = await scoreSamples(decoder, batch.samples, { temperature: settings.temperature, microBatchTokens: 64 })
    return results.map(({ logprobs }) => logprobs)
  }

  test.each(['fresh adapter', 'adapter to go on from', 'full'] as const)(
    '%s: what the run began with, whatever is learned',
    async (how) => {
      const { files, batch } = await openCase('qwen3')
      const start = (await gpu).pool.bytesInUse
      const options = {
        'fresh adapter': freshLora(),
        'adapter to go on from': { adapter: await adapterOf('qwen3') },
        full: { full: true },
      }[how]
      const decoder = await loadDecoder(await gpu, files, options)
      const reference = await loadReference(decoder, files, options)
      const before = await score(decoder, 'qwen3')
      const base = await trainerOptions(folder)
      const schedule = { type: 'constant' as const, learningRate: 3e-3, warmupSteps: 0, maxSteps: 9 }
      await withTrainer(decoder, { ...base, schedule, reference, beta: 0.1 }, async (trainer) => {
        const kl: number[] = []
        for (let step = 1; step <= 3; step++) {
          const samples = batch.samples.map((sample) => ({ ...sample }))
          kl.push((await trainer.trainStep({ ...batch, samples, step })).metrics['ref_kl/all/mean']!)
          for (const [i, { refLogprobs, lossMask }] of samples.entries())
            for (const [t, counts] of lossMask.entries()) if (counts) expect(refLogprobs![t]).toBe(before[i][t])
        }
        expect(kl[0]).toBe(0)
        expect(kl[1]).toBeGreaterThan(0)
        expect(kl[2]).not.toBe(kl[1])
      })
      expect(await score(decoder, 'qwen3')).not.toEqual(before)
      expect(await score(reference, 'qwen3')).toEqual(before)
      reference.release()
      decoder.release()
      expect((await gpu).pool.bytesInUse).toBe(start)
    },
  )

  test('may be another model, of any shape, which scores as it does by itself', async () => {
    const { files, batch } = await openCase('llama')
    const start = (await gpu).pool.bytesInUse
    const options = { adapter: await adapterOf('llama') }
    const decoder = await loadDecoder(await gpu, files, options)
    const other = await openModel(join(fixtures, 'golden/qwen3/model'))
    expect([other.config.layers, other.config.headDim, other.config.hiddenSize]).not.toEqual([
      files.config.layers,
      files.config.headDim,
      files.config.hiddenSize,
    ])
    const reference = await loadOtherReference(await gpu, other, {})
    const alone = await loadDecoder(await gpu, other)
    const own = await scoreSamples(alone, batch.samples, { temperature: 0.8, microBatchTokens: 256 })
    alone.release()
    await withTrainer(decoder, { ...(await trainerOptions(folder)), reference, beta: 0.1 }, async (trainer) => {
      for (let step = 1; step <= 2; step++) {
        const samples = batch.samples.map((sample) => ({ ...sample }))
        expect((await trainer.trainStep({ ...batch, samples, step })).metrics['ref_kl/all/mean']).toBeGreaterThan(0)
        for (const [i, { refLogprobs, lossMask }] of samples.entries())
          for (const [t, counts] of lossMask.entries()) if (counts) expect(refLogprobs![t]).toBe(own[i].logprobs[t])
      }
    })
    reference.release()
    decoder.release()
    expect((await gpu).pool.bytesInUse).toBe(start)
  })

  test('is frozen and without the adapter that the policy goes on from, whatever else the policy is loaded with', async () => {
    const { files, batch } = await openCase('llama')
    const device = await gpu
    const start = device.pool.bytesInUse
    const alone = await loadDecoder(device, files)
    const [bytes, work] = [device.pool.bytesInUse - start, { temperature: 1, microBatchTokens: 256 }]
    const own = await scoreSamples(alone, batch.samples, work)
    alone.release()
    const { lora } = freshLora()
    const policies: LoadOptions[] = [{ adapter: await adapterOf('llama'), lora }, { full: true }]
    for (const policy of policies) {
      const reference = await loadOtherReference(device, files, policy)
      expect(reference.store?.parameters.length).toBeUndefined()
      expect(device.pool.bytesInUse - start).toBe(bytes)
      expect(await scoreSamples(reference, batch.samples, work)).toEqual(own)
      reference.release()
    }
  })

  test('that goes on from the state behind a prompt scores whole sequences, where the policy computes their prompt once', async () => {
    const other = await openModel(join(fixtures, 'odd/qwen35/model'))
    const [sample] = await readBatch(join(fixtures, 'odd/qwen35/batch.json'))
    const group = [0, 1, 2].map((i) => ({ ...sample, ids: sample.ids.with(40, i), promptKey: 'one', promptLength: 30 }))
    const { files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const reference = await loadOtherReference(await gpu, other, {})
    const own = await scoreSamples(reference, group, { temperature: 0.8, microBatchTokens: 256 })
    const work = { loss: await loadLoss('cispo', bounds), temperature: 0.8, checkpointing: true, microBatchTokens: 256 }
    const { rows } = await accumulateGradients(decoder, batchOf(group), { ...work, reference, beta: 0.1 })
    expect(rows).toBe(30 + 3 * (sample.ids.length - 31))
    for (const [i, { refLogprobs, lossMask }] of (group as TrainingSample[]).entries())
      for (const [t, counts] of lossMask.entries()) if (counts) expect(refLogprobs![t]).toBe(own[i].logprobs[t])
    reference.release()
    decoder.release()
    other.close()
  })

  test('is held in its blocks where its file is quantised: the same log-probabilities', async () => {
    const path = join(folder, 'mixed.gguf')
    writeQuantisedGguf(path, 'teacher')
    const other = await openModel(path)
    const { batch } = await openCase('llama')
    const score = async (decoder: Decoder) => {
      const results = await scoreSamples(decoder, batch.samples, { temperature: 1, microBatchTokens: 128 })
      return results.map(({ logprobs }) => logprobs)
    }
    const { pool } = await gpu
    const start = pool.bytesInUse
    const plain = await loadDecoder(await gpu, other, { round: true })
    const expected = await score(plain)
    plain.release()
    const held = await loadOtherReference(await gpu, other, { round: true })
    expect(held.layers[0].gate.weight.blocks).toBeDefined()
    expect(await score(held)).toEqual(expected)
    held.release()
    expect(pool.bytesInUse).toBe(start)
    other.close()
  })

  test('with other tokens, or too few rows, is refused', async () => {
    const words = (name: string, tokens: (string | null)[], rows = tokens.length) => ({
      name,
      config: { vocabSize: rows } as ModelConfig,
      tokenizer: { vocabSize: tokens.length, idToToken: (id: number) => tokens[id] ?? null } as unknown as Tokenizer,
    })
    const policy = words('small', ['a', 'b', null, 'c'], 6)
    checkSameTokens(policy, words('large', ['a', 'b', 'x', 'c', 'd'], 8))
    checkSameTokens(policy, words('as large', ['a', 'b', null, 'c'], 6))
    expect(() => checkSameTokens(policy, words('large', ['a', 'c', null, 'b'], 8))).toThrow(
      'The reference model large has a different vocabulary from small: token 1 is "c" there and "b" here',
    )
    expect(() => checkSameTokens(policy, words('large', ['a', 'b', null], 8))).toThrow('3 is null there and "c" here')
    expect(() => checkSameTokens(policy, words('large', ['a', 'b', null, 'c'], 5))).toThrow(
      'has 5 rows in its embedding, but small has 6',
    )
  })

  test('holds a policy the nearer the larger beta is; the first step is the same to the bit', async () => {
    const { files, batch } = await openCase('llama')
    async function learn(beta: number) {
      const options = freshLora()
      const decoder = await loadDecoder(await gpu, files, options)
      const reference = await loadReference(decoder, files, options)
      const base = await trainerOptions(folder)
      const schedule = { type: 'constant' as const, learningRate: 1e-2, warmupSteps: 0, maxSteps: 20 }
      return await withTrainer(decoder, { ...base, schedule, reference, beta }, async (trainer) => {
        const kl: number[] = []
        let first = new Map<string, Float32Array>()
        for (let step = 1; step <= 6; step++) {
          const samples = batch.samples.map((sample) => ({ ...sample }))
          kl.push((await trainer.trainStep({ ...batch, samples, step })).metrics['ref_kl/all/mean']!)
          if (step === 1) first = await readAll(decoder)
        }
        decoder.release()
        return { kl, first }
      })
    }
    const [free, held, tight] = [await learn(0), await learn(1), await learn(10)]
    expect(free.kl[0]).toBe(0)
    expect(tight.first).toEqual(free.first)
    expect(held.kl[5]).toBeLessThan(free.kl[5])
    expect(tight.kl[5]).toBeLessThan(held.kl[5])
  })

  test('a batch file may have its log-probabilities for some sequences only', async () => {
    const { files, batch, settings } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, { adapter: await adapterOf('llama') })
    const work = {
      loss: await loadLoss('cispo', bounds),
      temperature: settings.temperature,
      checkpointing: false,
      microBatchTokens: 64,
    }
    const some = batch.samples.map((sample, i) =>
      i === 0 ? { ...sample, refLogprobs: new Float32Array(sample.ids.length) } : sample,
    )
    const [plain, partly] = [
      await accumulateGradients(decoder, batch, work),
      await accumulateGradients(decoder, { ...batch, samples: some }, work),
    ]
    expect(partly.loss).toBe(plain.loss)
    // With one, all of them are computed.
    const kl = { ...work, beta: 0.25, reference: withoutAdapter(decoder) }
    const withTerm = await accumulateGradients(decoder, { ...batch, samples: some.map((sample) => ({ ...sample })) }, kl)
    expect(withTerm.loss).toBe((await accumulateGradients(decoder, batch, kl)).loss)
    decoder.release()
  })

  test('is asked for by a loss of a file, which reads it', async () => {
    const { files, batch } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const seen: boolean[] = []
    const loss: Loss = {
      name: 'mine.ts',
      args: {},
      checked: false,
      run: (x) => {
        seen.push(x.refLogprobs!.length === x.logprobs.length)
        return { gradient: new Float32Array(x.logprobs.length), loss: 0 }
      },
    }
    const reference = withoutAdapter(decoder)
    await withTrainer(decoder, { ...(await trainerOptions(folder)), loss, reference }, async (trainer) => {
      const { metrics } = await trainer.trainStep({ ...batch, samples: batch.samples.map((sample) => ({ ...sample })) })
      expect(metrics['ref_kl/all/mean']).toBe(0)
    })
    expect(seen.length).toBe(1 + batch.samples.length)
    expect(seen.every(Boolean)).toBe(true)
    decoder.release()
  })
})
