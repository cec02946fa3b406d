/** Log-probabilities, losses, every gradient and one AdamW step against PyTorch, transformers and PEFT. */
import { describe, expect, test } from 'vitest'
import { accumulateGradients, scoreSamples } from '../../src/trainer/gradients.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { AdamW } from '../../src/trainer/optimizer.ts'
import { distance, loadCase, openCase, openGpu, trainerOptions, tempFolder, withTrainer } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()
const forms = [
  { loss: 'cispo', form: 'clipped' },
  { loss: 'cispo_mask', form: 'masked' },
]

describe.each(['llama', 'qwen2', 'qwen3'])('%s', (name) => {
  describe.each([
    { how: 'adapter', key: 'lora' },
    { how: 'full', key: 'full' },
  ] as const)('$how', ({ how, key }) => {
    test('log-probabilities and entropies', async () => {
      const { settings, batch, expected } = await openCase(name)
      const decoder = await loadCase(await gpu, name, how)
      const results = await scoreSamples(decoder, batch.samples, { temperature: settings.temperature, microBatchTokens: 64 })
      for (const field of ['logprobs', 'entropy'] as const) {
        const all = Float32Array.from(results.flatMap((r) => [...r[field]]))
        expect(distance(all, await expected(`${key}.${field}`))).toBeLessThan(1e-5)
      }
      decoder.release()
    })

    test.each(forms)('$loss: the loss, its norm and every gradient', async ({ loss, form }) => {
      const { settings, batch, expected, hasExpected } = await openCase(name)
      const decoder = await loadCase(await gpu, name, how)
      const store = decoder.store!
      const options = { temperature: settings.temperature, checkpointing: true, microBatchTokens: 64 }
      const result = await accumulateGradients(decoder, batch, { ...options, loss: await loadLoss(loss, settings) })
      expect(distance([result.loss], [settings[`${key}.${form}.loss`] as number])).toBeLessThan(1e-4)
      const optimizer = new AdamW(store, { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0, maxGradNorm: 1 })
      optimizer.measure()
      expect(distance([await optimizer.settle()], [settings[`${key}.${form}.grad_norm`] as number])).toBeLessThan(1e-5)
      let compared = 0
      for (const parameter of store.parameters) {
        const tensor = `${key}.${form}.grad.${parameter.name}`
        if (!hasExpected(tensor)) continue
        expect(distance(await store.read(parameter, 'gradients'), await expected(tensor)), tensor).toBeLessThan(1e-4)
        compared++
      }
      expect(compared).toBe(store.parameters.length)
      optimizer.release()
      decoder.release()
    })
  })

  test('one clipped AdamW step of the adapter', async () => {
    const { settings, batch, expected } = await openCase(name)
    const decoder = await loadCase(await gpu, name, 'adapter')
    const options = await trainerOptions(folder, {
      loss: await loadLoss('cispo_mask', settings),
      temperature: settings.temperature,
      optimizer: {
        beta1: settings.betas[0],
        beta2: settings.betas[1],
        eps: settings.eps,
        weightDecay: settings.weight_decay,
        maxGradNorm: settings.max_grad_norm,
      },
      schedule: { type: 'constant', learningRate: settings.lr, warmupSteps: 0, maxSteps: 1 },
    })
    await withTrainer(decoder, options, async (trainer) => {
      const { metrics, skipped } = await trainer.trainStep(batch)
      expect(skipped).toBe(false)
      expect(metrics['optim/grad_norm']).toBeCloseTo(settings['lora.masked.grad_norm'] as number, 3)
      // Adam's first step moves each value by the learning rate times the gradient's sign, so where the gradient is rounding error both
      // signs are right: compare values, and count those that went the other way.
      let [moved, other] = [0, 0]
      for (const parameter of decoder.store!.parameters) {
        const [got, want] = [await decoder.store!.read(parameter), await expected(`lora.adamw.${parameter.name}`)]
        expect(distance(got, want), parameter.name).toBeLessThan(1e-4)
        moved += got.length
        other += got.filter((v, i) => Math.abs(v - want[i]) > 1e-5).length
      }
      expect(other / moved).toBeLessThan(1e-3)
    })
    decoder.release()
  })
})
