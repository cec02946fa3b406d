/** What an engine leaves when it is closed. */
import { expect, test } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { newModel } from '../../src/trainer/new-model.ts'
import { engineOf, sampling } from './helpers.ts'

const model = newModel(
  {
    family: 'qwen3',
    hidden_size: 64,
    intermediate_size: 128,
    num_hidden_layers: 4,
    num_attention_heads: 8,
    num_key_value_heads: 8,
    head_dim: 64,
    tie_word_embeddings: true,
    rope_theta: 1e4,
    rms_norm_eps: 1e-6,
    max_position_embeddings: 512,
    initializer_range: 0.1,
  },
  1,
)
const gpu = await Gpu.open()

// A software driver's memory is this process's.
test.runIf(gpu.facts.software)('its cache is back with the system before another engine makes one', async () => {
  const decoder = await loadDecoder(gpu, model, { round: true })
  const cacheBytes = 8 * 512 * 4 * 2 * 8 * 64 * 4
  const most: number[] = []
  for (let round = 0; round < 3; round++) {
    const engine = engineOf(decoder, { maxSequences: 8, maxLength: 512 })
    await engine.generate({ promptIds: [1, 2, 3], sampling: sampling({ max_tokens: 4 }) })
    most.push(process.memoryUsage.rss())
    await engine.close()
    expect(process.memoryUsage.rss()).toBeLessThan(most.at(-1)! - cacheBytes * 0.8)
  }
  expect(most[2]).toBeLessThan(most[0] + cacheBytes * 0.4)
  decoder.release()
  gpu.close()
})
