/** [trainer.ckpt]: its two names, what is refused, and the room that checkpoints need. */
import { expect, onTestFinished, test } from 'vitest'
import { checkpointBytes, checkpointsKept, diskLine, folderBytes, freeBytes, recordBytes } from '../../src/config/disk.ts'
import { loadConfig, parseConfig, parseSftConfig } from '../../src/config/load.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'
import { newModel } from '../../src/trainer/new-model.ts'

const head = 'model = "models/tiny"\n[env]\nid = "reverse-text"\n'
const parse = (text: string) => parseConfig(head + text)
const refused = (text: string): string => {
  try {
    parse(text)
  } catch (error) {
    return (error as Error).message
  }
  throw new Error('nothing was refused')
}

test('save_steps and save_total_limit are interval and keep_last', () => {
  const old = parse('[trainer.args]\nsave_steps = 7\nsave_total_limit = 2\n').config
  const ours = parse('[trainer.ckpt]\ninterval = 7\nkeep_last = 2\n').config
  expect(old.trainer.ckpt).toEqual({ interval: 7, keep_last: 2 })
  expect(ours.trainer.ckpt).toEqual(old.trainer.ckpt)
  expect(parse('').config.trainer.ckpt).toEqual({ interval: 50, keep_last: 3 })
  // A resolved config reads back, and has one name alone.
  const text = stringifyConfig(parse('[trainer.ckpt]\ninterval = 7\nkeep_interval = 14\nkeep_best = "-loss/mean"\n').config)
  expect(text).not.toContain('save_steps')
  expect(parseConfig(text).config.trainer.ckpt).toEqual({ interval: 7, keep_last: 3, keep_interval: 14, keep_best: '-loss/mean' })
})

test('later files and words win, whichever name they use', () => {
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-ckpt-'))
  try {
    const [a, b] = ['a.toml', 'b.toml'].map((name) => join(dir, name))
    writeFileSync(a, `${head}[trainer.ckpt]\ninterval = 5\n`)
    writeFileSync(b, '[trainer.args]\nsave_steps = 6\n')
    const ckptOf = (...words: string[]) => {
      const loaded = loadConfig(words)
      return 'config' in loaded ? loaded.config.trainer.ckpt : undefined
    }
    expect(ckptOf('@', a, '@', b)).toMatchObject({ interval: 6 })
    expect(ckptOf('@', b, '@', a)).toMatchObject({ interval: 5 })
    for (const name of ['--save-steps', '--trainer.args.save_steps', '--trainer.ckpt.interval', '--interval'])
      expect(ckptOf('@', a, '@', b, name, '9')).toMatchObject({ interval: 9 })
    expect(ckptOf('@', a, '--save-total-limit', '1')).toEqual({ interval: 5, keep_last: 1 })
    // Without a config a run's own one is read; a fork is not named as that run.
    const loaded = loadConfig(['--fork', `${dir}/run@20`, '@', a])
    expect(loaded).toMatchObject({ fork: { dir: `${dir}/run`, step: 20 } })
    expect(loadConfig(['--fork', `${dir}/run@best`, '@', a])).toMatchObject({ fork: { dir: `${dir}/run`, step: 'best' } })
    writeFileSync(join(dir, 'config.toml'), `${head}[trainer.args]\nrun_name = "parent"\nmax_steps = 7\n`)
    expect(loadConfig(['--resume', dir])).toMatchObject({ config: { trainer: { args: { max_steps: 7, run_name: 'parent' } } } })
    const fork = loadConfig(['--fork', dir])
    expect(fork).toMatchObject({ config: { trainer: { args: { max_steps: 7 } } }, fork: { step: 'latest' } })
    expect('config' in fork && fork.config.trainer.args.run_name).toMatch(/^reverse-text--tiny--/)
    expect(() => loadConfig(['@', a, '--run-name', 'x', '--resume', '--fork', dir])).toThrow(
      /--resume continues a run, --fork starts a new one/,
    )
    expect(() => loadConfig(['@', a, '--fork'])).toThrow(/After --fork comes a run folder/)
  } finally {
    rmSync(dir, { recursive: true })
  }
})

test('a wrong value is told where it was written', () => {
  expect(refused('[trainer.args]\nsave_steps = -1\n')).toMatchInlineSnapshot(
    `"config.toml:5:1: trainer.ckpt.interval is -1; it must be an integer >= 0."`,
  )
  expect(refused('[trainer.args]\nsave_steps = 2\n[trainer.ckpt]\ninterval = 3\n')).toMatchInlineSnapshot(
    `"config.toml:5:1: trainer.args.save_steps is the same as interval of [trainer.ckpt], which is also set. Keep one of them."`,
  )
  expect(refused('[ckpt]\ninterval = 3\n')).toMatchInlineSnapshot(`"config.toml:4:1: ckpt is the table [trainer.ckpt] here."`)
  expect(refused('[trainer.ckpt]\nresume_step = 3\n')).toMatchInlineSnapshot(
    `"config.toml:5:1: trainer.ckpt.resume_step is not a key here: write --resume step N on the command line."`,
  )
  expect(refused('[trainer.ckpt]\nkeep_lasts = 3\n')).toMatchInlineSnapshot(
    `"config.toml:5:1: trainer.ckpt.keep_lasts is not a key of [trainer.ckpt]. Did you mean keep_last?"`,
  )
})

test('keep_best must be measured', () => {
  const evaluated = '[trainer.args]\neval_strategy = "steps"\neval_rollouts_per_example = 4\n'
  for (const key of [
    'eval/reverse-text/avg@4',
    'eval/reverse-text/pass@2',
    'eval/reverse-text/pass@4',
    '-eval/reverse-text/tokens/completion',
    'reward',
    '-loss/mean',
    'reward/lcs',
  ])
    expect(parse(`${evaluated}[trainer.ckpt]\nkeep_best = "${key}"\n`).config.trainer.ckpt.keep_best).toBe(key)
  expect(refused('[trainer.ckpt]\nkeep_best = "eval/reverse-text/avg@1"\n')).toMatchInlineSnapshot(
    `"config.toml:5:1: trainer.ckpt.keep_best is "eval/reverse-text/avg@1", but nothing is evaluated: set trainer.args.eval_strategy = "steps"."`,
  )
  expect(refused(`${evaluated}[trainer.ckpt]\nkeep_best = "eval/reverse-text/avg@1"\n`)).toMatchInlineSnapshot(
    `"config.toml:8:1: trainer.ckpt.keep_best is "eval/reverse-text/avg@1", but this run measures "eval/reverse-text/avg@4" (k is eval_rollouts_per_example; for pass@k, any power of two up to that)."`,
  )
  expect(refused(`${evaluated}[trainer.ckpt]\nkeep_best = "eval/math/avg@4"\n`)).toMatchInlineSnapshot(
    `"config.toml:8:1: trainer.ckpt.keep_best is "eval/math/avg@4", but this run measures "eval/reverse-text/avg@4" (k is eval_rollouts_per_example; for pass@k, any power of two up to that)."`,
  )
  // None of these is ever measured.
  for (const key of ['reverse-text/pass@8', 'reverse-text/pass@3', 'reverse-text/pass@k', 'math/tokens/completion'])
    expect(refused(`${evaluated}[trainer.ckpt]\nkeep_best = "eval/${key}"\n`)).toContain(
      'this run measures "eval/reverse-text/avg@4"',
    )
  expect(refused('[trainer.ckpt]\nkeep_best = "-eval/reverse-text/tokens/completion"\n')).toContain('nothing is evaluated')
  expect(refused(`${evaluated}[trainer.ckpt]\nkeep_best = "rewards"\n`)).toMatchInlineSnapshot(
    `"config.toml:8:1: trainer.ckpt.keep_best is "rewards", which is not a metric. Did you mean "reward"? docs/metrics.md lists all metrics."`,
  )
  const sft = 'model = "models/tiny"\n[data.env]\nid = "reverse-text"\n[trainer.ckpt]\n'
  for (const key of ['-loss/mean', '-entropy/all/mean', '-optim/grad_norm'])
    expect(parseSftConfig(`${sft}keep_best = "${key}"\n`).config.trainer.ckpt.keep_best).toBe(key)
  expect(() => parseSftConfig(`${sft}keep_best = "reward"\n`)).toThrow(/a supervised run measures "-loss\/mean"/)
})

test('keep_interval without effect is told', () => {
  const notices = (ckpt: string) =>
    parse(`[trainer.args]\nmax_steps = 100\n[trainer.ckpt]\n${ckpt}\n`).notices.filter((line) => line.includes('keep_'))
  expect(notices('interval = 10\nkeep_interval = 50')).toEqual([])
  expect(notices('interval = 10\nkeep_interval = 100')).toEqual([])
  expect(notices('interval = 0\nkeep_interval = 50')).toEqual([
    expect.stringContaining('interval is 0, so there is one checkpoint'),
  ])
  expect(notices('interval = 30\nkeep_interval = 70')[0]).toContain('has no effect')
  expect(notices('interval = 20\nkeep_interval = 30')[0]).toContain('the steps that are multiples of both are kept: 60, 120')
})

test('the checkpoints that are there at once', () => {
  const kept = (ckpt: string, steps: number) =>
    checkpointsKept(parse(`[trainer.args]\nmax_steps = ${steps}\neval_strategy = "steps"\n[trainer.ckpt]\n${ckpt}\n`).config)
  expect(kept('interval = 10', 100)).toEqual({ count: 4, words: '3 newest + one being written' })
  expect(kept('interval = 0', 100)).toEqual({ count: 2, words: '1 newest + one being written' })
  // 20, 40, 60, 80 and 100, of which 100 is among the newest, and the best.
  expect(kept('interval = 10\nkeep_last = 1\nkeep_interval = 20\nkeep_best = "eval/reverse-text/avg@1"', 100).count).toBe(7)
  // Saved are 7, 14, ... 98 and 100; of the first 13 six divides 42 and 84.
  expect(kept('interval = 7\nkeep_last = 2\nkeep_interval = 6', 100).count).toBe(2 + 2 + 1)
  expect(kept('interval = 0\nkeep_interval = 50', 100).count).toBe(2)
  // A run without an end.
  expect(kept('interval = 1', 1e12).count).toBe(4)
  expect(kept('interval = 1\nkeep_interval = 1000', 1e9).count).toBe(3 + 999_999 + 1)
  expect(freeBytes(join(tmpdir(), 'not', 'there', 'yet'))).toBeGreaterThan(0)
})

test('what a run writes down beside its checkpoints: with every rollout, evaluations, and a warning where it will not fit', () => {
  const text = (more: string, steps = 100) =>
    `[trainer.args]\nmax_steps = ${steps}\nbatch_size = 8\nrollouts_per_example = 4\nmax_seq_len = 96\nmax_prompt_len = 32\nmax_tokens = 64\n${more}\n`
  const bytes = (more: string, steps?: number) => recordBytes(parse(text(more, steps)).config)
  const plain = bytes('')
  expect(plain.words).toBe('100 x 8 rollouts, metrics and logs, with 32 + 64 tokens each')
  expect(bytes('', 200).bytes).toBe(2 * plain.bytes)
  // 64 answers before the first step and after steps 50 and 100.
  const evaluated = bytes('eval_strategy = "steps"')
  expect(evaluated.words).toContain('rollouts and 192 of evaluations, metrics')
  expect(evaluated.bytes - plain.bytes).toBeGreaterThan(192 * 64 * 25)
  const sft = parseSftConfig('model = "x"\n[data.env]\nid = "reverse-text"\n[trainer.args]\nmax_steps = 100').config
  expect(recordBytes(sft).words).toBe('metrics and logs of 100 steps')
  expect(recordBytes(sft).bytes).toBeLessThan(plain.bytes)

  const { config: model } = newModel(
    {
      family: 'qwen3', hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16,
      tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 128, initializer_range: 0.1,
    },
    7,
  ) // prettier-ignore
  const told = (steps: number, written?: number) => diskLine(parse(text('', steps)).config, model, '', tmpdir(), written)
  expect(told(100).short).toBeUndefined()
  expect(told(100).line).toMatch(/; up to about [\d.]+ MiB beside them \(an estimate: 100 x 8 rollouts, .*\); .* are free$/)
  // A reference that is moved on lies in the checkpoints: an adapter more in each, or a model.
  const each = (more: string) => checkpointBytes(parse(text(more)).config, model, '')
  const count = [...tensorShapes(model).values()].reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0)
  const moved = each('use_lora = false\nbeta = 0.1\nref_model_sync_steps = 5') - each('use_lora = false\nbeta = 0.1')
  expect(moved).toBe(2 * count + 130 * tensorShapes(model).size)
  // Without bf16 each weight has 2 bytes more; the moments and masters are what they were.
  expect(each('use_lora = false\nbf16 = false') - each('use_lora = false')).toBe(2 * count)
  expect(each('beta = 0.1\nref_model_sync_steps = 5')).toBeGreaterThan(each('beta = 0.1'))
  expect(each('ref_model_sync_steps = 5')).toBe(each(''))
  // More steps than any disk has room for, of checkpoints that do; what the run has written is no loss.
  const steps = Math.ceil(freeBytes(tmpdir())! / 10_000)
  expect(told(steps).short).toMatch(/^the checkpoints and, .* rollouts, metrics and logs$/)
  expect(told(steps, 1e6 * steps).short).toBeUndefined()
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-disk-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  mkdirSync(join(folder, 'rollouts'))
  writeFileSync(join(folder, 'rollouts/step_1.jsonl'), 'x'.repeat(70))
  writeFileSync(join(folder, 'metrics.jsonl'), 'x'.repeat(7))
  expect(folderBytes(folder)).toBe(77)
})
