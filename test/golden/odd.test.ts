/** Sizes that the golden cases do not have, made by test/peers/make_odd_cases.py (which makes more; test/peers/test_odd.py runs all). */
import { readdirSync } from 'node:fs'
import { afterAll, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { bars, fixtures, gradientErrors, openCase, openDecoder, scoreErrors } from './cases.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

test.each(readdirSync(`${fixtures}odd`))('%s', async (name) => {
  const dir = `${fixtures}odd/${name}`
  const c = await openCase(dir)
  for (const mode of ['full', 'lora'] as const) {
    const decoder = await openDecoder(gpu, `${dir}/model`, mode, { adapterDir: c.adapterDir })
    const scores = await scoreErrors(decoder, c, mode, 16)
    expect(scores.logprobs).toBeLessThanOrEqual(bars.logprobs)
    expect(scores.entropy).toBeLessThanOrEqual(bars.logprobs)
    for (const loss of mode === 'full' ? (['cispo'] as const) : (['cispo', 'cispo_mask'] as const)) {
      for (const checkpointing of [false, true]) {
        const options = { checkpointing, microBatchTokens: checkpointing ? 16 : 4096 }
        const errors = await gradientErrors(decoder, c, mode, loss, options)
        expect(errors.missing).toEqual([])
        expect(errors.count).toBeGreaterThan(0)
        expect(errors.worst, `${mode} ${loss} ${errors.worstName}`).toBeLessThanOrEqual(bars.gradients)
        expect(errors.norm).toBeLessThanOrEqual(bars.gradients)
        // The parts of this loss differ in sign and are few.
        expect(errors.loss).toBeLessThanOrEqual(bars.gradients)
      }
    }
    decoder.release()
  }
})
