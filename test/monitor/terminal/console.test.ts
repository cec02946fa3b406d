import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { stripVTControlCharacters } from 'node:util'
import { expect, onTestFinished, test, vi } from 'vitest'
import { collectAll } from '../../../src/gpu/heap.ts'
import { RunConsole, wantsColour } from '../../../src/monitor/terminal/console.ts'
import type { ConsoleOptions } from '../../../src/monitor/terminal/console.ts'
import { Progress } from '../../../src/monitor/progress.ts'
import { LiveScreen } from '../../../src/monitor/terminal/screen.ts'
import { etaSeconds, evalLine, legend, pickSamples, sampleLines, stepLine } from '../../../src/monitor/terminal/step-line.ts'
import { Capture, groupsOf, rollout, scored } from '../helpers.ts'

const metrics = {
  reward: 0.517,
  solved_some: 0.75,
  'is_truncated/mean': 0.03125,
  'tokens/completion': 16.6,
  'has_error/mean': 0,
  'entropy/all/mean': 0.8123,
  'mismatch_kl/all/mean': 0.00123,
  'optim/grad_norm': 0.4321,
  'perf/generation_throughput': 120.4,
  'perf/throughput': 1340,
  'time/step': 12.34,
}

function consoleOn(stream: Capture, over: Partial<ConsoleOptions> = {}) {
  const progress = over.progress ?? new Progress()
  const console = new RunConsole({ progress, maxSteps: 12, stream, colour: false, ...over })
  onTestFinished(() => console.close())
  return { console, progress }
}

test('rows of the steps before, megabytes of a long run, are let go', async () => {
  const { row, out } = (() => {
    const history = [{ ...metrics }, { ...metrics }]
    return { row: new WeakRef(history[0]), out: consoleOn(new Capture(true), { history, panel: true }).console }
  })()
  // A reference keeps what it was made of to the end of the turn.
  await sleep(1)
  collectAll()
  expect(row.deref()).toBeUndefined()
  out.close()
})

test('the line of a step: reward first', () => {
  expect(
    stepLine({ step: 3, maxSteps: 12, metrics, rewards: [0.26, 0.31, 0.517], seconds: 12.34, eta: 110 }),
  ).toMatchInlineSnapshot(
    `"step  3/12 | reward 0.52 ▁▂█ | mixed 75% | truncated 3% | 17 tokens | entropy 0.812 | kl 0.00123 | grad 0.432 | sample 120 tok/s | train 1.34k tok/s | 12.3s | eta 1m50s"`,
  )
  const bad = { ...metrics, reward: null, 'has_error/mean': 0.25, 'optim/grad_norm': null, 'eval/short-answers/avg@4': 0.9 }
  expect(stepLine({ step: 12, maxSteps: 12, metrics: bad, rewards: [0.5, null] })).toMatchInlineSnapshot(
    `"step 12/12 | reward n/a ▄ | held-out short-answers 0.90 | mixed 75% | truncated 3% | 17 tokens | failed 25% | entropy 0.812 | kl 0.00123 | grad n/a: step skipped | sample 120 tok/s | train 1.34k tok/s"`,
  )
  expect(stepLine({ step: 1, maxSteps: 2, metrics: {}, rewards: [] })).toBe('step 1/2 | reward n/a')
  // Filters turned all groups down: a step without an update looked like others.
  const metricsOf = (discarded: number) => ({ reward: 0.7, solved_some: 1, 'discarded/mean': discarded })
  const lineOf = (discarded: number) => stepLine({ step: 4, maxSteps: 9, metrics: metricsOf(discarded), rewards: [] })
  expect(lineOf(1)).toBe('step 4/9 | reward 0.70 | mixed 100% | none trained on')
  expect(lineOf(0.75)).toBe('step 4/9 | reward 0.70 | mixed 100%')
})

test('the line of an evaluation', () => {
  const m = {
    'eval/short-answers/avg@4': 0.284,
    'eval/short-answers/pass@1': 0.125,
    'eval/short-answers/is_truncated/mean': 0.4,
    'eval/short-answers/tokens/completion': 17.2,
    'eval/short-answers/has_error/mean': 0,
    'eval/short-answers/policy_version': 0,
  }
  expect(evalLine('before training', m, 8.12)).toMatchInlineSnapshot(
    `"eval before training | short-answers reward 0.28 | solved 13% | truncated 40% | 17 tokens | 8.1s"`,
  )
})

test('the time left leaves the first step out, and follows the last ten', () => {
  expect(etaSeconds([], 5)).toBeUndefined()
  expect(etaSeconds([60], 5)).toBe(300)
  expect(etaSeconds([60, 10, 20], 2)).toBe(30)
  expect(etaSeconds([60, 99, ...Array.from({ length: 10 }, () => 1)], 3)).toBe(3)
})

test('samples: the best, the worst, then between; whole, safe, each answer once', () => {
  const answers = ['a', 'b', 'b', 'c', 'd'].map((content) => [{ role: 'assistant' as const, content }])
  const rollouts = groupsOf([[0.5, 0.1, 0.1, 0.9, null]]).map((r, i) => ({ ...r, completion: answers[i] }))
  const texts = (n: number) => pickSamples(scored(rollouts), n).map((s) => s.rollout.completion[0].content)
  expect(texts(2)).toEqual(['c', 'b'])
  expect(texts(9)).toEqual(['c', 'b', 'a', 'd'])
  const long = rollout({
    prompt: [{ role: 'user', content: `${'background '.repeat(50)}What is the capital of France?` }],
    completion: [{ role: 'assistant', content: 'The capital\nis \x1b[31mParis.' }],
    reward: 0.8,
    metrics: { ends: 1 },
  })
  expect(sampleLines({ rollout: long, advantage: 0.25 }, { prompt: 40 })).toMatchInlineSnapshot(`
    [
      "  prompt  …ckground What is the capital of France?",
      "  answer  The capital",
      "          is ␛[31mParis.",
      "          reward 0.80, advantage 0.25, ends 1, eos, 3 tokens",
    ]
  `)
  const byToken = { rollout: long, advantage: Float32Array.of(0.5, -0.25, 0) }
  expect(sampleLines(byToken).at(-1)).toBe('          reward 0.80, advantages -0.25 to 0.50, ends 1, eos, 3 tokens')
  const cut = rollout({
    completion: [{ role: 'assistant', content: 'x'.repeat(50) }],
    isTruncated: true,
    reward: null,
    error: 'E: no',
  })
  expect(sampleLines({ rollout: cut, advantage: null }, { completion: 10 }).join('\n')).toMatchInlineSnapshot(`
    "  prompt  What is the capital of France?
      answer  xxxxxxxxxx… (40 more characters on disk)
      error   E: no
              reward none (failed), truncated, 3 tokens"
  `)
})

test('outside a terminal: plain lines, no escape sequence, long waits mentioned and then ever more rarely', async () => {
  const stream = new Capture(false)
  const logged: unknown[] = []
  const logger = { info: (m: unknown) => logged.push(m), warn: (m: unknown) => logged.push(m) }
  const { console, progress } = consoleOn(stream, { colour: undefined, longWaitMs: 1, logger })
  const wait = progress.wait('waiting for rollouts', { limitMs: 60_000, details: '3 of 32 left' })
  console.legend()
  console.step(1, metrics, scored([rollout()], 0.5))
  console.step(2, metrics, scored([rollout()], 0.5))
  console.warn('something')
  console.warn('Unexpected token in "a\x1b]0;b"')
  await sleep(1200)
  wait.done()
  console.close()
  console.close()
  // oxlint-disable-next-line no-control-regex
  expect(stream.text).not.toMatch(/[\x00-\x09\x0b-\x1f\x7f]/)
  const lines = stream.text.trimEnd().split('\n')
  expect(lines[0]).toBe(legend)
  expect(lines[1]).toMatch(/^step {2}1\/12 \| reward 0.52 ▄ \|.* \| 12.3s \| eta 2m16s$/)
  expect(lines.slice(2)).toEqual([
    '  prompt  What is the capital of France?',
    '  answer  Paris.',
    '          reward 1.00, advantage 0.50, eos, 3 tokens',
    expect.stringMatching(/^step {2}2\/12 \| reward 0.52 ▄▄ \|.* \| eta 2m03s$/),
    'warning: something',
    'warning: Unexpected token in "a␛]0;b"',
    expect.stringMatching(/^still waiting after 1\.\ds: waiting for rollouts: 3 of 32 left$/),
  ])
  expect(logged.join('\n')).toBe(stream.text.trimEnd().replaceAll('warning: ', '').replace('␛', '\x1b'))
})

test('in a terminal: the live line says what is waited for, never wraps, and leaves no trace', async () => {
  const stream = new Capture(true)
  stream.columns = 40
  const { console, progress } = consoleOn(stream)
  const wait = progress.wait('training', { limitMs: 60_000, details: 'micro-batch 1 of 4' })
  await sleep(150)
  expect(stripVTControlCharacters(stream.text)).toContain('training: micro-batch 1 of 4 (0.')
  for (let i = 0; i < 1000; i++) wait.update(`micro-batch 2 of 4 ${'with a long tail '.repeat(5)}${i}`)
  const before = stream.text.length
  await sleep(150)
  // A thousand changes, one drawing.
  expect(stream.text.length - before).toBeLessThan(300)
  for (const line of stripVTControlCharacters(stream.text).split('\n')) expect(line.length).toBeLessThan(40)
  console.print('stays')
  wait.done()
  console.close()
  // What a terminal would show: log-update erases its lines with these sequences, so nothing but the printed line is left.
  expect(screen(stream.text).trim()).toBe('stays')
})

/** The sequences that log-update writes, played on a screen that is wide enough: erase line, up, to column, erase down. */
function screen(text: string): string {
  const lines = ['']
  let [row, column] = [0, 0]
  // oxlint-disable-next-line no-control-regex
  for (const [token] of text.matchAll(/\x1b\[\??[\d;]*[A-Za-z]|[^]/gu)) {
    const count = Number(/\d+/.exec(token)?.[0] ?? 1)
    if (token === '\n') [row, column] = [row + 1, 0]
    else if (!token.startsWith('\x1b')) {
      lines[row] = lines[row].padEnd(column).slice(0, column) + token + lines[row].slice(column + 1)
      column++
    } else if (token.endsWith('A')) row -= count
    else if (token.endsWith('G')) column = count - 1
    else if (token.endsWith('D')) column = 0
    else if (token === '\x1b[2K') lines[row] = ''
    else if (token.endsWith('K')) lines[row] = lines[row].slice(0, column)
    else if (token.endsWith('J')) lines.splice(row, Infinity, lines[row].slice(0, column))
    else if (!/[hl]$/.test(token)) throw new Error(`a sequence that this screen does not know: ${JSON.stringify(token)}`)
    while (lines.length <= row) lines.push('')
  }
  return lines.join('\n')
}

test('what others wrote without a line break stays whole: neither a line nor the drawing is put behind it', () => {
  const stream = new Capture(true)
  const live = new LiveScreen(stream, [stream])
  live.draw(['drawn'])
  stream.write('half of a line')
  stream.write('')
  live.print('a step\n')
  live.draw(['drawn'])
  stream.write('another half')
  stream.write('')
  live.draw(['drawn'])
  live.close()
  expect(screen(stream.text).trimEnd().split('\n')).toEqual(['half of a line', 'a step', 'another half'])
})

test('a terminal of size 0 gets no live line, but long waits are mentioned', async () => {
  const stream = new Capture(true)
  stream.rows = 0
  const { progress } = consoleOn(stream, { longWaitMs: 1 })
  const wait = progress.wait('compiling', { limitMs: 60_000 })
  // A clock that is set meanwhile makes no wait long, or short.
  const clock = vi.spyOn(Date, 'now').mockReturnValue(Date.now() - 3_600_000)
  await sleep(1100)
  clock.mockRestore()
  wait.done()
  expect(stream.text).toMatch(/^still waiting after 1\.\ds: compiling\n$/)
})

test('colours only where they are wanted, and the log has none', () => {
  expect(wantsColour({ isTTY: true }, {})).toBe(true)
  expect(wantsColour({ isTTY: true }, { NO_COLOR: '1' })).toBe(false)
  expect(wantsColour({ isTTY: true }, { NO_COLOR: '1', FORCE_COLOR: '1' })).toBe(false)
  expect(wantsColour({ isTTY: false }, {})).toBe(false)
  expect(wantsColour({}, { FORCE_COLOR: '1' })).toBe(true)
  expect(wantsColour({ isTTY: true }, { TERM: 'dumb' })).toBe(false)
  const stream = new Capture(false)
  const logged: unknown[] = []
  const { console } = consoleOn(stream, { colour: true, logger: { info: (m) => logged.push(m), warn: () => {} } })
  console.step(2, metrics)
  expect(stream.text).toContain('\x1b[1mreward 0.52\x1b[22m')
  expect(logged.join('')).toBe(stripVTControlCharacters(stream.text).trimEnd())
})

test('a resumed run goes on with its sparkline', () => {
  const stream = new Capture(false)
  consoleOn(stream, { history: [{ reward: 0 }, { reward: 0.25 }] }).console.step(3, metrics)
  expect(stream.text).toContain('reward 0.52 ▁▄█ |')
})

test('a reader that goes away (| head) does not end the run, and an open console does not keep it alive', async () => {
  const url = (name: string) => JSON.stringify(pathToFileURL(join(import.meta.dirname, '../../../src/monitor', name)).href)
  const child = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { RunConsole } from ${url('terminal/console.ts')}
       import { Progress } from ${url('progress.ts')}
       const out = new RunConsole({ progress: new Progress(), maxSteps: 3 })
       for (let i = 0; i < 50; i++) { out.print('line ' + i); await new Promise((r) => setTimeout(r, 5)) }
       process.stderr.write('finished')`,
    ],
    { stdio: ['ignore', 'pipe', 'pipe'] },
  )
  onTestFinished(() => void child.kill('SIGKILL'))
  let stderr = ''
  child.stderr.on('data', (chunk) => (stderr += String(chunk)))
  await once(child.stdout, 'data')
  child.stdout.destroy()
  const [code] = await once(child, 'exit')
  expect(stderr).toBe('finished')
  expect(code).toBe(0)
})

test('a line every so many steps, and always for the first and the last', () => {
  const stream = new Capture(false)
  const progress = new Progress()
  const out = new RunConsole({ progress, maxSteps: 7, stream, colour: false, linesEvery: 3, samplesEvery: 0 })
  for (let step = 1; step <= 7; step++) out.step(step, { reward: 0.5 })
  out.close()
  expect([...stream.text.matchAll(/step (\d)\/7/g)].map(([, step]) => Number(step))).toEqual([1, 3, 6, 7])
})
