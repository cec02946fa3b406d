/** Run folders for the tests of the page, beside a real run: a long one, and one in which everything is hostile or broken. */
import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Random } from '../../src/common/random.ts'

/** Steps, and rollouts of a step, of a long run. */
export const LONG = { steps: 3000, rolloutSteps: 30, rollouts: 40 }

export function put(folder: string, name: string, text: string): void {
  const path = join(folder, name)
  mkdirSync(dirname(path), { recursive: true })
  writeFileSync(path, text)
}

const lines = (rows: unknown[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join('')

const config = (options: { model: string; env: string; steps: number; rate: number }): string => `
[model]
name = ${JSON.stringify(options.model)}
[[env]]
id = ${JSON.stringify(options.env)}
[trainer.args]
max_steps = ${options.steps}
learning_rate = ${options.rate}
`

/** One row of metrics of a long run. */
export function longRow(step: number, random: Random): Record<string, number> {
  return {
    step, time: 1_790_000_000 + step * 2, reward: 1 - Math.exp(-step / 800) + random.next() * 0.1, 'entropy/all/mean': 2 * Math.exp(-step / 1000),
    'mismatch_kl/all/mean': 0.002 * random.next(), 'optim/grad_norm': 0.1 + random.next() * 0.05, 'is_truncated/mean': 0.3 * Math.exp(-step / 300),
    'perf/generation_throughput': 400, 'time/step': 2, 'progress/total_tokens': step * 4000, ...(step % 500 === 0 && { 'eval/sums/avg@1': step / 4000 }),
  } // prettier-ignore
}

/** A run of many steps with many rollouts. */
export function longRun(folder: string, seed: number, rate = 1e-4): void {
  const random = new Random(seed)
  put(folder, 'config.toml', config({ model: 'nowhere/model', env: 'sums', steps: LONG.steps * 2, rate }))
  put(folder, 'metrics.jsonl', lines(Array.from({ length: LONG.steps }, (_, i) => longRow(i + 1, random))))
  for (let step = 1; step <= LONG.rolloutSteps; step++) {
    const rows = Array.from({ length: LONG.rollouts }, (_, i) =>
      rolloutRow({ step, i, reward: i % 5 === 0 ? 1 : 0.25, question: `What is ${step} + ${i}?`, answer: String(step + i) }),
    )
    put(folder, `rollouts/step_${step}.jsonl`, lines(rows))
  }
}

interface Asked {
  step: number
  i: number
  reward: number | null
  question: string
  answer: string
  env?: string
  error?: string
}

function rolloutRow({ step, i, reward, question, answer, env = 'sums', error }: Asked): Record<string, unknown> {
  return {
    example_id: i >> 2, prompt: [{ role: 'user', content: question }], completion: [{ role: 'assistant', content: answer }], answer, info: { about: question }, reward,
    metrics: { exact: reward }, error: error === undefined ? null : { error: 'JudgeError', message: error, error_chain_repr: error, error_chain_str: error },
    is_completed: error === undefined, is_truncated: i % 7 === 3, stop_condition: 'eos', timing: { generation_ms: 12, scoring_ms: 0.4, total_ms: 12.4 },
    token_usage: { input_tokens: 12, output_tokens: 4, final_input_tokens: 12, final_output_tokens: 4 }, advantage: reward === null ? null : reward - 0.4,
    policy_version: { min: step - 1, max: step - 1 }, env, group: `${step}.${i >> 2}`, index: i & 3, seed: i, split: 'train', step,
  } // prettier-ignore
}

/** Markup, scripts, an emoji, right-to-left text, an override of direction, control characters, a very long word. */
export const HOSTILE = [
  '<script>window.pwned = 1</script>',
  '<img src=x onerror="window.pwned = 1">',
  '"><svg/onload=window.pwned=1>',
  '\u{1f468}\u200d\u{1f469}\u200d\u{1f467} שלום עולם مرحبا',
  'abc\u202egnp.exe\u0000\u0007\u001b[31m',
  'w'.repeat(3000),
  '${window.pwned = 1} {{constructor}} javascript:window.pwned=1',
]
export const HOSTILE_NAME = '<img src=x onerror=window.pwned=1>'

/**
 * A run whose name, environment, questions, answers, errors, metrics and config are hostile, with lines that are broken, and a rollout of three turns of
 * which the last begins a sequence.
 * @param model a folder with a tokenizer in which a byte is a token
 */
export function hostileRun(folder: string, model: string): void {
  put(
    folder,
    'config.toml',
    `${config({ model, env: HOSTILE_NAME, steps: 9, rate: 1e-3 })}note = ${JSON.stringify(HOSTILE[0])}\n`,
  )
  const metrics = [1, 2, 3].map((step) => ({
    step,
    time: 1_790_000_000 + step,
    reward: step === 2 ? null : 0.5,
    [`reward/${HOSTILE_NAME}`]: step,
    'reward/50%, or %41': 2 * step,
  }))
  put(
    folder,
    'metrics.jsonl',
    `${lines(metrics)}{"step": 4, "rew\n[1, 2]\nnull\n\u0000\u0000\n{"step": 5, "reward": 1e999}\n{"step": 6, "time": 17`,
  )
  const rows = HOSTILE.map((text, i) =>
    rolloutRow({ step: 1, i, reward: i / 10, question: text, answer: text, env: HOSTILE_NAME }),
  )
  const failed = rolloutRow({ step: 1, i: 7, reward: null, question: 'fails', answer: '', error: HOSTILE[1] })
  put(folder, 'rollouts/step_1.jsonl', `${lines([...rows, failed])}{"broken": \n`)
  put(folder, 'rollouts/step_1.tokens.jsonl', lines([...rows, failed].map((row, i) => tokens(row, HOSTILE[i] ?? 'fails'))))
  const turns = { ...rolloutRow({ step: 2, i: 0, reward: 0.5, question: 'Guess.', answer: 'c' }), completion: conversation }
  put(folder, 'rollouts/step_2.jsonl', lines([turns]))
  const said = ['a?', 'b?', 'c!'].map(bytes)
  appendFileSync(
    join(folder, 'rollouts/step_2.tokens.jsonl'),
    lines([
      {
        step: 2, split: 'train', group: '2.0', index: 0, prompt_ids: bytes('Guess.'), completion_ids: said.flat(), logprobs: said.flat().map((_, i) => -0.3 * i),
        versions: said.flat().map(() => 1), trainer_logprobs: said.flat().map((_, i) => -0.3 * i - 0.5 + 0.2 * i), entropies: said.flat().map(() => 1.5),
        turns: [
          { branch: true, prompt_ids: bytes('Guess.'), sampled: 2 },
          { branch: false, prompt_ids: bytes(' no. '), sampled: 2 },
          { branch: true, prompt_ids: bytes('Guess again.'), sampled: 2 },
        ],
      },
    ]),
  ) // prettier-ignore
}

const conversation = [
  { role: 'assistant', content: 'a?' },
  { role: 'user', content: 'no.' },
  {
    role: 'assistant',
    content: 'b?',
    tool_calls: [{ id: '1', type: 'function', function: { name: 'look', arguments: HOSTILE[1] } }],
  },
  { role: 'tool', content: HOSTILE[0], name: 'look' },
  { role: 'assistant', content: 'c!' },
]

const bytes = (text: string): number[] => [...Buffer.from(text)]

function tokens(row: Record<string, unknown>, text: string): Record<string, unknown> {
  const ids = bytes(text).slice(0, 400)
  return {
    step: row.step, split: 'train', group: row.group, index: row.index, prompt_ids: ids.slice(0, 40), completion_ids: ids,
    logprobs: ids.map((_, i) => -(i % 9)), versions: ids.map(() => 0),
  } // prettier-ignore
}
