/** What `eval` makes of the folder of a run, and of an eval config of verifiers. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { closeEnvironments } from '../../src/cli/environments.ts'
import { planEval, type EvalOptions } from '../../src/cli/eval-plan.ts'
import { writeSums } from '../../src/trainer/checkpoint-sums.ts'

test('a run of sft: its environment, its checkpoints, and the model that it began with where there was one', async () => {
  const run = mkdtempSync(join(tmpdir(), 'dawn-rl-plan-'))
  const step = join(run, 'checkpoints', 'step_3')
  mkdirSync(step, { recursive: true })
  writeFileSync(join(step, 'STABLE'), '{}')
  writeFileSync(join(step, 'state.json'), '{}') // of a run that keeps no best one
  const options = { run, base: true, split: 'eval', maxConcurrent: 1, outputDir: run, seed: 0, solvedAt: 0.5, numExamples: 2 } as const // prettier-ignore
  const planOf = async (model: string) => {
    writeFileSync(join(run, 'config.toml'), `${model}\n[data.env]\nid = "reverse-text"\n[trainer.args]\nuse_lora = false\n`)
    const plan = await planEval([], options)
    await closeEnvironments(plan.environments)
    return plan
  }
  try {
    const named = await planOf('model = "models/tiny"')
    expect(named.environments.map(({ name, rows }) => [name, rows.length])).toEqual([['reverse-text', 2]])
    expect(named.source).toMatchObject({ kind: 'run', model: 'models/tiny', checkpoints: [step], lora: false, base: true })
    // Each once, and what is no step as it was written.
    const thrice = await planEval([], { ...options, steps: '3, 3,3' })
    expect(thrice.source).toMatchObject({ checkpoints: [step] })
    await expect(planEval([], { ...options, steps: '3,best' })).rejects.toThrow('no checkpoint of step best. There are 3.')
    writeFileSync(join(run, 'config.toml'), 'model = "models/tiny"\n[data]\npath = "package.json"\n')
    await expect(planEval([], options)).rejects.toThrow(`${run} was trained on a data file, so it has no environment. Name one: `)
    expect(named.extra).toEqual({})
    const kwargs = '[trainer.args.chat_template_kwargs]\nenable_thinking = false\n'
    writeFileSync(join(run, 'config.toml'), `model = "models/tiny"\n[data.env]\nid = "reverse-text"\n${kwargs}`)
    const silent = await planEval([], options)
    await closeEnvironments(silent.environments)
    expect(silent.extra).toEqual({ chat_template_kwargs: { enable_thinking: false } })
    const made = await planOf('[model.new]\nfamily = "qwen3"\nhidden_size = 64\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\nnum_key_value_heads = 1\nhead_dim = 32') // prettier-ignore
    expect(made.source).toMatchObject({ model: step, checkpoints: [step], base: false })
    // One that is damaged is passed over; of a step that was asked for by its number it is said.
    const later = join(run, 'checkpoints', 'step_5')
    mkdirSync(later)
    writeFileSync(join(later, 'STABLE'), '{"model.safetensors":9}')
    const partly = await planOf('model = "models/tiny"')
    expect(partly.source).toMatchObject({ checkpoints: [step] })
    expect(partly.notices).toContain(`skipped ${later}: model.safetensors is missing.`)
    await expect(planEval([], { ...options, steps: '5' })).rejects.toThrow(
      `--run ${run}: a checkpoint is damaged. ${later}: model.safetensors is missing.`,
    )
    writeFileSync(join(later, 'model.safetensors'), 'as it was')
    writeFileSync(join(later, 'STABLE'), '{}')
    await writeSums(later, ['model.safetensors'])
    expect((await planOf('model = "models/tiny"')).source).toMatchObject({ checkpoints: [step, later] })
    writeFileSync(join(later, 'model.safetensors'), 'as it is!')
    expect((await planOf('model = "models/tiny"')).source).toMatchObject({ checkpoints: [step] })
  } finally {
    rmSync(run, { recursive: true })
  }
})

describe('an eval config of verifiers', () => {
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-plan-'))
  afterAll(() => rmSync(folder, { recursive: true }))
  const file = join(folder, 'eval.toml')
  const options = { base: true, split: 'eval', maxConcurrent: 1, outputDir: folder, seed: 0, solvedAt: 0.5 } as const
  const planOf = async (text: string, words: Partial<EvalOptions> = {}) => {
    writeFileSync(file, text)
    const plan = await planEval(['@', file], { ...options, ...words })
    await closeEnvironments(plan.environments)
    return plan
  }

  test('what it says of all, of one environment, and how answers are sampled', async () => {
    const text = `model = "models/tiny"
num_examples = 3
temperature = 0.5
max_tokens = 7
sampling_args = { top_p = 0.9, temperature = 2 }
save_results = true
[[eval]]
env_id = "reverse-text"
rollouts_per_example = 2
[[eval]]
env_id = "arithmetic"
name = "sums"
num_examples = 1
`
    const plan = await planOf(text)
    expect(plan.environments.map(({ name, rows, k }) => [name, rows.length, k])).toEqual([['reverse-text', 3, 2], ['sums', 1, 4]]) // prettier-ignore
    expect(plan.source).toMatchObject({ kind: 'model', model: 'models/tiny' })
    expect(plan.sampling).toMatchObject({ temperature: 0.5, max_tokens: 7, top_p: 0.9 })
    expect(plan.notices).toEqual(['save_results has no effect: results are always written, and progress is told.'])
    // What is left out on top leaves what the table beneath says.
    const beneath = text
      .replace('temperature = 0.5\nmax_tokens = 7\n', '')
      .replace('temperature = 2', 'temperature = 2, max_tokens = 5')
    expect((await planOf(beneath)).sampling).toMatchObject({ temperature: 2, max_tokens: 5, top_p: 0.9 })
    // Words of the command line go first.
    const words = { temperature: 0, samplingArgs: '{"top_p": 1}', numExamples: 2 }
    const other = await planOf(text, words)
    expect(other.sampling).toMatchObject({ temperature: 0, max_tokens: 7, top_p: 1 })
    expect(other.environments.map(({ rows }) => rows.length)).toEqual([2, 2])
  })

  test('an environment that is there twice: played once, or under a name of its own where its arguments differ', async () => {
    const one = (seed: number) => `[[eval]]\nenv_id = "reverse-text"\nenv_args = { seed = ${seed} }\n`
    const plan = await planOf(`model = "models/tiny"\nnum_examples = 1\n${one(1)}${one(2)}${one(1)}${one(3)}`)
    expect(plan.environments.map(({ name, args }) => [name, args.seed])).toEqual([
      ['reverse-text', 1],
      ['reverse-text#2', 2],
      ['reverse-text#3', 3],
    ])
    expect(plan.notices).toEqual([
      'reverse-text is named more than once with the same arguments: it is evaluated once.',
      'reverse-text is named more than once: with {"seed":2} it is called reverse-text#2.',
      'reverse-text is named more than once: with {"seed":3} it is called reverse-text#3.',
    ])
  })

  test('what the chat template takes, as verifiers hands it on', async () => {
    const of = (table: string) => `model = "models/tiny"\nsampling_args = ${table}\n[[eval]]\nenv_id = "reverse-text"\n`
    const text = of('{ extra_body = { chat_template_kwargs = { enable_thinking = false } } }')
    expect((await planOf(text)).extra).toEqual({ chat_template_kwargs: { enable_thinking: false } })
    expect((await planOf(text, { samplingArgs: '{"chat_template_kwargs": {}}' })).extra).toEqual({})
    await expect(planOf(of('{ chat_template_kwargs = 3 }'))).rejects.toThrow(
      'Sampling: chat_template_kwargs is 3; it must be a table',
    )
    await expect(planOf(of('{ extra_body = 3 }'))).rejects.toThrow('extra_body is not supported by the embedded engine')
  })

  test.each([
    ['{"temperature": "hot"}', 'Sampling: temperature is hot; it must be 0 or more.'],
    ['{"top_p": 5}', 'Sampling: top_p is 5; it must be between 0 and 1.'],
    ['{"top_k": 1.5}', 'Sampling: top_k is 1.5; it must be a whole number.'],
    ['{"stop": "."}', 'Sampling: stop must be a list of strings.'],
  ])('sampling that the engine would refuse is a mistake before the model is loaded: %s', async (samplingArgs, sentence) => {
    const text = 'model = "models/tiny"\n[[eval]]\nenv_id = "reverse-text"\n'
    await expect(planOf(text, { samplingArgs })).rejects.toThrow(sentence)
  })

  test.each([
    [
      { baseUrl: 'http://127.0.0.1:1/v1', adapter: 'some/adapter' },
      'eval: --adapter is for a model that runs here, and this one',
    ],
    [{ baseUrl: 'http://127.0.0.1:1/v1', maxSeqLen: 90 }, 'eval: --max-seq-len is for a model that runs here, and this one'],
    [{ steps: '10' }, 'eval: --steps is for the checkpoints of a run. Name the run with --run.'],
    [{ base: false }, 'eval: --no-base is for the checkpoints of a run. Name the run with --run.'],
  ])('an option that would have no effect is refused: %j', async (options, sentence) => {
    await expect(planOf('model = "models/tiny"\n[[eval]]\nenv_id = "reverse-text"\n', options)).rejects.toThrow(sentence)
  })

  test.each([
    ['num_examples = "2"', '4:1: eval.num_examples is "2", a string; it must be an integer >= -1. Write it without quotes.'],
    ['num_examples = 0', '4:1: num_examples is 0; it must be an integer >= 1, or -1 for all.'],
    ['rollout_per_example = 1', '4:1: eval.rollout_per_example is not a key of [eval]. Did you mean rollouts_per_example?'],
    ['max_concurrent = 4', '4:1: eval.max_concurrent is not a key of [eval]. Keys there: env_id, name, env_args, model, '],
    ['temperature = -1', '4:1: eval.temperature is -1; it must be a number >= 0.'],
    ['[[eval]]', '4:1: eval.1.env_id is missing. It takes a string.'],
    [
      '[[eval]]\nenv_id = "arithmetic"\ntemperature = 1',
      '6:1: eval: temperature is not set for reverse-text and 1 for arithmetic, and an evaluation has one. Evaluate them by a file each.',
    ],
  ])('%s', async (line, message) => {
    await expect(planOf(`model = "models/tiny"\n[[eval]]\nenv_id = "reverse-text"\n${line}\n`)).rejects.toThrow(
      `${file}:${message}`,
    )
  })
})
