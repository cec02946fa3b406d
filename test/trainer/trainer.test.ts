/** Whole steps: what they change, what they say, what they do when something is not finite, and what memory they take. */
import fs, { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test, vi } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { Rollout } from '../../src/common/types.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { refreshWeights } from '../../src/model/decoder/trained.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss, negativeLogLikelihood } from '../../src/trainer/losses/index.ts'
import type { LossFunction } from '../../src/trainer/losses/types.ts'
import { AdamW } from '../../src/trainer/optimizer.ts'
import { ofAllUpdates } from '../../src/trainer/metrics.ts'
import { NotFiniteError } from '../../src/trainer/bad-step.ts'
import { METRICS } from '../../src/monitor/metrics-table.ts'
import { bounds, freshLora, loadCase, openCase, openGpu, readAll, tempFolder, trainerOptions, withTrainer } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()

describe('AdamW', () => {
  test('three steps as PyTorch makes them, in float64', async () => {
    const decoder = await loadCase(await gpu, 'qwen2', 'full')
    const store = decoder.store!
    const options = { beta1: 0.9, beta2: 0.99, eps: 1e-6, weightDecay: 0.1, maxGradNorm: 2 }
    const optimizer = new AdamW(store, options)
    const before = await readAll(decoder)
    const rates = [1e-3, 5e-4, 2e-3]
    const state = new Map(
      [...before].map(([name, w]) => [
        name,
        { w: Float64Array.from(w), m: new Float64Array(w.length), v: new Float64Array(w.length) },
      ]),
    )
    for (const [k, rate] of rates.entries()) {
      // Any gradient will do: the parameters' own values, scaled.
      for (const p of store.parameters) {
        for (const piece of p.pieces) {
          const values = new Float32Array(piece.rows * p.columns).map((_, i) => Math.sin(i + k) * 0.1)
          store.gpu.write(store.banks[piece.bank].gradients, values, piece.offset * 4)
        }
      }
      optimizer.measure()
      optimizer.update(rate)
      const norm = await optimizer.settle()
      let squares = 0
      for (const w of before.values()) for (let i = 0; i < w.length; i++) squares += Math.fround(Math.sin(i + k) * 0.1) ** 2
      expect(Math.abs(norm / Math.sqrt(squares) - 1)).toBeLessThan(1e-6)
      expect(optimizer.steps).toBe(k + 1)
      const clip = Math.min(1, options.maxGradNorm / (norm + 1e-6))
      expect(clip).toBeLessThan(1)
      for (const parameter of store.parameters) {
        const { w, m, v } = state.get(parameter.name)!
        const decay = parameter.shape.length === 2 ? options.weightDecay : 0
        for (let i = 0; i < w.length; i++) {
          const g = Math.sin(i + k) * 0.1 * clip
          w[i] -= rate * decay * w[i]
          m[i] = 0.9 * m[i] + 0.1 * g
          v[i] = 0.99 * v[i] + 0.01 * g * g
          w[i] -= (rate / (1 - 0.9 ** (k + 1))) * (m[i] / (Math.sqrt(v[i]) / Math.sqrt(1 - 0.99 ** (k + 1)) + options.eps))
        }
      }
    }
    for (const [name, got] of await readAll(decoder)) {
      const { w } = state.get(name)!
      let worst = 0
      got.forEach((x, i) => (worst = Math.max(worst, Math.abs(x - w[i]))))
      expect(worst, name).toBeLessThan(2e-6)
    }
    optimizer.release()
    decoder.release()
  })
})

describe('AdamW with 8-bit moments', () => {
  /** Losses of six steps on one batch, and the bytes of the moments for each value that is trained. */
  async function learn(how: 'adapter' | 'full', moments: 'float32' | '8bit') {
    const { files, batch } = await openCase('qwen3')
    const decoder = await loadDecoder(await gpu, files, how === 'adapter' ? freshLora() : { full: true })
    const samples = batch.samples.map((s) => ({ ...s, advantages: Float32Array.from(s.lossMask) }))
    const base = await trainerOptions(folder)
    const options = {
      ...base,
      loss: negativeLogLikelihood,
      optimizer: { ...base.optimizer, moments },
      schedule: { type: 'constant' as const, learningRate: how === 'adapter' ? 1e-2 : 1e-3, warmupSteps: 0, maxSteps: 9 },
    }
    return await withTrainer(decoder, options, async (trainer) => {
      const losses: number[] = []
      for (let i = 0; i < 8; i++) losses.push((await trainer.trainStep({ ...batch, samples })).metrics['loss/mean']!)
      const size = decoder.store!.banks.reduce((sum, { count }) => sum + count, 0)
      const bytes = trainer.optimizer.stateBytes / size
      decoder.release()
      return { losses, bytes }
    })
  }

  test.each(['adapter', 'full'] as const)('%s: the loss falls as it does with float32 moments', async (how) => {
    const [wide, narrow] = [await learn(how, 'float32'), await learn(how, '8bit')]
    expect(wide.bytes).toBe(8)
    // Gains stay float32; of a model this small they are a part that counts.
    expect(narrow.bytes).toBeLessThan(how === 'adapter' ? 2.04 : 2.6)
    expect(narrow.losses[0]).toBe(wide.losses[0])
    const fall = wide.losses[0] - wide.losses[7]
    expect(fall).toBeGreaterThan(0.1)
    narrow.losses.forEach((loss, i) => expect(Math.abs(loss - wide.losses[i]) / fall, `step ${i}`).toBeLessThan(0.05))
    expect(narrow.losses).not.toEqual(wide.losses)
  })
})

describe('a step', () => {
  test('says what it came to under the names of the glossary', async () => {
    const { batch, settings } = await openCase('llama')
    const decoder = await loadCase(await gpu, 'llama', 'adapter')
    await withTrainer(decoder, await trainerOptions(folder), async (trainer) => {
      let published = 0
      const parts: [number, number][] = []
      const { metrics, samples, skipped } = await trainer.trainStep(batch, {
        published: () => published++,
        progress: (done, total) => parts.push([done, total]),
      })
      expect([skipped, published, trainer.step]).toEqual([false, 1, 1])
      expect(parts.at(-1)![0]).toBe(parts.at(-1)![1])
      for (const [name, value] of Object.entries(metrics)) {
        expect(METRICS[name], name).toBeDefined()
        expect(Number.isFinite(value), name).toBe(true)
      }
      // The same numbers from the tokens, by the formulas of the glossary.
      const ratios: number[] = []
      let entropy = 0
      batch.samples.forEach((s, i) =>
        s.lossMask.forEach((counts, t) => {
          if (!counts) return
          ratios.push(Math.exp(samples[i].logprobs[t] - s.inferenceLogprobs[t]))
          entropy += samples[i].entropy[t]
        }),
      )
      const mean = (values: number[]) => values.reduce((a, b) => a + b, 0) / ratios.length
      const share = (keep: (r: number) => boolean) => ratios.filter(keep).length / ratios.length
      const want = {
        'loss/mean': settings['lora.clipped.loss'] as number,
        'entropy/all/mean': entropy / ratios.length,
        'mismatch_kl/all/mean': mean(ratios.map((r) => r - Math.log(r) - 1)),
        'mismatch_kl/all/max': Math.max(...ratios.map((r) => r - Math.log(r) - 1)),
        importance_ratio: mean(ratios),
        'is_masked/mean': share((r) => r < 0.125 || r > 8),
        'is_masked_low/mean': share((r) => r < 0.125),
        'is_masked_high/mean': share((r) => r > 8),
        'optim/grad_norm': settings['lora.clipped.grad_norm'] as number,
        'optim/lr': 1e-3,
      }
      for (const [name, value] of Object.entries(want))
        expect(Math.abs(metrics[name]! - value), name).toBeLessThan(1e-5 * Math.abs(value) + 1e-9)
      expect(want['is_masked/mean']).toBeGreaterThan(0)
      for (const name of ['perf/throughput', 'perf/peak_memory', 'time/forward_backward'])
        expect(metrics[name]).toBeGreaterThan(0)
    })
    decoder.release()
  })

  test('of several updates by a batch moves the weights as so many steps with it would', async () => {
    const { files, batch } = await openCase('llama')
    const runOnce = async (iterations: number, steps: number) => {
      const decoder = await loadDecoder(await gpu, files, freshLora())
      const schedule = { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 9 } as const
      const rows: Record<string, number | null>[] = []
      const [shares, parts]: [number[], number[]] = [[], []]
      const progress = (done: number, total: number) => parts.push(done / total)
      const weights = await withTrainer(decoder, await trainerOptions(folder, { schedule, iterations }), async (trainer) => {
        let sampled: Float32Array[] = []
        for (let i = 0; i < steps; i++) {
          const { metrics, samples } = await trainer.trainStep(batch, { published: (share) => shares.push(share), progress })
          rows.push(metrics)
          if (i === 0) sampled = samples.map(({ logprobs }) => logprobs)
        }
        expect([trainer.step, trainer.optimizer.steps]).toEqual([steps, iterations * steps])
        return { values: await readAll(decoder), sampled }
      })
      decoder.release()
      return { ...weights, rows, shares, parts }
    }
    const apart = await runOnce(1, 3)
    const together = await runOnce(3, 1)
    expect(together.values).toEqual(apart.values)
    expect(together.shares).toEqual([1 / 3, 2 / 3, 1])
    expect(together.parts).toEqual(together.parts.toSorted((a, b) => a - b))
    expect(together.parts.at(-1)).toBe(1)
    // What the batch came to before any update by it, and means over the updates.
    expect(together.sampled).toEqual(apart.sampled)
    const [row] = together.rows
    const mean = (name: string) => apart.rows.reduce((sum, r) => sum + r[name]!, 0) / 3
    for (const name of ['loss/mean', 'entropy/all/mean', 'importance_ratio', 'is_masked/mean', 'optim/grad_norm'])
      expect(row[name], name).toBeCloseTo(mean(name), 12)
    expect(row.importance_ratio).not.toBe(apart.rows[0].importance_ratio)
    for (const name of ['mismatch_kl/all/mean', 'mismatch_kl/all/max', 'optim/lr'])
      expect(row[name], name).toBe(apart.rows[0][name])
    expect(Object.keys(row)).toEqual(Object.keys(apart.rows[0]))
  })

  test("of several updates has a loss's own metrics of those that gave them", () => {
    const update = (own: object) => ({ 'loss/mean': 1, 'time/forward_backward': 2, ...own })
    const row = ofAllUpdates([update({ 'loss/early': 4 }), update({ 'loss/clipped': 1 }), update({ 'loss/clipped': 2 })])
    expect(row).toEqual({ 'loss/mean': 1, 'time/forward_backward': 6, 'loss/early': 4, 'loss/clipped': 1.5 })
  })

  test('lowers the loss of what it trains on', async () => {
    const { files, batch } = await openCase('qwen3')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const samples = batch.samples.map((s) => ({ ...s, advantages: Float32Array.from(s.lossMask) }))
    const options = await trainerOptions(folder, {
      loss: negativeLogLikelihood,
      temperature: 1,
      schedule: { type: 'constant', learningRate: 1e-2, warmupSteps: 0, maxSteps: 9 },
    })
    await withTrainer(decoder, options, async (trainer) => {
      const losses: number[] = []
      for (let i = 0; i < 6; i++) {
        const { metrics, samples: found } = await trainer.trainStep({ ...batch, samples })
        losses.push(metrics['loss/mean']!)
        expect(metrics).not.toHaveProperty('importance_ratio')
        // Of each token -logp, whatever stands in the samples as the log-probability of a sampler.
        const logp = found.flatMap(({ logprobs }, n) => [...logprobs].filter((_, t) => samples[n].lossMask[t]))
        expect(logp).toHaveLength(batch.lossTokenCount)
        expect(losses[i]).toBeCloseTo(-logp.reduce((a, b) => a + b, 0) / batch.lossTokenCount, 4)
      }
      losses.slice(1).forEach((loss, i) => expect(loss).toBeLessThan(losses[i]))
    })
    decoder.release()
  })

  test('of full training moves the bf16 weights that the model runs on', async () => {
    const { batch } = await openCase('llama')
    const decoder = await loadCase(await gpu, 'llama', 'full')
    const score = () => scoreSamples(decoder, batch.samples, { temperature: 0.8, microBatchTokens: 4096 })
    const before = await score()
    await withTrainer(decoder, await trainerOptions(folder), (trainer) => trainer.trainStep(batch))
    const after = await score()
    expect(decoder.layers[0].gate.weight.bf16).toBe(true)
    expect(after[0].logprobs).not.toEqual(before[0].logprobs)
    // The model that runs is the masters, rounded: reading them back rounded gives the same numbers.
    const values = await readAll(decoder)
    const { files } = await openCase('llama')
    const again = await loadDecoder(await gpu, {
      ...files,
      tensors: { ...files.tensors, names: () => files.tensors.names(), has: (n) => files.tensors.has(n), shape: (n) => files.tensors.shape(n), close: () => {}, read: async (name) => {
        const { roundToBf16 } = await import('../../src/model/bf16.ts')
        const [data, shape] = [values.get(name)!, files.tensors.shape(name)]
        return shape.length === 2 ? { dtype: 'bf16', shape, data: roundToBf16(data) } : { dtype: 'f32', shape, data }
      } },
    }) // prettier-ignore
    expect(await scoreSamples(again, batch.samples, { temperature: 0.8, microBatchTokens: 4096 })).toEqual(after)
    again.release()
    decoder.release()
  })

  test('of the optimizer is few dispatches, makes nothing and does not wait', async () => {
    const device = await gpu
    const decoder = await loadCase(device, 'llama', 'full')
    for (const moments of ['float32', '8bit'] as const) {
      const optimizer = new AdamW(decoder.store!, { beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0, maxGradNorm: 1, moments })
      const step = async () => {
        const before = device.dispatches
        optimizer.measure()
        optimizer.update(1e-3)
        const dispatches = device.dispatches - before
        const submits = device.submits
        refreshWeights(decoder)
        expect(device.submits).toBe(submits)
        await optimizer.settle()
        return dispatches
      }
      await step()
      const made = () => [device.bindGroups, device.pool.bytesReserved, device.readBuffersMade, device.kernels.size]
      const before = made()
      // A bank for matrices and one for gains: sums of squares, the norm, the update.
      for (let i = 0; i < 3; i++) expect(await step()).toBe(2 * decoder.store!.banks.length + 1)
      expect(made()).toEqual(before)
      expect(optimizer.steps).toBe(4)
      optimizer.update(1e-3)
      expect(() => optimizer.update(1e-3)).toThrow('not settled')
      await optimizer.settle()
      optimizer.release()
    }
    decoder.release()
  })

  test('with nothing to learn from is skipped', async () => {
    const { files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const { relief } = (await gpu).pool
    const others = relief.size
    await withTrainer(decoder, await trainerOptions(folder), async (trainer) => {
      const { skipped, metrics } = await trainer.trainStep({ step: 1, samples: [], lossTokenCount: 0 })
      expect([skipped, trainer.step, trainer.badSteps, metrics['optim/lr']]).toEqual([true, 1, 0, 1e-3])
    })
    // It counts in the schedule.
    const schedule = { type: 'linear', learningRate: 1e-3, warmupSteps: 2, maxSteps: 4 } as const
    await withTrainer(decoder, await trainerOptions(folder, { schedule }), async (trainer) => {
      const rates: unknown[] = []
      for (const step of [1, 2, 3, 4])
        rates.push((await trainer.trainStep({ step, samples: [], lossTokenCount: 0 })).metrics['optim/lr'])
      expect(rates).toEqual([0, 5e-4, 1e-3, 5e-4])
    })
    expect(relief.size).toBe(others)
    decoder.release()
  })

  test('takes no more memory the tenth time than the second', async () => {
    const device = await gpu
    const { files, batch } = await openCase('qwen3')
    const decoder = await loadDecoder(device, files, freshLora(undefined, 0.1))
    const { pool } = device
    await withTrainer(decoder, await trainerOptions(folder), async (trainer) => {
      const bytes: { inUse: number; reserved: number }[] = []
      for (let i = 0; i < 10; i++) {
        await trainer.trainStep({ ...batch, step: i + 1 })
        bytes.push({ inUse: pool.bytesInUse, reserved: pool.bytesReserved })
      }
      expect(bytes[9]).toEqual(bytes[1])
    })
    decoder.release()
    expect(pool.bytesInUse).toBe(0)
  })
})

describe('what is not finite', () => {
  test('is skipped, written down, and the third time in a row ends the run with the last good weights', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const run = join(folder, 'nan')
    await withTrainer(decoder, await trainerOptions(run), async (trainer) => {
      const bad = (step: number) => {
        const samples = batch.samples.map((s) => ({ ...s, advantages: s.advantages.slice() }))
        const token = samples[1].lossMask.indexOf(1)
        samples[1].advantages[token] = NaN
        samples[1].rollout = { env: 'sums', exampleId: 7, index: 3 } as Rollout
        return { ...batch, step, samples }
      }
      await trainer.trainStep({ ...batch, step: 1 })
      const good = await readAll(decoder)
      let published = 0
      const told: string[] = []
      const hooks = { published: () => published++, warn: (line: string) => told.push(line) }
      for (const step of [2, 3]) {
        const { skipped, metrics } = await trainer.trainStep(bad(step), hooks)
        expect([skipped, metrics['loss/mean'], metrics['optim/grad_norm']]).toEqual([true, null, null])
      }
      expect(published).toBe(0)
      expect(told).toEqual([expect.stringMatching(/^step 2 was not finite .+ nan_step_2\/\./), expect.stringMatching(/^step 3/)])
      expect(told[0]).toMatch(/ At fault: sequence 1 \(task 7 of sums, rollout 3\), where the advantage of token \d+ is NaN\.$/)
      expect(await readAll(decoder)).toEqual(good)
      // A good step in between starts the count anew, and the bad ones have left no trace in the moments.
      expect((await trainer.trainStep({ ...batch, step: 4 })).skipped).toBe(false)
      const kept = await readAll(decoder)
      for (const [name, values] of kept) expect(values.every(Number.isFinite), name).toBe(true)
      await trainer.trainStep(bad(5))
      await trainer.trainStep(bad(6))
      await expect(trainer.trainStep(bad(7))).rejects.toThrow(NotFiniteError)
      expect(await readAll(decoder)).toEqual(kept)
      expect(readFileSync(join(run, 'nan_step_7/note.txt'), 'utf8')).toMatch(/Step 7 was skipped: the loss is NaN/)
      const written = await readBatch(join(run, 'nan_step_2/batch.json'), { vocabSize: files.config.vocabSize })
      expect(written.map((s) => s.ids)).toEqual(batch.samples.map((s) => s.ids))
      expect(existsSync(join(run, 'nan_step_4'))).toBe(false)
    })
    decoder.release()
  })

  test('a token whose weights are none, or that the reference finds e^95 times as likely: their sequences are named, and no other', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, { full: true })
    const own = batch.samples[1].ids.findLastIndex((id) => !batch.samples.some((s, i) => i !== 1 && s.ids.includes(id)))
    const embedding = decoder.store!.parameters.find(({ name }) => name === 'model.embed_tokens.weight')!
    const good = await decoder.store!.read(embedding)
    const row = batch.samples[1].ids[own] * files.config.hiddenSize
    decoder.store!.write(embedding, good.slice().fill(NaN, row, row + files.config.hiddenSize))
    refreshWeights(decoder)
    const run = join(folder, 'nan-token')
    const told: string[] = []
    const samples = batch.samples.map((s) => ({ ...s, refLogprobs: s.inferenceLogprobs.slice() }))
    const work = await trainerOptions(run, { beta: 0.1, reference: decoder })
    await withTrainer(decoder, work, async (trainer) => {
      await trainer.trainStep({ ...batch, samples, step: 1 }, { warn: (line) => told.push(line) })
      decoder.store!.write(embedding, good)
      refreshWeights(decoder)
      const token = samples[0].lossMask.indexOf(1)
      samples[0].refLogprobs[token] += 95
      await trainer.trainStep({ ...batch, samples, step: 2 }, { warn: (line) => told.push(line) })
    })
    expect(told).toEqual([
      expect.stringMatching(/At fault: sequence 1, where the model's log-probability of token \d+ is NaN\.$/),
      expect.stringMatching(/At fault: sequence 0, where the KL term of token \d+ overflows float32/),
    ])
    expect(readFileSync(join(run, 'nan_step_1/note.txt'), 'utf8').match(/^At fault: .+/gm)).toHaveLength(1)
    decoder.release()
  })

  test('a loss that is no number beside finite gradients makes no update, and counts none', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    let value = 1
    const run: LossFunction = (x) => ({
      loss: value,
      gradient: Float32Array.from(x.lossMask, (counts, t) => counts * x.advantages[t]),
    })
    const loss = { name: 'mine.ts', run, args: {}, checked: false }
    await withTrainer(decoder, await trainerOptions(join(folder, 'nan-loss'), { loss }), async (trainer) => {
      value = NaN
      const before = await readAll(decoder)
      const { skipped, metrics } = await trainer.trainStep({ ...batch, step: 1 })
      expect([skipped, metrics['optim/grad_norm']]).toEqual([true, expect.any(Number)])
      expect([trainer.optimizer.steps, trainer.badSteps]).toEqual([0, 1])
      expect(await readAll(decoder)).toEqual(before)
    })
    decoder.release()
  })

  test('an update after others of its step ends the step, whose weights are those of the updates before', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const run = join(folder, 'nan-update')
    await withTrainer(decoder, await trainerOptions(run, { iterations: 3 }), async (trainer) => {
      const samples = batch.samples.map((s) => ({ ...s, advantages: s.advantages.slice() }))
      const token = samples[1].lossMask.indexOf(1)
      const [shares, told]: [number[], string[]] = [[], []]
      const published = (share: number) => {
        shares.push(share)
        samples[1].advantages[token] = NaN
      }
      const step = { ...batch, step: 1, samples }
      const { skipped, metrics } = await trainer.trainStep(step, { published, warn: (line) => told.push(line) })
      expect([skipped, metrics['loss/mean'], metrics['optim/grad_norm']]).toEqual([false, null, null])
      expect([shares, trainer.optimizer.steps, trainer.badSteps]).toEqual([[1 / 3], 1, 1])
      expect(told).toEqual([expect.stringMatching(/^update 2 of step 1 was not finite/)])
      expect(readFileSync(join(run, 'nan_step_1/note.txt'), 'utf8')).toMatch(
        /^Update 2 of step 1 and those after it were skipped/,
      )
      for (const [name, values] of await readAll(decoder)) expect(values.every(Number.isFinite), name).toBe(true)
    })
    decoder.release()
  })

  test('a finite loss with an infinite gradient too; a full disk has the step wait until its batch is written', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const full = vi.spyOn(fs, 'writeFileSync').mockImplementationOnce(() => {
      throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' })
    })
    syncBuiltinESMExports()
    onTestFinished(() => {
      full.mockRestore()
      syncBuiltinESMExports()
    })
    const said: string[] = []
    await withTrainer(decoder, await trainerOptions(join(folder, 'inf')), async (trainer) => {
      const samples = batch.samples.map((s) => ({
        ...s,
        advantages: s.advantages.map(() => 1e37),
        inferenceLogprobs: s.inferenceLogprobs.slice(),
      }))
      const { skipped } = await trainer.trainStep({ ...batch, samples }, { warn: (line) => said.push(line) })
      expect(skipped).toBe(true)
      expect(said).toEqual(['the disk is full: no room', 'there is room', 'step '].map((begin) => expect.stringContaining(begin)))
      expect(readFileSync(join(folder, 'inf/nan_step_1/note.txt'), 'utf8')).toMatch(
        /(?:gradient norm|loss is)[^]+No single sequence is at fault/,
      )
    })
    decoder.release()
  })

  test.each(['adapter', 'full'] as const)(
    '%s: learned of only after the update was recorded, it changes nothing',
    async (how) => {
      const { batch, files } = await openCase('llama')
      const decoder = await loadDecoder(await gpu, files, how === 'adapter' ? freshLora() : { full: true })
      const score = () => scoreSamples(decoder, batch.samples, { temperature: 0.8, microBatchTokens: 4096 })
      // The gradient of a loss of a file is what the file says it is, whatever the loss.
      const path = join(folder, `blow-${how}.mjs`)
      writeFileSync(
        path,
        `export const checkGradient = false
      export default (x) => ({ loss: 1, gradient: Float32Array.from(x.lossMask, (c, t) => (c ? x.advantages[t] : 0)) })\n`,
      )
      const loss = await loadLoss(path, bounds)
      for (const moments of ['float32', '8bit'] as const) {
        const base = await trainerOptions(join(folder, `late-${how}-${moments}`), { loss })
        await withTrainer(decoder, { ...base, optimizer: { ...base.optimizer, moments } }, async (trainer) => {
          const state = async () => [
            await readAll(decoder),
            await Promise.all(decoder.store!.parameters.map((p) => trainer.optimizer.read(p, 'exp_avg'))),
          ]
          await trainer.trainStep(batch)
          const [before, scores] = [await state(), await score()]
          let published = 0
          const samples = batch.samples.map((s) => ({ ...s, advantages: s.advantages.map(() => 1e30) }))
          const { skipped, metrics } = await trainer.trainStep({ ...batch, step: 2, samples }, { published: () => published++ })
          // The version is published, and names the same weights.
          expect([skipped, published, metrics['loss/mean'], metrics['optim/grad_norm'], trainer.badSteps]).toEqual([true, 1, expect.closeTo(batch.samples.length), null, 1]) // prettier-ignore
          expect(await state()).toEqual(before)
          expect(await score()).toEqual(scores)
          expect(trainer.optimizer.steps).toBe(1)
          await trainer.trainStep({ ...batch, step: 3 })
          expect([trainer.badSteps, trainer.optimizer.steps]).toEqual([0, 2])
        })
      }
      decoder.release()
    },
  )
})

describe('a loss of a file', () => {
  const file = (name: string, text: string) => {
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, name), text)
    return join(folder, name)
  }
  const body = (gradient: string) => `export default (x, { scale = 1 }) => {
    const gradient = new Float32Array(x.logprobs.length)
    let loss = 0
    x.lossMask.forEach((counts, t) => {
      if (!counts) return
      gradient[t] = ${gradient}
      loss -= scale * x.advantages[t] * x.logprobs[t] / x.lossTokenCount
    })
    return { gradient, loss, metrics: { double: 2 * loss, mean: 7 } }
  }\n`
  const right = '-scale * x.advantages[t] / x.lossTokenCount'

  test('trains, and its metrics are logged', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const loss = await loadLoss(file('right.ts', body(right)), bounds, { scale: 3 })
    await withTrainer(decoder, await trainerOptions(folder, { loss }), async (trainer) => {
      const { metrics, skipped } = await trainer.trainStep(batch)
      expect(skipped).toBe(false)
      expect(metrics['loss/double']! * batch.samples.length).toBeCloseTo(2 * metrics['loss/mean']!, 5)
      expect(metrics['loss/mean_']).toBe(7)
      expect(metrics).not.toHaveProperty('is_masked/mean')
    })
    decoder.release()
  })

  test('with a wrong gradient is refused on its first batch, before any weight moves', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const loss = await loadLoss(file('wrong.ts', body(`-(${right})`)), bounds)
    const before = await readAll(decoder)
    await withTrainer(decoder, await trainerOptions(folder, { loss }), async (trainer) => {
      await expect(trainer.trainStep(batch)).rejects.toThrow(UserError)
      await expect(trainer.trainStep(batch)).rejects.toThrow(/The sign is wrong/)
    })
    expect(await readAll(decoder)).toEqual(before)
    decoder.release()
  })

  test('that says so is not checked', async () => {
    const { batch, files } = await openCase('llama')
    const decoder = await loadDecoder(await gpu, files, freshLora())
    const loss = await loadLoss(file('free.ts', `export const checkGradient = false\n${body(`-(${right})`)}`), bounds)
    await withTrainer(decoder, await trainerOptions(folder, { loss }), async (trainer) => {
      expect((await trainer.trainStep(batch)).skipped).toBe(false)
    })
    decoder.release()
  })
})
