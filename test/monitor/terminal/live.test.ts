/** The live view as a person sees it, in a real terminal: a console fed with the metrics of a run. */
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { temporaryFolder } from '../helpers.ts'
import { noTerminal, TestTerminal, type TerminalOptions } from './terminal.ts'

const url = (name: string) => JSON.stringify(pathToFileURL(join(import.meta.dirname, '../../..', name)).href)

/** A program that shows two steps of a run, and then goes on step by step: `at(n)` waits for the test's `go(n)`, a file in its folder. */
const program = (body: string) => `
import { existsSync, writeFileSync } from 'node:fs'
import { RunConsole } from ${url('src/monitor/terminal/console.ts')}
import { Progress } from ${url('src/monitor/progress.ts')}
process.on('SIGHUP', () => {})
const progress = new Progress()
const out = new RunConsole({ progress, maxSteps: 12, panel: true, samplesEvery: 0 })
const row = (step) => ({ step, reward: step / 10, solved_some: 0.75, 'entropy/all/mean': 1 / step, 'is_truncated/mean': 0.16,
  'mismatch_kl/all/mean': 0.002, 'optim/grad_norm': 0.3, 'tokens/completion': 17, 'has_error/mean': 0, 'perf/generation_throughput': 74,
  'perf/throughput': 1300, 'time/step': 2, 'time/wait_for_batch': 1.5, 'time/wait_for_trainer': 0.1, 'perf/peak_memory': 1.5 })
const rollout = (text, reward) => ({ advantage: 0.1, rollout: { exampleId: 0, env: 'e', group: 'g', index: 0, answer: '', info: {}, reward,
  prompt: [{ role: 'user', content: 'Capital of Peru?' }], completion: [{ role: 'assistant', content: text }], metrics: {}, promptIds: [1],
  completion_tokens: { ids: [5], logprobs: [0], versions: [0] }, isTruncated: false, stopCondition: 'eos', error: null, seed: 1, timing: {} } })
const step = (n) => out.step(n, row(n), [rollout('Lima, of course', 1), rollout('Cusco', 0), rollout('Quito', 0.5)])
// A test that failed has killed what made this terminal, and SIGHUP ends no run.
const parent = process.ppid
const at = async (n) => {
  while (!existsSync('go' + n)) {
    if (process.ppid !== parent) process.exit(1)
    await new Promise((r) => setTimeout(r, 20))
  }
}
process.on('SIGINT', () => console.error('\\nasked to stop'))
out.gpuBytes = () => 2 ** 30
out.print('hello')
step(1)
step(2)
const wait = progress.wait('training step 3', { limitMs: 600000, details: 'micro-batch 1 of 4' })
${body}
wait.done()
out.close()
`

const tests = test.skipIf(noTerminal !== '')

function show(body: string, { command = 'exec node show.mjs', ...options }: TerminalOptions & { command?: string } = {}) {
  const cwd = temporaryFolder()
  writeFileSync(join(cwd, 'show.mjs'), program(body))
  const PATH = `${join(process.execPath, '..')}:${process.env.PATH}`
  const terminal = new TestTerminal(['bash', '--norc', '--noprofile', ...(command === '' ? ['-i'] : ['-c', command])], {
    ...options,
    cwd,
    env: { PATH, PS1: '$ ', ...options.env },
  })
  return { terminal, cwd, go: (n: number) => writeFileSync(join(cwd, `go${n}`), '') }
}

const isRule = (line: string) => /^─{20,}$/.test(line)
const rules = (lines: string[]) => lines.filter(isRule).length
const onlyOnce = (lines: string[], part: string) => lines.filter((line) => line.includes(part)).length === 1
/**
 * There is one panel, so wide, from its rule to its last line. To be waited for whole: what is written comes in pieces, and lines that stay the same are not
 * written again, so on the way any line may be missing or twice.
 */
const onePanel = (lines: string[], width: number) =>
  rules(lines) === 1 &&
  lines.find(isRule)!.length === width &&
  onlyOnce(lines, 'micro-batch') &&
  /^(s samples|stops after)/.test(lines.at(-1)!)
const oneLine = (lines: string[]) =>
  rules(lines) === 0 && onlyOnce(lines, 'micro-batch') && lines.at(-1)!.startsWith('training step 3: micro-batch')

tests('a panel below the lines that stay, keys, and the terminal as it was', async () => {
  const body = `await at(1); console.log('a line of an environment'); step(3); process.stdout.write('half a'); await at(2); console.log(' line')`
  const { terminal, go } = show(body, { command: 'node show.mjs; stty -a' })
  await terminal.sees('now        training step 3: micro-batch 1 of 4')
  // The last line of the panel: what is written comes in pieces.
  const lines = await terminal.sees('q stop after this step')
  const first = lines.findIndex(isRule)
  expect(lines.slice(0, first)).toEqual([
    'hello',
    'step  1/12 | reward 0.10 ▄ | truncated 16% | entropy 1 | kl 0.002 | 2.0s',
    'step  2/12 | reward 0.20 ▁█ | truncated 16% | entropy 0.5 | kl 0.002 | 2.0s',
  ])
  expect(lines.slice(first + 1).map((line) => line.replace(/ {2}\d+s {2}|\d+ MiB|\d\.\ds\)$/g, '_').trim())).toEqual([
    expect.stringMatching(/^step 2\/12 {2}━{8}─{40,}  17%_20s left$/),
    'reward           0.200    ▁█            mixed              75%    ▄▄',
    'entropy            0.5    █▁            truncated          16% !  ▄▄',
    'kl               0.002    ▄▄            gradient           0.3    ▄▄',
    'length          17 tok    ▄▄            failed              0%    ▄▄',
    'sampling      74 tok/s    ▄▄            training   1.30k tok/s    ▄▄',
    'waiting    trainer for answers 1.5s (75%), sampler for the trainer 0.1s (5%)',
    expect.stringMatching(/^memory {5}GPU 1.00 GiB \(1.50 GiB at most\), process /),
    expect.stringMatching(/^now        training step 3: micro-batch 1 of 4 \(/),
    '',
    's samples   l what is healthy   p hide this   q stop after this step',
  ])
  expect(terminal.raw).toContain('\x1b[33m16%\x1b[39m \x1b[33m! ')
  expect(terminal.raw).toContain('\x1b[32m75%')

  terminal.type('s')
  const samples = await terminal.sees('Cusco')
  expect(samples.join('\n')).toMatch(/^best and worst of step 2$[^]*Lima, of course$[^]*Cusco$/m)
  expect(samples.join('\n')).not.toContain('Quito')
  terminal.type('l')
  await terminal.sees('! is worth a look')
  expect(terminal.all()).toContain('truncated  under 0.1; otherwise raise trainer.args.max_tokens')
  await terminal.until((now) => rules(now) === 1, 'one panel')
  terminal.type('p')
  await terminal.until(oneLine, 'one live line')
  terminal.type('\x1b[A')
  terminal.type('p')
  await terminal.until((now) => rules(now) === 1, 'the panel again')
  terminal.type('q')
  await terminal.sees('stops after this step')
  terminal.type('q')
  go(1)
  await terminal.until((now) => now.includes('half a') && onePanel(now, 79), 'the panel below half a line')
  go(2)
  expect(await terminal.ended()).toBe(0)
  const all = terminal.all()
  // Each line once, nothing of the panel, and what others wrote.
  expect(rules(all)).toBe(0)
  const once = ['hello', 'asked to stop', 'a line of an environment']
  for (const line of once) expect(all.filter((l) => l === line), line).toHaveLength(1) // prettier-ignore
  expect(all.filter((line) => /^step +3\/12 \| reward 0.30/.test(line))).toHaveLength(1)
  expect(all.join('\n')).toMatch(/^half a$\n^ line$/m)
  expect(all.join('\n')).toMatch(/ icanon [^]* echo /)
})

tests('a window that changes its size: one panel, as wide as there is room, or one line', async () => {
  const { terminal, go } = show('await at(1)', { columns: 100, rows: 40 })
  await terminal.sees('micro-batch 1 of 4')
  const sizes = [[70, 40], [58, 40], [90, 30], [40, 36], [120, 50], [100, 24], [100, 40]] as const // prettier-ignore
  for (const [columns, rows] of sizes) {
    terminal.resize(columns, rows)
    const small = columns < 48
    await terminal.until((now) => (small ? oneLine(now) : onePanel(now, columns - 1)), `one view for ${columns} x ${rows}`)
  }
  go(1)
  expect(await terminal.ended()).toBe(0)
  expect(rules(terminal.all()), terminal.all().join('\n')).toBe(0)
  expect(terminal.all().filter((line) => line === 'hello')).toHaveLength(1)
  expect(terminal.all().at(-1)).toMatch(/^step {2}2\/12 \| reward/)
})

tests('Ctrl-Z, bg, fg, Ctrl-C and kill -9 under a shell', async () => {
  const { terminal } = show(`out.print('process ' + process.pid); await at(1)`, { command: '', rows: 45 })
  terminal.type('node show.mjs\r')
  const started = await terminal.sees(/^process \d+$/)
  const pid = Number(/^process (\d+)$/m.exec(started.join('\n'))![1])
  terminal.type('\x1a')
  await terminal.sees('Stopped')
  terminal.type('bg\r')
  await terminal.sees('node show.mjs &')
  const written = terminal.raw.length
  await sleep(1500)
  // Nothing is drawn over the shell's prompt, and what is typed is the shell's.
  expect(terminal.raw.slice(written)).not.toContain('─')
  terminal.type('echo s$((40 + 2))\r')
  await terminal.sees(/^s42$/)
  terminal.type('fg\r')
  await terminal.until((lines) => lines.at(-1)!.startsWith('s samples'), 'the panel below')
  terminal.type('s')
  await terminal.sees('Cusco')
  terminal.type('\x03')
  await terminal.sees('asked to stop')
  process.kill(pid, 'SIGKILL')
  await terminal.sees('Killed')
  // The shell has mended the terminal: what is typed is seen.
  terminal.type('echo on$((1 + 1))\r')
  await terminal.sees(/ echo on\$\(\(1 \+ 1\)\)$/)
  await terminal.sees(/^on2$/)
  terminal.type('exit\r')
  expect(await terminal.ended()).toBe(0)
})

tests('without colours; in a dumb terminal plain lines; a closed window does not end the run', async () => {
  const gone = `await at(1); step(3); out.warn('nobody reads this'); await new Promise((r) => setTimeout(r, 1500)); writeFileSync('survived', '')`
  const grey = show(gone, { env: { NO_COLOR: '1' } })
  const dumb = show('await at(1)', { env: { TERM: 'dumb' } })
  await grey.terminal.sees('16% !')
  // oxlint-disable-next-line no-control-regex
  expect(grey.terminal.raw).not.toMatch(/\x1b\[[\d;]*m/)
  grey.terminal.hangUp()
  grey.go(1)
  await dumb.terminal.sees('step  2/12')
  dumb.go(1)
  expect(await dumb.terminal.ended()).toBe(0)
  // oxlint-disable-next-line no-control-regex
  expect(dumb.terminal.raw).not.toMatch(/\x1b/)
  expect(await grey.terminal.ended()).toBe(0)
  expect(existsSync(join(grey.cwd, 'survived'))).toBe(true)
})
