/** The golden cases: what PyTorch, transformers and PEFT computed for tiny models of each family, tensor by tensor. */
import { afterAll, describe, expect, test } from 'vitest'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { bars, fixtures, gradientErrors, openCase, openDecoder, scoreErrors, type Case } from './cases.ts'
import { withFacts } from '../facts.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

/** Other kinds of adapters, played by this one: they take other kernels (kernels/matmul/matmul.ts, kernels/common/lanes.ts). */
const tiers: { name: string; facts: Partial<GpuFacts> }[] = [
  { name: 'no subgroups (DAWN_RL_SUBGROUPS=0)', facts: { subgroupSize: 0 } },
  { name: 'register tiles, as on a GPU', facts: { software: false, subgroupSize: 0 } },
]

async function expectScores(decoder: Decoder, c: Case, mode: string): Promise<void> {
  const errors = await scoreErrors(decoder, c, mode)
  expect(errors.logprobs).toBeLessThanOrEqual(bars.logprobs)
  expect(errors.entropy).toBeLessThanOrEqual(bars.logprobs)
}

async function expectGradients(
  decoder: Decoder,
  c: Case,
  mode: 'lora' | 'full',
  loss: 'cispo' | 'cispo_mask',
  options: { checkpointing?: boolean; microBatchTokens?: number } = {},
): Promise<void> {
  const errors = await gradientErrors(decoder, c, mode, loss, options)
  expect(errors.missing).toEqual([])
  expect(errors.count).toBeGreaterThan(0)
  expect(errors.worst, errors.worstName).toBeLessThanOrEqual(bars.gradients)
  // Sums of signed parts, which partly cancel: the bar of gradients, not that of log-probabilities.
  expect(errors.loss).toBeLessThanOrEqual(bars.gradients)
  expect(errors.norm).toBeLessThanOrEqual(bars.gradients)
}

describe.each(['llama', 'qwen2', 'qwen3'])('%s', (name) => {
  const dir = `${fixtures}golden/${name}`
  const model = `${dir}/model`

  test.each(['lora', 'full'] as const)('%s: log-probabilities, entropies, every gradient of both losses', async (mode) => {
    const c = await openCase(dir)
    const start = gpu.pool.bytesInUse
    // See cases.ts for why the LoRA cases have rounded rotary frequencies.
    const decoder = await openDecoder(gpu, model, mode, { adapterDir: c.adapterDir, bf16Rope: mode === 'lora' })
    await expectScores(decoder, c, mode)
    for (const loss of ['cispo', 'cispo_mask'] as const) {
      await expectGradients(decoder, c, mode, loss)
      await expectGradients(decoder, c, mode, loss, { checkpointing: true, microBatchTokens: 40 })
    }
    decoder.release()
    expect(gpu.pool.bytesInUse).toBe(start)
  })

  test('with exact rotary frequencies', async () => {
    const c = await openCase(dir, `${fixtures}golden-exact/${name}`)
    const decoder = await openDecoder(gpu, model, 'lora', { adapterDir: c.adapterDir })
    await expectScores(decoder, c, 'lora')
    await expectGradients(decoder, c, 'lora', 'cispo')
    decoder.release()
  })

  test.each(tiers)('$name', async ({ facts }) => {
    await withFacts(gpu, facts, async () => {
      const c = await openCase(dir)
      const full = await openDecoder(gpu, model, 'full')
      await expectScores(full, c, 'full')
      await expectGradients(full, c, 'full', 'cispo', { checkpointing: true })
      full.release()
      const lora = await openDecoder(gpu, model, 'lora', { adapterDir: c.adapterDir, bf16Rope: true })
      await expectGradients(lora, c, 'lora', 'cispo_mask')
      lora.release()
    })
  })
})

test('a wrong rotary frequency would be seen: the golden LoRA cases are not met with exact ones', async () => {
  const c = await openCase(`${fixtures}golden/llama`)
  const decoder = await openDecoder(gpu, `${fixtures}golden/llama/model`, 'lora', { adapterDir: c.adapterDir })
  expect((await scoreErrors(decoder, c, 'lora')).logprobs).toBeGreaterThan(10 * bars.logprobs)
  decoder.release()
})
