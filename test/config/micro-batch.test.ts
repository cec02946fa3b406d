/** micro_batch_tokens = "auto": what it takes, what it chooses, and when it refuses. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test } from 'vitest'
import { parseConfig, parseSftConfig } from '../../src/config/load.ts'
import { memoryOf } from '../../src/config/memory.ts'
import { autoRange, keepMicroBatch, keptMicroBatch, sizeMicroBatch } from '../../src/config/micro-batch.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { newModel } from '../../src/trainer/new-model.ts'

const model = newModel(
  {
    family: 'qwen3', hidden_size: 128, intermediate_size: 384, num_hidden_layers: 5, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 32,
    tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 512, initializer_range: 0.02,
  },
  1,
) // prettier-ignore

const load = (args = '') =>
  parseConfig(
    `model = "x"\n[env]\nid = "reverse-text"\n[trainer.args]\nmax_seq_len = 100\nbatch_size = 512\nmicro_batch_tokens = "auto"\n${args}`,
  )
const { config } = load()
const wide = { maxStorageBufferBindingSize: 2 ** 30, maxBufferSize: 2 ** 31 }
const total = (tokens: number) =>
  memoryOf(
    { ...config, trainer: { ...config.trainer, args: { ...config.trainer.args, micro_batch_tokens: tokens } } },
    model,
  ).reduce((sum, row) => sum + row.bytes, 0)
const room = (bytes: number) => ({ bytes, from: 'a test' })

test('until the verb has sized it, it is the most there can be', () => {
  const { args } = config.trainer
  expect([args.micro_batch_tokens, args.micro_batch_size, load().autoMicroBatch]).toEqual([32768, 327, true])
  expect(load('').notices).toEqual([])
  expect(parseConfig('model = "x"\n[env]\nid = "reverse-text"').autoMicroBatch).toBe(false)
  const sft = parseSftConfig(
    'model = "x"\n[data.env]\nid = "reverse-text"\n[trainer.args]\nmicro_batch_tokens = "auto"\nmax_seq_len = 64',
  )
  expect([sft.autoMicroBatch, sft.config.trainer.args.micro_batch_tokens]).toEqual([true, 2048])
})

test.each([
  [
    { batch_size: 512, max_seq_len: 100 },
    { least: 128, most: 32768 },
  ],
  [
    { batch_size: 2, max_seq_len: 64 },
    { least: 64, most: 128 },
  ],
  // One sequence must fit, though a batch is hardly more.
  [
    { batch_size: 1, max_seq_len: 100 },
    { least: 128, most: 128 },
  ],
])('range of %o', (args, range) => expect(autoRange(args)).toEqual(range))

describe('the largest power of two that fits', () => {
  test.each([128, 1024, 4096, 16384])('%i', (tokens) => {
    // Room for these and one byte less than for twice as many
    for (const bytes of [total(tokens) / 0.85 + 1, total(2 * tokens) / 0.85 - 1]) {
      const { config: sized, line } = sizeMicroBatch(config, model, room(bytes), wide)
      expect(sized.trainer.args.micro_batch_tokens).toBe(tokens)
      expect(sized.trainer.args.micro_batch_size).toBe(Math.floor(tokens / 100))
      expect(line).toMatch(
        new RegExp(`^micro_batch_tokens = ${tokens} \\("auto"\\): needs about .* \\(a test\\); twice as many need`),
      )
    }
  })

  test('never above a batch, never an activation that the adapter cannot bind', () => {
    const all = sizeMicroBatch(config, model, room(2 ** 40), wide)
    expect(all.config.trainer.args.micro_batch_tokens).toBe(32768)
    expect(all.line).toContain('a batch of 512 x 100 tokens')
    const narrow = sizeMicroBatch(config, model, room(2 ** 40), { ...wide, maxStorageBufferBindingSize: 4 * 384 * 2048 + 5 })
    expect(narrow.config.trainer.args.micro_batch_tokens).toBe(2048)
    expect(narrow.line).toContain('with twice as many, an activation is more than the adapter binds at once, 3.00 MiB')
  })

  test('smaller moments and checkpointing leave room for more', () => {
    const bytes = total(2048) / 0.85
    const tokens = (args: string) =>
      sizeMicroBatch(load(args).config, model, room(bytes), wide).config.trainer.args.micro_batch_tokens
    expect(tokens('gradient_checkpointing = false')).toBeLessThan(tokens(''))
    const full = load('use_lora = false').config
    const needed = memoryOf(
      { ...full, trainer: { ...full.trainer, args: { ...full.trainer.args, micro_batch_tokens: 1024 } } },
      model,
    ).reduce((sum, row) => sum + row.bytes, 0)
    const fullTokens = (args: string) =>
      sizeMicroBatch(load(`use_lora = false\n${args}`).config, model, room((needed - 2e6) / 0.85), wide).config.trainer.args
        .micro_batch_tokens
    expect([fullTokens(''), fullTokens('optim = "adamw_8bit"')]).toEqual([512, 1024])
  })

  test('refused where not even one sequence fits', () => {
    expect(() => sizeMicroBatch(config, model, room(1e6), wide)).toThrow(
      /not even 128 tokens fit: .* are needed, more than 85% of 977 KiB \(a test\)/,
    )
    expect(() => sizeMicroBatch(config, model, room(2 ** 40), { ...wide, maxBufferSize: 1000 })).toThrow(
      /an activation of 192 KiB is more than/,
    )
  })
})

test('a resumed run keeps its number, with all the memory that there is; and begins anew where it has no room for a sequence', () => {
  const keep = (bytes: number, limits = wide) => keepMicroBatch(config, model, 1024, room(bytes), limits)
  expect(keep(total(1024)).config.trainer.args).toMatchObject({ micro_batch_tokens: 1024, micro_batch_size: 10 })
  expect(() => keep(total(1024) - 1)).toThrow(/started with micro_batch_tokens = 1024 .* which this machine cannot hold: about/)
  expect(keepMicroBatch(config, model, 1024, undefined, wide).config).toEqual(keep(2 ** 40).config)
  const widest = 4 * 384 * 1024
  expect(keep(2 ** 40, { ...wide, maxBufferSize: widest }).config).toEqual(keep(2 ** 40).config)
  expect(() => keep(2 ** 40, { ...wide, maxBufferSize: widest - 1 })).toThrow(/an activation of 1.50 MiB is more than/)

  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-micro-batch-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const kept = (max_seq_len: number) => keptMicroBatch(folder, { batch_size: 512, max_seq_len })
  expect(kept(100)).toBeUndefined()
  writeFileSync(join(folder, 'config.toml'), '[trainer.args]\nmicro_batch_tokens = 1024\n')
  expect([100, 1024, 1025].map(kept)).toEqual([1024, 1024, undefined])
})

test('the resolved config says the number, and is a config again', () => {
  const { config: sized } = sizeMicroBatch(load('gpu_memory = 1.5').config, model, room(2 ** 40), wide)
  const text = stringifyConfig(sized)
  expect(text).toContain('micro_batch_tokens = 32768\n')
  expect(text).toContain('gpu_memory = 1.5')
  const again = parseConfig(text)
  expect([again.config, again.notices, again.autoMicroBatch]).toEqual([sized, [], false])
})
