/** Tasksets of verifiers with tools, without an end, and those that cannot be had; and whole commands on one: `train` and `eval`. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { loadEnvironment, runRollout } from '../../src/environments/index.ts'
import type { PythonOptions } from '../../src/environments/python/environment.ts'
import { sampling } from '../environments/scripted.ts'
import {
  fixtures,
  newFolder,
  opened,
  root,
  saying,
  startCommand,
  tasksetsPython,
  withoutTasksets,
  withoutVerifiers,
} from './helpers.ts'
import { inTurn, openLetters, options, play } from './tasksets.ts'

test.skipIf(withoutTasksets)(
  'a taskset with tools: calls are read from the answer, results come back, turns have a limit',
  async () => {
    const env = await openLetters({ task: { tools: true } }, { kwargs: { agent: { max_turns: 2 } } })
    expect(env.maxTurns).toBe(2)
    const call = (name: string, given: string) => `<tool_call>\n{"name": "${name}", "arguments": ${given}}\n</tool_call>`
    const rollout = await play(env, inTurn(call('calculator_add', '{"a": 2, "b": 3}'), call('multiply', '{}'), '0'))
    expect(rollout).toMatchObject({ error: null, stopCondition: 'max_turns', metrics: { right: 0 } })
    expect(rollout.completion.map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant'])
    expect(rollout.completion[1].content).toBe('5')
    expect(rollout.turns!.map(({ branch }) => branch)).toEqual([true, false])
    const other = await play(env, inTurn(call('multiply', '{}'), '0'))
    expect(other).toMatchObject({ error: null, stopCondition: 'agent_completed', metrics: { right: 1 } })
    expect(other.completion[1].content).toBe('error: there is no tool multiply')
  },
)

test.skipIf(withoutTasksets)('a taskset without an end is trained on up to a limit, by several processes', async () => {
  const env = await opened('./taskset_endless.py', {}, { ...options, workers: 2, kwargs: { select: { skip: 5, limit: 3 } } })
  expect(env.dataset.map(({ exampleId, prompt }) => [exampleId, prompt[0].content])).toEqual([[5, 'say 5'], [6, 'say 6'], [7, 'say 7']]) // prettier-ignore
  expect(env.maxTurns).toBe(1)
  const { client } = await saying(() => 'a')
  const group = { client, sampling, group: 'g', generationTimeoutSeconds: 60 }
  const rollouts = await Promise.all(
    Array.from({ length: 8 }, (_, index) => runRollout(env, env.dataset[index % 3], { ...group, index })),
  )
  for (const rollout of rollouts) expect(rollout).toMatchObject({ error: null, reward: 0.5, metrics: { brief: 0.5 } })
  // Those that begin together share them evenly.
  expect([...Map.groupBy(rollouts, ({ metrics }) => metrics.process).values()].map((played) => played.length)).toEqual([4, 4])
})

describe.skipIf(withoutTasksets)('a taskset that cannot be had is one sentence', () => {
  const load = (id: string, args = {}, more: PythonOptions = {}) => loadEnvironment(id, args, { ...options, ...more })
  const letters = './taskset_tasks.py'

  test('for what it does not know, what it raises, and what is not played', async () => {
    const raises = /loading its tasks raised KeyError: 'no data here' \(.*taskset_tasks\.py:\d+\)/
    await Promise.all([
      expect(load(letters, { colour: 'red' })).rejects.toThrow(/its settings are refused: .*colour: .*not permitted/),
      expect(load(letters, { kinds: ['raises'] })).rejects.toThrow(raises),
      expect(load('./taskset_endless.py')).rejects.toThrow(/its tasks never end; .*select = \{ limit = 1000 \}/),
      expect(load('./taskset_pair.py')).rejects.toThrow(/it is played by 2 agents \(first, second\)/),
      expect(load('no-such-taskset')).rejects.toThrow(/no-such-taskset: there is no Python module no_such_taskset\./),
      expect(load(letters, {}, { kwargs: { agent: { runtime: { type: 'docker' } } } })).rejects.toThrow(/played in a container/),
    ])
  })

  test('for an environment of the other kind', async () => {
    await expect(load('reasoning-gym-env')).rejects.toThrow(/it is made by load_environment, which verifiers has up to 0\.3\.0/)
    if (withoutVerifiers) return
    await expect(load('./taskset_endless.py', {}, { python: true })).rejects.toThrow(/a taskset needs verifiers 0\.4\.0/)
  })
})

const config = (folder: string) => `
model = ${JSON.stringify(join(root, 'models', 'tiny'))}
[env]
id = ${JSON.stringify(join(fixtures, 'taskset_tasks.py'))}
name = "letters"
python_path = ${JSON.stringify(tasksetsPython)}
args = { kinds = ["turns"] }
extra_env_kwargs = { agent = { max_turns = 2 } }
[trainer.args]
output_dir = ${JSON.stringify(folder)}
run_name = "run"
max_steps = 3
max_async_level = 0
batch_size = 8
rollouts_per_example = 4
max_seq_len = 128
max_prompt_len = 60
max_tokens = 8
micro_batch_tokens = 512
lora_rank = 4
learning_rate = 1e-2
save_steps = 0
`

const linesOf = (file: string) =>
  readFileSync(file, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line) as Record<string, unknown>) // prettier-ignore

test.skipIf(withoutTasksets)('a taskset is trained on for three steps by train.js, and evaluated', async () => {
  const folder = newFolder()
  writeFileSync(join(folder, 'run.toml'), config(folder))
  const said = await startCommand('train.js', ['@', 'run.toml'], folder).ended
  expect(said).toContain('exit code 0')
  const steps = linesOf(join(folder, 'run', 'metrics.jsonl')).filter(({ step }) => (step as number) > 0)
  expect(steps.map(({ step }) => step)).toEqual([1, 2, 3])
  for (const row of steps) {
    expect(row['num_turns/mean']).toBe(2)
    // The tokens that are trained on are those that were sampled, with their log-probabilities.
    expect(row['mismatch_kl/all/max']).toBeLessThan(1e-3)
    expect(row['has_error/mean']).toBe(0)
  }
  const words = [
    '-m',
    join(root, 'models', 'tiny'),
    '--python-path',
    tasksetsPython,
    '-n',
    '2',
    '-r',
    '2',
    '-t',
    '8',
    '-o',
    'evals',
  ]
  const evaluated = await startCommand('cli.js', ['eval', join(fixtures, 'taskset_tasks.py'), ...words], folder).ended
  expect(evaluated).toContain('exit code 0')
  const [results] = readdirSync(join(folder, 'evals'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('results.jsonl')) // prettier-ignore
  const answers = linesOf(join(folder, 'evals', results))
  expect(answers).toHaveLength(4)
  for (const answer of answers) expect(answer).toMatchObject({ error: null, kinds: 1, reward: expect.any(Number) as number })
})
