/** `node cli.js eval` as a user runs it: a model, the checkpoints of a run, our own server as an endpoint, and going on after a stop. */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, globSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, test } from 'vitest'
import { writeAdapter, type LoraPair } from '../../src/model/files/peft.ts'
import type { RolloutRow } from '../../src/monitor/rollout-writer.ts'
import { noTerminal, TestTerminal } from '../monitor/terminal/terminal.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'
import { asPosix } from '../windows.ts'

const runs = new TinyRuns()
const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
const small = ['-n', '2', '-r', '3', '-t', '6', '-T', '0.7']

async function evaluate(words: string[]): Promise<Omit<Outcome, 'seconds'>> {
  const child = spawn(process.execPath, [cli, 'eval', ...words], { cwd: runs.dir, stdio: ['ignore', 'pipe', 'pipe'] })
  const text = { stdout: '', stderr: '' }
  child.stdout.on('data', (chunk) => (text.stdout += chunk))
  child.stderr.on('data', (chunk) => (text.stderr += chunk))
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve))
  return { code, stdout: asPosix(text.stdout), stderr: asPosix(text.stderr) }
}

/** The folders of results that a table ends with. */
const foldersOf = ({ stdout }: { stdout: string }) =>
  [...stdout.matchAll(/^(?:results)?\s+(outputs\/\S+)$/gm)].map(([, path]) => path)
const rowsIn = (folder: string) =>
  readFileSync(runs.path(folder, 'results.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as RolloutRow)
const metadataIn = (folder: string) =>
  JSON.parse(readFileSync(runs.path(folder, 'metadata.json'), 'utf8')) as Record<string, unknown>

beforeAll(async () => {
  await runs.prepare()
  const made = await runs.run(['run_name=made', 'max_steps=2', 'save_steps=1'])
  expect(made, made.stderr).toMatchObject({ code: 0 })
}, 400_000)

test('the checkpoints of a run beside the model that it began with', { timeout: 300_000 }, async () => {
  const all = await evaluate(['--run', 'outputs/made', ...small])
  expect(all, all.stderr).toMatchObject({ code: 0 })
  expect(all.stdout).toMatch(/^env +model +avg@k +pass@1 +pass@2 +pass@3 +mixed .* change$/m)
  for (const label of ['base', 'step_1', 'step_2']) expect(all.stdout).toMatch(new RegExp(`^even +${label} +0\\.\\d{3} \\[`, 'm'))
  const [base, first, second] = foldersOf(all)
  expect(base).toMatch(/^outputs\/evals\/even--tiny\/[0-9a-f]{8}$/)
  expect(second).toMatch(/^outputs\/evals\/even--made@step_2\//)
  const texts = (folder: string) => rowsIn(folder).map((row) => row.completion.at(-1)!.content)
  expect(rowsIn(base).map(({ example_id, index }) => [example_id, index])).toEqual([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]) // prettier-ignore
  // Each answers with its own weights.
  expect(texts(first)).not.toEqual(texts(base))
  expect(metadataIn(base)).toMatchObject({
    env_id: 'even', model: 'tiny', num_examples: 2, rollouts_per_example: 3, sampling_args: { temperature: 0.7, max_tokens: 6 }, avg_error: 0,
  }) // prettier-ignore
  const rewards = rowsIn(base).map((row) => row.reward!)
  expect(metadataIn(base).avg_reward).toBeCloseTo(rewards.reduce((a, b) => a + b, 0) / 6, 12)

  // The run's last adapter by itself is its last checkpoint.
  const alone = await evaluate(['./even.ts', '-m', 'tiny', '--adapter', 'outputs/made/checkpoints/step_2', ...small])
  expect(alone, alone.stderr).toMatchObject({ code: 0 })
  expect(texts(foldersOf(alone)[0])).toEqual(texts(second))

  // What a killed evaluation left: one whole example, half of another.
  const lines = readFileSync(runs.path(base, 'results.jsonl'), 'utf8').split('\n')
  writeFileSync(runs.path(base, 'results.jsonl'), `${lines.slice(0, 4).join('\n')}\n{"example_id"`)
  const again = await evaluate(['--run', 'outputs/made', '--steps', '2', '--resume', ...small])
  expect(again, again.stderr).toMatchObject({ code: 0 })
  expect(again.stderr).toContain('base on even: 3 of 6 answers are done already')
  expect(again.stderr).toContain('step_2 on even: 6 of 6 answers are done already')
  expect(foldersOf(again)).toEqual([base, second])
  const whole = readFileSync(runs.path(base, 'results.jsonl'), 'utf8').split('\n')
  expect(whole.slice(0, 3)).toEqual(lines.slice(0, 3))
  expect(texts(base)).toEqual(lines.slice(0, 6).map((line) => (JSON.parse(line) as RolloutRow).completion.at(-1)!.content))
  expect(again.stdout).toContain('there is')

  const warmer = await evaluate(['--run', 'outputs/made', '--steps', '2', '--no-base', '--resume', ...small, '-T', '0.9'])
  expect(warmer.stderr).toContain(
    `note: --resume found no evaluation with the same settings, so a new one begins. In ${second}, the newest, these differ: sampling_args.`,
  )
  expect(foldersOf(warmer)).not.toContain(second)
})

test(
  'several environments are played side by side, each into its folder, with the answers that it gets alone',
  { timeout: 100_000 },
  async () => {
    runs.write('two.toml', 'model = "tiny"\n' + ['a', 'b'].map((name) => `[[eval]]\nenv_id = "./even.ts"\nname = "${name}"\nenv_args = { of = "${name}" }\n`).join('')) // prettier-ignore
    const both = await evaluate(['@', 'two.toml', ...small])
    expect(both, both.stderr).toMatchObject({ code: 0 })
    expect(both.stderr).toMatch(/^tiny on a, b: 12\/12 answers \| reward [\d.]+, [\d.]+ \| /m)
    const alone = await evaluate(['./even.ts', '-m', 'tiny', ...small])
    const texts = (folder: string) => rowsIn(folder).map((row) => row.completion.at(-1)!.content)
    const [first, second] = foldersOf(both)
    expect([first, second]).toEqual([expect.stringContaining('/a--tiny/'), expect.stringContaining('/b--tiny/')])
    expect([texts(first), texts(second)]).toEqual(Array(2).fill(texts(foldersOf(alone)[0])))
  },
)

test(
  'prompts of megabytes are refused by what they begin with: to count their tokens took minutes',
  { timeout: 60_000 },
  async () => {
    runs.write(
      'books.ts',
      `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
    const rows = Array.from({ length: 60 }, (_, i) => ({ question: i + ' lorem ipsum'.repeat(80_000), answer: '' }))
    export default () => SingleTurnEnv.create({ id: 'books', rubric: new Rubric({ one: () => 1 }), dataset: rows })`,
    )
    const { code, stdout } = await evaluate(['./books.ts', '-m', 'tiny', '--split', 'train', '-n', '-1', '-r', '2', '-t', '6'])
    expect(code).toBe(1)
    expect(stdout).toMatch(
      /The first: the prompt has more than \d{4} tokens, which leave no room for an answer within max_seq_len \(\d+\)/,
    )
  },
)

test.skipIf(noTerminal !== '')(
  'how far it is stands in one line, however narrow the terminal',
  { timeout: 100_000 },
  async () => {
    const words = [process.execPath, cli, 'eval', './even.ts', '-m', 'tiny', '-n', '6', '-r', '2', '-t', '6']
    const terminal = new TestTerminal(words, { columns: 44, rows: 40, cwd: runs.dir })
    await terminal.sees(/^tiny on \.\/even\.ts: 0\/4 answers$/m)
    expect(await terminal.ended()).toBe(0)
    const told = terminal.all().filter((line) => line.includes(' answers | '))
    expect(told).toEqual([expect.stringMatching(/^tiny on…: 4\/4 answers \| reward [\d.]+ \| /)])
  },
)

test('an adapter of which a module has a larger rank than the others', { timeout: 300_000 }, async () => {
  const pair: LoraPair = { A: new Float32Array(16 * 32).fill(0.1), B: new Float32Array(32 * 16).fill(0.1), r: 16 }
  const config = { r: 8, loraAlpha: 8, loraDropout: 0, targetModules: ['q_proj'], useRslora: false, rankPattern: { q_proj: 16 }, baseModel: 'tiny' } // prettier-ignore
  await writeAdapter(runs.path('wide'), { config, tensors: new Map([['model.layers.0.self_attn.q_proj', pair]]) })
  const outcome = await evaluate(['./even.ts', '-m', 'tiny', '--adapter', 'wide', ...small])
  expect(outcome, outcome.stderr).toMatchObject({ code: 0 })
})

test('an endpoint by its name in endpoints.toml answers as the engine does', { timeout: 300_000 }, async () => {
  const server = spawn(process.execPath, [cli, 'serve', '--model', 'tiny', '--port', '0', '--log-level', 'silent'], {
    cwd: runs.dir,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const url = await new Promise<string>((resolve, reject) => {
      server.stdout.on('data', (chunk: Buffer) => {
        const found = / at (http:\S+\/v1)/.exec(String(chunk))
        if (found) resolve(found[1])
      })
      server.once('close', () => reject(new Error('the server ended')))
    })
    runs.write('endpoints.toml', `[[endpoint]]\nendpoint_id = "mine"\nmodel = "tiny"\nurl = "${url}"\nkey = "DAWN_RL_TEST_KEY"\n`)
    const greedy = ['-n', '2', '-r', '1', '-t', '6', '-T', '0']
    const away = await evaluate(['./even.ts', '-m', 'mine', ...greedy])
    expect(away).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('DAWN_RL_TEST_KEY, which should hold the key') as string,
    })
    process.env.DAWN_RL_TEST_KEY = 'any'
    const named = await evaluate(['./even.ts', '-m', 'mine', ...greedy])
    expect(named, named.stderr).toMatchObject({ code: 0 })
    const local = await evaluate(['./even.ts', '-m', 'tiny', ...greedy])
    const texts = (outcome: { stdout: string }) => rowsIn(foldersOf(outcome)[0]).map((row) => row.completion.at(-1)!.content)
    expect(texts(named)).toEqual(texts(local))
    // The endpoint counts tokens as the engine does, but for the one that ends an answer.
    const used = rowsIn(foldersOf(named)[0]).map((row) => row.token_usage)
    expect(used.every((usage) => usage.input_tokens > 0 && usage.output_tokens > 0)).toBe(true)
    expect(metadataIn(foldersOf(named)[0])).toMatchObject({ base_url: url, model: 'tiny' })
  } finally {
    delete process.env.DAWN_RL_TEST_KEY
    server.kill('SIGTERM')
  }
})

test(
  "the limits of a config are its rollouts' here too, and an evaluation without one answer is none",
  { timeout: 120_000 },
  async () => {
    const config = readFileSync(runs.path('run.toml'), 'utf8')
    runs.write('late.toml', config.replace('[trainer.args]', '$&\nrollout_timeout = 0.001'))
    const late = await evaluate(['@', 'late.toml', ...small])
    expect(late, late.stderr).toMatchObject({
      code: 1,
      stdout: expect.stringContaining('even, tiny: every answer failed\n') as string,
    })
    const errors = rowsIn(foldersOf(late)[0]).map(({ error }) => error?.message)
    expect(errors).toEqual(errors.map(() => expect.stringContaining('the rollout took longer than its limit of 0.001 s')))
  },
)

test.skipIf(process.platform === 'win32')('whoever reads what is said may leave: the evaluation goes on to its end', () => {
  const words = './even.ts -m tiny -n 3 -r 2 -t 6 -o unread'
  const command = `set -o pipefail; '${process.execPath}' '${cli}' eval ${words} 2>&1 | head -1`
  const { status } = spawnSync('bash', ['-c', command], { cwd: runs.dir, timeout: 120_000, killSignal: 'SIGKILL' })
  expect(status).toBe(0)
  const results = globSync('unread/*/*/metadata.json', { cwd: runs.dir })
  expect(results.map((name) => JSON.parse(readFileSync(runs.path(name), 'utf8')) as unknown)).toEqual([
    expect.objectContaining({ num_examples: 2, avg_error: 0 }),
  ])
})

test('mistakes are sentences, and leave nothing behind', { timeout: 120_000 }, async () => {
  for (const [words, message] of [
    [['-m', 'tiny'], 'eval: no environment'],
    [['./even.ts'], 'eval: no model'],
    [['./even.ts', '-m', 'tiny', '-S', '{"top_a": 1}'], 'top_a is not supported by the embedded engine'],
    [['--run', 'outputs/made', '--steps', '7'], 'there is no checkpoint of step 7'],
    [['./even.ts', '-m', 'tiny', '--adapter', 'nowhere'], 'There is no folder nowhere'],
    [['./even.ts', '-m', 'tiny', '-r', '1e9'], 'It must be a whole number from 1 to 1048576.'],
    [['--run', 'nowhere'], 'there is no config.toml in it'],
    [['none.toml', '-m', 'tiny'], "none.toml can't be read"],
    [['./even.ts', '-m', 'x', '-e', 'none.toml'], "none.toml can't be read"],
  ] as const) {
    const { code, stderr } = await evaluate([...words, '-o', 'refused'])
    expect(stderr).toContain(message)
    expect(code).toBe(2)
    // Said before the device is opened and the model loaded.
    expect(stderr).not.toMatch(/no GPU found|loading/)
  }
  expect(existsSync(runs.path('refused'))).toBe(false)
  const file = await evaluate(['./even.ts', '-m', 'tiny', '-o', 'run.toml'])
  expect(file).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--output-dir run.toml cannot be written: EEXIST') as string,
  })
  expect(readdirSync(runs.outputs)).toContain('made')
})

test('stopped before the first answer', { timeout: 60_000 }, async () => {
  // On opening, which comes after the model is loaded and before any answer, it asks its own process to stop.
  const early = runs.write(
    'early.ts',
    `import even from './even.ts'
     export default async (args) => Object.assign(await even(args), { async open() { process.kill(process.pid, 'SIGINT'); await new Promise((r) => setTimeout(r, 50)) } })`,
  )
  const { code, stdout, stderr } = await evaluate([early, '-m', 'tiny', ...small])
  expect(code, stderr).toBe(130)
  expect(stdout).not.toMatch(/results/)
  expect(stderr).toMatch(/^Stopped before the first example: nothing was written\.$/m)
})
