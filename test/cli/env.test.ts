/** `env new` and `env check`, as commands. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { bundledEnvironments } from '../../src/environments/load.ts'
import { checkEnvironment } from '../../src/cli/env-check.ts'
import { posixOnly } from '../windows.ts'

const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
const tiny = fileURLToPath(new URL('../../models/tiny', import.meta.url))
const folder = realpathSync(mkdtempSync(join(tmpdir(), 'dawn-rl-env-')))
afterAll(() => rmSync(folder, { recursive: true }))

function run(...words: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, 'env', ...words], { cwd: folder, encoding: 'utf8' })
  return { status, stdout, stderr }
}

/** What `env check` prints, in this process. */
async function check(id: string, args = '{}'): Promise<string> {
  const lines: string[] = []
  await checkEnvironment(id, { args, model: tiny }, (line) => lines.push(line)).catch((error: Error) =>
    lines.push(`UserError ${error.message}`),
  )
  return lines.join('\n')
}

describe('env new', () => {
  posixOnly('ulimit')('leaves no empty file on a full disk, and says so', () => {
    const words = [process.execPath, cli, 'env', 'new', 'full']
    const options = { cwd: folder, encoding: 'utf8' } as const
    // Files may have no byte, and who writes one is not ended but told.
    const { status, stderr } = spawnSync('bash', ['-c', `trap '' XFSZ; ulimit -f 0; exec "$@"`, 'bash', ...words], options)
    expect({ status, stderr }).toEqual({ status: 2, stderr: expect.stringMatching(/full\.ts cannot be written: EFBIG/) })
    expect(existsSync(join(folder, 'full.ts'))).toBe(false)
  })

  test.each(['single', 'multi', 'tools'])('writes a %s environment that runs as it is', (kind) => {
    const made = run('new', `my-${kind}`, '--kind', kind)
    expect(made, made.stderr).toMatchObject({
      status: 0,
      stdout: expect.stringContaining(`node cli.js env check ./my-${kind}.ts`),
    })
    // Of several turns, more than that config has room for.
    expect(made.stdout.includes('--trainer.args.max_seq_len 512')).toBe(kind !== 'single')
    const checked = run('check', `./my-${kind}.ts`, '--model', tiny, '--args', '{"size": 50}')
    expect(checked.stdout + checked.stderr).toContain(`./my-${kind}.ts is in order.`)
    expect(checked.status).toBe(0)
    expect(checked.stdout).toContain(`my-${kind}: 45 rows to train on, 5 held out`)
    expect(checked.stdout).toMatch(/its own answer +reward (1|0\.8)\.?\d* /)
    if (kind === 'tools') expect(checked.stdout).toMatch(/a call that is broken +reward 0\.000 /)
  })
  test('leaves what is there, and refuses what is no name', () => {
    writeFileSync(join(folder, 'mine.ts'), 'kept')
    expect(run('new', 'mine')).toMatchObject({ status: 2, stderr: expect.stringContaining('mine.ts exists already') })
    expect(readFileSync(join(folder, 'mine.ts'), 'utf8')).toBe('kept')
    expect(run('new', '../out').stderr).toContain('"../out" is not a valid name')
    expect(existsSync(join(folder, '../out.ts'))).toBe(false)
    expect(run('new', 'other', '--kind', 'multy')).toMatchObject({ status: 2, stderr: expect.stringContaining('(multi?)') })
  })
})

describe('env check', () => {
  posixOnly('a pipe of a shell')('leaves nothing behind where nobody reads on', () => {
    const temporary = join(folder, 'temporary')
    mkdirSync(temporary)
    const words = ['-c', '"$@" | head -1', 'bash', process.execPath, cli, 'env', 'check', 'short-answers', '--model', tiny]
    const { stdout } = spawnSync('bash', words, { encoding: 'utf8', env: { ...process.env, TMPDIR: temporary } })
    expect(stdout).toMatch(/^short-answers: \d+ rows/)
    expect(readdirSync(temporary)).toEqual([])
  })

  test.each(bundledEnvironments())('%s is in order', async (id) => {
    const text = await check(id)
    expect(text).toContain(`${id} is in order.`)
    expect(text).toMatch(/first prompt of .+: \d+ tokens, [1-9]\d* of them special/)
    expect(text).toContain('<|user|>')
    expect(text).not.toContain('earns no more than another')
  })
  test('looks at each member of a group, with its own weights', async () => {
    const path = join(folder, 'group.ts')
    writeFileSync(
      path,
      `import { EnvGroup, Rubric, SingleTurnEnv } from 'dawn-rl/environments'
      const env = (id: string, right: () => number, weight: number) =>
        SingleTurnEnv.create({ id, rubric: new Rubric({ right: { reward: right, weight } }), dataset: [{ question: id }, { question: 'b' }] })
      const broken = () => { throw new Error('no judge') }
      export default async () =>
        new EnvGroup({ id: 'mix', envs: [{ env: await env('good', () => 1, 0.3), weight: 2 }, { env: await env('bad', broken, 0.7) }] })`,
    )
    const text = await check(path)
    expect(text).toContain('mix: a group of good (weight 2), bad (weight 1)')
    expect(text).toMatch(
      /mix\/good: 1 rows to train on[^!]*rewards +right \(weight 0\.3\)[^!]*mix\/bad: 1 rows[^!]*right \(weight 0\.7\)/,
    )
    expect(text).toMatch(/! mix\/bad: nothing: .*no judge/)
    expect(text).toMatch(/UserError env check: .*group\.ts has \d problems/)
  })
  test('says what is wrong with rewards and rows, with exit code 2', () => {
    const env = (reward: string, evalRows: string) => `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
      const rows = [{ question: 'a', answer: 'x' }, { question: 'b', answer: 'y' }]
      export default () => SingleTurnEnv.create({ id: 'odd', rubric: new Rubric({ odd: ${reward} }), dataset: rows, evalDataset: ${evalRows} })`
    writeFileSync(
      join(folder, 'throws.ts'),
      env("({ text }) => { if (text === '') throw new Error('\\u001b[1mempty'); return 1 }", 'rows'),
    )
    const found = run('check', './throws.ts', '--model', tiny)
    expect(found.status).toBe(2)
    expect(found.stdout).toContain('nothing                  failed: reward function "odd" threw: ␛[1mempty')
    expect(found.stdout).toContain('! 2 held-out tasks are in the training rows too.')
    expect(found.stdout).toContain('! nothing: reward function "odd" threw: ␛[1mempty (throws.ts:3:')
    expect(found.stderr).toContain('env check: ./throws.ts has 3 problems; see the lines with ! above.')
    writeFileSync(
      join(folder, 'stray.ts'),
      env(
        "({ text }) => { void (async () => { if (text) throw new Error('away') })(); return text.length }",
        '[{ question: "c" }]',
      ),
    )
    const stray = run('check', './stray.ts', '--model', tiny)
    expect(stray.status).toBe(2)
    expect(stray.stdout).toContain('! An error in code that nothing awaits: away (stray.ts:3:')
    // As a judge that cannot be reached says it: a question needs no full stop.
    writeFileSync(
      join(folder, 'asks.ts'),
      env("() => { throw Object.assign(new Error('Is it right?'), { stack: '' }) }", '[{ question: "c" }]'),
    )
    expect(run('check', './asks.ts', '--model', tiny).stdout).toMatch(/^! "I do not know\.": .* threw: Is it right\?$/m)
    writeFileSync(
      join(folder, 'python.ts'),
      'import verifiers as vf\n\ndef load_environment(**kwargs):\n    return vf.Environment()\n',
    )
    expect(run('check', './python.ts', '--model', tiny).stderr).toMatch(
      /^environment \.\/python\.ts failed to load: .*\(python\.ts:1\)\. It looks like Python: give it a name that ends in \.py$/m,
    )
    writeFileSync(join(folder, 'same.ts'), env('() => 1', '[{ question: "c" }]'))
    expect(run('check', './same.ts', '--model', tiny).stdout).toContain(
      '! every answer earns 1: a reward that does not tell answers apart',
    )
    writeFileSync(
      join(folder, 'short.ts'),
      env('({ text, info }) => Number(text === info.word || text.length < 9)', '[{ question: "c" }]'),
    )
    expect(run('check', './short.ts', '--model', tiny).stdout).toContain('(its own answer earns no more than another: fine if')
  })
  test('a held-out row with the prompt and the answer of a training row is the same task, whatever its id', () => {
    writeFileSync(
      join(folder, 'ids.ts'),
      `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
      const rubric = new Rubric({ right: ({ text, answer }) => Number(text === answer) })
      const rows = (from) => [['a', 'x'], ['b', '']].map(([question, answer], i) => ({ question, answer, ticket: from + i }))
      export default () => SingleTurnEnv.create({ id: 'ids', rubric, dataset: rows(0), evalDataset: rows(2) })`,
    )
    expect(run('check', './ids.ts', '--model', tiny).stdout).toContain('! 1 held-out task is in the training rows too.')
  })
  test('prompts that end with an answer, as conversations of data sets do, are told of', () => {
    writeFileSync(
      join(folder, 'whole.ts'),
      `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
      const rubric = new Rubric({ brief: ({ text }) => -text.length })
      const rows = ['a', 'b', 'c'].map((content) => ({ prompt: [{ role: 'user', content }, { role: 'assistant', content: 'x' }] }))
      export default () => SingleTurnEnv.create({ id: 'whole', rubric, dataset: [...rows, { question: 'd' }], evalSize: 0 })`,
    )
    const { stdout, status } = run('check', './whole.ts', '--model', tiny)
    expect(stdout).toContain(
      '! 3 of the 4 prompts end with an assistant message, after which the model is asked for another one.',
    )
    expect(status).toBe(2)
  })
  // In a process of its own: vitest reads files otherwise than Node does.
  test.each(['slip.js', 'slip.ts'])('names the line of %s, which is no code', (name) => {
    writeFileSync(join(folder, name), "import 'dawn-rl/environments'\n\nexport default ( => 1\n")
    expect(run('check', `./${name}`).stderr).toMatch(new RegExp(`failed to load: .+ \\(${name}:3\\)\n$`))
  })
  test('refuses what cannot be looked at', async () => {
    expect(await check('wordel')).toContain('did you mean wordle?')
    expect(await check('wordle', '{"max_turns": 0}')).toContain('max_turns is 0')
    expect(await check('wordle', 'max_turns = 3')).toContain('--args is not valid JSON')
    expect(await check('wordle', '[1]')).toContain('--args must be a JSON object')
  })
})
