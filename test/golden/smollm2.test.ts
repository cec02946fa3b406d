/** The golden case of a real model: SmolLM2-135M-Instruct, from the GGUF that scripts/get-smollm2.sh fetches. */
import '../gpu/optimised.ts'
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { bars, fixtures, gradientErrors, openCase, openDecoder, scoreErrors } from './cases.ts'

const model = fileURLToPath(new URL('../../models/SmolLM2-135M-Instruct.Q4_1.gguf', import.meta.url))
// CI fetches it: there, a missing file is a failure.
const isThere = existsSync(model) || process.env.CI === 'true'
if (!isThere) console.warn(`SmolLM2 is skipped: ${model} is not there (scripts/get-smollm2.sh fetches it)`)

describe.runIf(isThere)('SmolLM2-135M-Instruct', () => {
  const dir = `${fixtures}golden/smollm2`
  let gpu: Gpu
  beforeAll(async () => (gpu = await Gpu.open()))
  afterAll(() => gpu.close())

  test('log-probabilities and entropies without the adapter', async () => {
    const decoder = await openDecoder(gpu, model, 'frozen')
    const errors = await scoreErrors(decoder, await openCase(dir), 'full')
    decoder.release()
    expect(errors.logprobs).toBeLessThanOrEqual(bars.logprobs)
    expect(errors.entropy).toBeLessThanOrEqual(bars.logprobs)
  })

  test('with the adapter: log-probabilities, gradients of both losses, and memory given back', async () => {
    const c = await openCase(dir)
    const start = gpu.pool.bytesInUse
    const decoder = await openDecoder(gpu, model, 'lora', { adapterDir: c.adapterDir })
    const scores = await scoreErrors(decoder, c, 'lora')
    expect(scores.logprobs).toBeLessThanOrEqual(bars.logprobs)
    expect(scores.entropy).toBeLessThanOrEqual(bars.logprobs)
    for (const [loss, checkpointing] of [
      ['cispo', false],
      ['cispo_mask', true],
    ] as const) {
      const errors = await gradientErrors(decoder, c, 'lora', loss, { checkpointing })
      expect(errors.missing).toEqual([])
      expect(errors.count).toBe(18)
      expect(errors.worst, errors.worstName).toBeLessThanOrEqual(bars.gradients)
      expect(errors.loss).toBeLessThanOrEqual(bars.gradients)
      expect(errors.norm).toBeLessThanOrEqual(bars.gradients)
    }
    decoder.release()
    expect(gpu.pool.bytesInUse).toBe(start)
  })
})
