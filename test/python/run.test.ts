/** Whole commands on environments in Python: training with a sampler over vLLM's protocol, `eval`, `env check`. */
import { spawn } from 'node:child_process'
import { globSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeAll, describe, expect, test, vi } from 'vitest'
import { checkEnvironment } from '../../src/cli/env-check.ts'
import { posixOnly } from '../windows.ts'
import { fixtures, newFolder, root, startCommand, withoutVerifiers } from './helpers.ts'

const model = join(root, 'models', 'tiny')
const tasks = join(fixtures, 'bridge_tasks.py')
let folder: string
beforeAll(() => void (folder = newFolder()))

const config = (url: string) => `
model = ${JSON.stringify(model)}
[env]
id = ${JSON.stringify(tasks)}
name = "letters"
args = { kind = "letters", turns = 2 }
[inference]
backend = "vllm"
base_url = "${url}"
max_num_seqs = 8
[trainer.args]
output_dir = ${JSON.stringify(folder)}
run_name = "run"
max_steps = 2
max_async_level = 0
batch_size = 8
rollouts_per_example = 4
max_seq_len = 96
max_prompt_len = 40
max_tokens = 8
micro_batch_tokens = 512
lora_rank = 4
learning_rate = 1e-2
eval_strategy = "steps"
eval_steps = 2
save_steps = 0
`

const command = (words: string[], onText?: (text: string) => void) => startCommand('cli.js', words, folder, onText)

/** A run of two steps whose sampler is the server at `url`, then an evaluation of what it serves. */
async function trainAndEvaluate(url: string): Promise<void> {
  writeFileSync(join(folder, 'run.toml'), config(url))
  const said = await command(['train', '@', 'run.toml']).ended
  expect(said).toContain('exit code 0')
  const rows = readFileSync(join(folder, 'run', 'metrics.jsonl'), 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line) as Record<string, number>) // prettier-ignore
  const steps = rows.filter(({ step }) => step > 0)
  expect(steps.map(({ step }) => step)).toEqual([1, 2])
  for (const row of steps) {
    expect(row['num_turns/mean']).toBeGreaterThan(1)
    // The tokens that are trained on are those that the server sampled, with its log-probabilities.
    expect(row['mismatch_kl/all/max']).toBeLessThan(1e-6)
    expect(row['has_error/mean']).toBeLessThan(0.5)
  }
  expect(said).toMatch(/held-out letters 0\.\d/)

  const answering = ['-m', model, '-b', `${url}/v1`, '-n', '2', '-r', '4', '-t', '8', '-o', 'evals']
  const evaluated = await command(['eval', tasks, '-a', '{"kind":"letters","turns":2}', ...answering]).ended
  expect(evaluated).toContain('exit code 0')
  const [results] = readdirSync(join(folder, 'evals'), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('results.jsonl')) // prettier-ignore
  const answers = readFileSync(join(folder, 'evals', results), 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line) as Record<string, unknown>) // prettier-ignore
  expect(answers).toHaveLength(8)
  expect(answers.every(({ reward, error }) => (typeof reward === 'number') === (error === null))).toBe(true)
  expect(answers.some(({ reward }) => typeof reward === 'number')).toBe(true)
}

describe.skipIf(withoutVerifiers).concurrent('environments in Python', () => {
  test('train with rollouts from a server that speaks as vLLM does, and are evaluated over it', async () => {
    const words = [
      '--adapter-root',
      folder,
      '--max-loras',
      '2',
      '--logprobs-mode',
      'processed_logprobs',
      '--generation-config',
      'vllm',
    ]
    let found: (url: string) => void
    const told = new Promise<string>((resolve) => (found = resolve))
    const served = command(['serve', '--model', model, '--port', '0', ...words], (text) => {
      const at = /(http:\/\/127\.0\.0\.1:\d+)\b/.exec(text)
      if (at) found(at[1])
    })
    try {
      await trainAndEvaluate(await Promise.race([told, served.ended]))
    } finally {
      served.child.kill('SIGKILL')
    }
  })

  test('are checked: rows, the first prompt, and what answers earn, the group of them compared', async () => {
    const lines: string[] = []
    const options = { args: '{"kind": "group", "turns": 2}', model }
    vi.stubEnv('TMPDIR', newFolder())
    try {
      await checkEnvironment(tasks, options, (line) => lines.push(line))
      expect(readdirSync(process.env.TMPDIR!), 'left behind').toEqual([])
    } finally {
      vi.unstubAllEnvs()
    }
    const text = lines.join('\n')
    expect(text).toContain('bridge_tasks: 6 rows to train on, 0 held out')
    expect(text).toMatch(/first prompt of bridge_tasks: 8 tokens, 3 of them special; answer "0"/)
    expect(text).toMatch(/its row's answer +reward 0\.500 \(right 1, best_of 0, num_turns 2, 2 turns, max_turns_reached\)/)
    expect(text).toMatch(/a text that is cut off +reward 1\.000/)
    expect(text).toContain('is in order.')
  })

  posixOnly('a signal')('are checked until Ctrl-C, which leaves nothing of their log behind', async () => {
    const temporary = join(folder, 'temporary')
    mkdirSync(temporary)
    const words = ['env', 'check', tasks, '--args', '{"kind": "group", "turns": 2}', '--model', model]
    // Not through this process's environment, which the other tests share.
    const env = { ...process.env, TMPDIR: temporary }
    const child = spawn(process.execPath, [join(root, 'cli.js'), ...words], { cwd: folder, env, stdio: 'ignore' })
    const ended = new Promise((resolve) => child.on('close', resolve))
    const logs = () => globSync(join(temporary, 'dawn-rl-env-check-*', '*.log'))
    await vi.waitFor(() => expect(logs()).not.toEqual([]), { timeout: 30_000 })
    child.kill('SIGINT')
    expect(await ended).toBe(130)
    expect(readdirSync(temporary)).toEqual([])
  })
})
