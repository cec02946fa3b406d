/**
 * Runs killed with SIGKILL and resumed: what they become is, to the bit, what a run becomes that nobody killed. The long form is
 * `node bench/kill.ts --kills 1000`; here are a few kills at chosen instants, two runs side by side, and a run that begins with another's checkpoint.
 */
import { spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { KillRuns, type Kill, type Kind } from '../../bench/kill-runs.ts'
import { behind, pointed } from '../windows.ts'

const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-killed-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))
const runs = new KillRuns(dir, { asyncLevel: 0 })
const kind: Kind = {
  name: 'short',
  args: { max_steps: 4, eval_steps: 2 },
  ckpt: { interval: 2, keep_last: 1, keep_interval: 4, keep_best: 'eval/even/avg@1' },
}
beforeAll(() => runs.prepare())

test('killed while it starts, writes metrics and saves, with another run beside it: the same bits', async () => {
  const kills: Kill[] = [
    { how: 'start', delay: 5, nth: 1 },
    { how: 'record', delay: 0, nth: 2 },
    { how: 'save', delay: 3, nth: 1 },
  ]
  const [killed, beside] = await Promise.all([
    runs.trial(kind, 'killed', kills.length, () => kills.shift()!),
    runs.trial(kind, 'beside', 1, (seconds) => ({ how: 'time', delay: 500 * seconds, nth: 1 })),
  ])
  expect(killed.differences).toEqual([])
  expect(beside.differences).toEqual([])
  // A kill that came after the end would prove nothing.
  expect(killed.kills.map(({ how }) => how)).toEqual(['start', 'record', 'save'])
  expect(beside.kills.length).toBeLessThanOrEqual(1)
})

test('the start tells the bytes of a checkpoint, and of all that is written beside them', async () => {
  const { folder, output } = await runs.reference(kind)
  const step = join(folder, 'checkpoints/step_4')
  const bytes = readdirSync(step).reduce((sum, name) => sum + statSync(join(step, name)).size, 0)
  const [, said] =
    /^disk {5}(\d+) KiB a checkpoint, .* in all \(1 newest \+ the best \+ one being written\); .* are free$/m.exec(output) ?? []
  expect(Math.abs((Number(said) * 1024) / bytes - 1), `${said} KiB of ${bytes} bytes`).toBeLessThan(0.02)
  const beside = ['metrics.jsonl', 'rollouts', 'logs'].flatMap((name) => {
    const path = join(folder, name)
    return statSync(path).isFile() ? path : readdirSync(path).map((file) => join(path, file))
  })
  const written = beside.reduce((sum, path) => sum + (path.endsWith('.diff') ? 0 : statSync(path).size), 0)
  // 4 steps of 8 answers and 3 evaluations of 3, nearly all as long as they may be; their prompts are half as long.
  const [, about] = /; up to about ([\d.]+) KiB beside them \(an estimate: 4 x 8 rollouts and 9 of evaluations/.exec(output) ?? []
  expect(Number(about) * 1024, `${written} bytes`).toBeGreaterThan(0.95 * written)
  expect(Number(about) * 1024).toBeLessThan(2 * written)
})

test('the last words name the best checkpoint, and eval knows it by that word', async () => {
  const { folder } = await runs.reference(kind)
  const best = pointed(join(folder, 'checkpoints/best'))
  const log = readFileSync(behind(join(folder, 'logs/latest')), 'utf8')
  expect(log).toMatch(new RegExp(`best: ${best.replace('_', ' ')} +outputs/[^\\\\]+/checkpoints/${best}\\\\n`))
  const words = ['--run', folder, '--steps', 'best', '--no-base', '-n', '2', '-r', '1', '-o', join(dir, 'evals')]
  const { status, stdout, stderr } = spawnSync(process.execPath, [resolve('cli.js'), 'eval', ...words], {
    cwd: dir,
    encoding: 'utf8',
  })
  expect(status, stderr).toBe(0)
  expect(stdout).toMatch(new RegExp(`^even +${best} `, 'm'))
})

test('--fork begins a run with the best checkpoint of another, and leaves that alone', async () => {
  const { folder } = await runs.reference(kind)
  const best = Number(pointed(join(folder, 'checkpoints/best')).slice('step_'.length))
  const words = [
    '--run-name',
    'forked',
    '--max-steps',
    String(best + 1),
    '--learning-rate',
    '1e-3',
    '--eval-strategy',
    'no',
    '--keep-best',
    'reward',
  ]
  const { status, stdout, stderr } = runs.run(['--fork', `${folder}@best`, ...words])
  expect(status, stderr).toBe(0)
  expect(stdout).toMatch(
    new RegExp(
      `forked   step ${best} from .*: adapter \\(sha256 [0-9a-f]{12}\\), optimizer of ${best} updates, learning rate 0.001 next, ${2 * best} tasks done`,
    ),
  )
  const forked = join(dir, 'outputs/forked')
  const state = JSON.parse(readFileSync(join(forked, `checkpoints/step_${best + 1}/state.json`), 'utf8')) as Record<
    string,
    unknown
  >
  expect(state).toMatchObject({ step: best + 1, optimizer_steps: best + 1, best: { metric: 'reward', step: best + 1 } })
  expect(state.extra).toMatchObject({ tasks_done: 2 * (best + 1), forked_from: { from: folder, step: best } })
  const at1 = ['--max-steps', '1', '--eval-strategy', 'no', '--keep-best', 'reward']
  const ended = runs.run(['--fork', `${folder}@best`, '--run-name', 'ended', ...at1])
  expect(ended.stdout).toContain(
    `nothing is left to train: a fork's steps continue from ${best}, and trainer.args.max_steps is 1.`,
  )
  // The run that it came from is as it was.
  expect(existsSync(join(folder, 'run.lock'))).toBe(false)
  expect(runs.compare(folder, join(dir, 'outputs/beside'))).toEqual([])
  const refused = spawnSync(process.execPath, ['train.js', '--fork', `${dir}/nowhere`, '@', 'configs/tiny.toml'], {
    encoding: 'utf8',
  })
  expect(refused).toMatchObject({ status: 2 })
  expect(refused.stderr).toContain('nowhere: this is not the folder of a run: it has no checkpoints.')
  const none = runs.run(['--fork', `${folder}@77`, '--run-name', 'never'])
  expect(none.stderr).toMatch(/--fork: .* has no checkpoint of step 77\. It has those of steps (\d, )?4\./)
  expect(existsSync(join(dir, 'outputs/never'))).toBe(false)
})

test('what the comparison would tell', async () => {
  const { folder } = await runs.reference(kind)
  const copy = join(dir, 'outputs/copy')
  const told = (harm: () => void): string => {
    rmSync(copy, { recursive: true, force: true })
    cpSync(folder, copy, { recursive: true, verbatimSymlinks: true })
    harm()
    return runs.compare(folder, copy).join('\n')
  }
  const edit = (file: string, change: (text: string) => string) =>
    writeFileSync(join(copy, file), change(readFileSync(join(copy, file), 'utf8')))
  expect(told(() => {})).toBe('')
  expect(
    told(() => edit('metrics.jsonl', (text) => text.replace(/"entropy\/all\/mean":([\d.]+)\d/, '"entropy/all/mean":$1'))),
  ).toMatch(/^metrics\.jsonl, row \d \(step 1\): entropy\/all\/mean is /)
  expect(told(() => edit('metrics.jsonl', (text) => text + text.split('\n')[1] + '\n'))).toMatch(
    /^metrics\.jsonl has 6 rows instead of 5/,
  )
  expect(told(() => edit('rollouts/step_2.jsonl', (text) => text + text))).toMatch(/^a rollout is there twice: .*"step":2/)
  expect(told(() => edit('logs/timeline.jsonl', (text) => text + text.split('\n')[1] + '\n'))).toBe(
    'logs/timeline.jsonl has step 1 again, or too late: 0, 1, 2, 3, 4, 1',
  )
  expect(told(() => truncateSync(join(copy, 'checkpoints/step_4/optimizer.safetensors'), 999))).toContain(
    'checkpoints/step_4/optimizer.safetensors has other bytes',
  )
  expect(told(() => rmSync(join(copy, 'checkpoints/best')))).toContain('checkpoints/ holds step_')
  expect(told(() => writeFileSync(join(copy, 'run.lock'), ''))).toBe('run.lock was left')
})
