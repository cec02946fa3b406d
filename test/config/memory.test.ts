import { expect, test } from 'vitest'
import { parseConfig } from '../../src/config/load.ts'
import { estimateMemory, memoryOf, memoryTable, type MemoryOptions } from '../../src/config/memory.ts'
import type { ModelConfig } from '../../src/model/types.ts'

/** SmolLM2-135M: 134,515,008 weights (transformers' count), tied. */
const smollm2: ModelConfig = {
  family: 'llama', hiddenSize: 576, intermediateSize: 1536, layers: 30, heads: 9, kvHeads: 3, headDim: 64, vocabSize: 49152, rmsNormEps: 1e-5, ropeTheta: 100000,
  ropeScaling: { type: 'default' }, tieWordEmbeddings: true, qkvBias: false, outputBias: false, qkNorm: false, maxPositionEmbeddings: 8192, eosTokenIds: [2],
  bosTokenId: 1, padTokenId: 2,
} // prettier-ignore

const config = (args: string) =>
  parseConfig(
    `model = "x"\n[env]\nid = "reverse-text"\n[trainer.args]\nmax_seq_len = 128\nbatch_size = 32\nrollouts_per_example = 8\n${args}`,
  ).config
const bytes = (rows: { name: string; bytes: number }[], name: string) => rows.find((row) => row.name === name)?.bytes ?? 0

test('LoRA on SmolLM2: weights, adapter and cache by hand', () => {
  const rows = memoryOf(config('micro_batch_tokens = 1024'), { config: smollm2 })
  expect(bytes(rows, 'weights')).toBe(134_515_008 * 2)
  // rank 8 of: q 576+576, k and v 192+576, o 576+576, gate, up and down 1536+576, in 30 layers
  const adapter = 8 * 30 * (2 * 1152 + 2 * 768 + 3 * 2112)
  expect(bytes(rows, 'adapter')).toBe(4 * adapter)
  expect(bytes(rows, 'Adam')).toBe(8 * adapter)
  expect(bytes(memoryOf(config('optim = "adamw_8bit"'), { config: smollm2 }), 'Adam')).toBe(2.03125 * adapter)
  expect(bytes(rows, 'KV cache')).toBe(32 * 128 * 30 * 2 * 192 * 4)
  expect(bytes(rows, 'activations kept')).toBe(1024 * 576 * 30 * 4)
})

test('a reference model: nothing beside a fresh adapter, a copy where it is moved on, every weight in full fine-tuning', () => {
  const reference = (args: string) =>
    memoryOf(config(`beta = 0.1\n${args}`), { config: smollm2 }).find((row) => row.name === 'reference')
  const adapter = bytes(memoryOf(config(''), { config: smollm2 }), 'adapter')
  expect(reference('')).toBe(undefined)
  expect(reference('ref_model_sync_steps = 10')).toMatchObject({ bytes: adapter, how: 'a frozen copy of the adapter' })
  expect(reference('use_lora = false\nref_model_sync_steps = 10')?.bytes).toBe(134_515_008 * 2)
  // Another model: its weights, and what its layer takes beyond ours.
  const large = { ...smollm2, hiddenSize: 4096, intermediateSize: 16384, heads: 64, kvHeads: 8, layers: 2 }
  const tensors = { shape: () => [0, 0] } as never
  const taught = (other: ModelConfig) =>
    memoryOf(config('ref_model = "t"\nmicro_batch_tokens = 2048'), { config: smollm2, reference: { config: other, tensors } })
  expect(taught(smollm2).find((row) => row.name === 'reference')).toMatchObject({ bytes: 134_515_008 * 2 })
  expect(taught(smollm2).map((row) => row.name)).not.toContain('its pass')
  const held = ['activations kept', 'one layer'].reduce((sum, name) => sum + bytes(taught(large), name), 0)
  const inner = 4 * 4096 + 3 * 4096 + 4 * 512 + 64 + 3 * 16384
  expect(bytes(taught(large), 'its pass')).toBe(4 * 2048 * inner + 4 * 256 * 49152 - held)
  expect(memoryOf(config('ref_model_sync_steps = 10'), { config: smollm2 }).map((row) => row.name)).not.toContain('reference')
})

test('full fine-tuning, more tokens, no checkpointing: what grows, and how', () => {
  const full = memoryOf(config('use_lora = false'), { config: smollm2 })
  // a working copy in bf16, float32 masters, gradients and two moments
  const held = ['weights', 'masters', 'gradients', 'Adam'].map((name) => bytes(full, name) / 134_515_008)
  expect(held).toEqual([2, 4, 4, 8])
  expect(full.some((row) => row.name === 'adapter')).toBe(false)
  // In 8 bits: a byte and a 64th each, but for the gains (61 norms of 576)
  const gains = 61 * 576
  const small = memoryOf(config('use_lora = false\noptim = "adamw_8bit"'), { config: smollm2 })
  expect(bytes(small, 'Adam')).toBe((134_515_008 - gains) * 2.03125 + gains * 8)
  expect(small.filter((row) => row.name !== 'Adam')).toEqual(full.filter((row) => row.name !== 'Adam'))
  const at = (tokens: number) => memoryOf(config(`micro_batch_tokens = ${tokens}`), { config: smollm2 })
  for (const name of ['activations kept', 'one layer']) expect(bytes(at(4096), name)).toBe(4 * bytes(at(1024), name))
  expect(bytes(memoryOf(config('keep_attention = true'), { config: smollm2 }), 'attention kept')).toBe(4 * 30 * 1024 * 9 * 65)
  const kept = bytes(memoryOf(config('gradient_checkpointing = false'), { config: smollm2 }), 'activations kept')
  expect(kept).toBeGreaterThan(5 * bytes(memoryOf(config(''), { config: smollm2 }), 'activations kept'))
})

test('a KV cache that is larger than the adapter binds is cut, as the engine cuts it', () => {
  const limits = (binding: number) => ({ maxStorageBufferBindingSize: binding, maxBufferSize: 2 ** 31 })
  const cache = (of: ModelConfig, binding: number, args = '') =>
    memoryOf(config(args), { config: of }, limits(binding)).find((row) => row.name === 'KV cache')
  // A layer's keys are 32 completions x 128 tokens x 192 values.
  const whole = 32 * 128 * 192 * 4
  expect(cache(smollm2, whole + 16 * 192 * 4)).toMatchObject({ bytes: 60 * whole })
  const cut = { bytes: 60 * (whole - 16 * 192 * 4), how: 'as much as the GPU adapter binds, for 4080 tokens' }
  expect(cache(smollm2, whole + 16 * 192 * 4 - 1)).toEqual({ name: 'KV cache', ...cut })
  expect(cache(smollm2, whole / 2, '[inference]\nkv_cache_dtype = "f16"')).toMatchObject({ bytes: 30 * (whole - 16 * 192 * 4) })
  expect(cache(smollm2, 2 ** 30, '[inference]\nkv_cache_bytes = 100_000_000')).toMatchObject({
    bytes: 100_000_000,
    how: 'kv_cache_bytes, for 2170 tokens',
  })
})

test('decoding few long completions on a GPU: partial outputs of the splits of their keys', () => {
  const long = { ...smollm2, heads: 32, kvHeads: 8, headDim: 128 }
  const row = (seqs: number, length: number, software: boolean, binding: number) => {
    const run = config(`[inference]\nmax_num_seqs = ${seqs}`)
    run.trainer.args.max_seq_len = length
    const limits = { maxStorageBufferBindingSize: binding, maxBufferSize: 2 ** 32, software }
    return memoryOf(run, { config: long }, limits).find(({ name }) => name === 'decoding')!
  }
  const more = (seqs: number, length: number, binding = 2 ** 32 - 4) =>
    row(seqs, length, false, binding).bytes - row(seqs, length, true, binding).bytes
  const each = 32 * (131072 / 256) * 130 * 4
  expect(more(60, 131072)).toBe(60 * each)
  expect(row(60, 131072, false, 2 ** 32).how).toMatch(/ logits of 60, keys of 60 in 512 splits$/)
  // Of more completions, at most as many as leave the GPU idle: 64 x 32 heads, 4 together, are 512 workgroups.
  expect(more(64, 131072)).toBe(63 * each)
  expect(more(300, 131072)).toBe(63 * each)
  expect(more(56, 256)).toBe(0)
  // 16 completions bind 128 MiB, 20 more.
  expect(more(56, 131072, 2 ** 27)).toBe(16 * each)
})

const small: MemoryOptions = {
  model: smollm2,
  useLora: false,
  loraRank: 8,
  loraTargetModules: [],
  microBatchTokens: 256,
  gradientCheckpointing: true,
  bf16: true,
  maxNumSeqs: 0,
  maxSeqLen: 128,
}

test('nothing is generated: no cache', () => {
  const rows = estimateMemory(small)
  expect(rows.map((row) => row.name)).toEqual([
    'weights',
    'masters',
    'gradients',
    'Adam',
    'activations kept',
    'one layer',
    'head',
  ])
})

test('layers in blocks', () => {
  const blocks = { values: 100_000_000, bytes: 60_000_000, formats: ['Q4_1', 'Q5_0'] }
  const rows = estimateMemory({ ...small, blocks })
  const plain = estimateMemory(small)
  expect(bytes(plain, 'weights') - bytes(rows, 'weights')).toBe(200_000_000 - 60_000_000)
  expect(bytes(rows, 'widened')).toBe(200_000_000 / 30)
  expect(rows[0].how).toBe('134.5 M weights, 100.0 M in Q4_1, Q5_0, the others bf16')
  expect(rows).toHaveLength(plain.length + 1)
})

test('the table', () => {
  const rows = memoryOf(config('micro_batch_tokens = 1024'), { config: smollm2 })
  expect(memoryTable(rows, smollm2, { maxStorageBufferBindingSize: 2 ** 25, maxBufferSize: 2 ** 28 })).toMatchInlineSnapshot(`
    "  weights            257 MiB  134.5 M weights, bf16
      adapter           9.32 MiB  LoRA rank 8: 2.4 M parameters, float32
      gradients         9.32 MiB  2.4 M trained parameters, float32
      Adam              18.6 MiB  two moments of each, float32
      activations kept  67.5 MiB  one hidden state a layer: 30 layers x 1024 tokens x 576
      one layer         59.5 MiB  inside one layer, forward and backward, 1024 tokens
      head              52.5 MiB  logits of 256 tokens at a time x 49152 words
      KV cache           180 MiB  32 completions x 128 tokens x 30 layers, float32
      decoding          16.4 MiB  one token of each of 32 completions, 256 prompt tokens, logits of 32
      total              670 MiB
      The GPU adapter binds 32.0 MiB at a time; the embedding (54.0 MiB in bf16) is processed in 2 slices."
  `)
})
