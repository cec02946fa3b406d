import { expect, test } from 'vitest'
import { healthOf, LIMITS } from '../../../src/monitor/health.ts'
import { PANEL_METRICS, panelHeight, panelLines, type PanelState } from '../../../src/monitor/terminal/panel.ts'
import { cut, textWidth } from '../../../src/monitor/terminal/text-width.ts'
import { METRICS, metricInfo } from '../../../src/monitor/metrics-table.ts'
import { stepLine } from '../../../src/monitor/terminal/step-line.ts'
import { Random } from '../../../src/common/random.ts'
import { seed, seedWords } from '../../seed.ts'

const random = new Random(seed)
const anyValue = (): number | null => [0, null, random.next(), 1e9 * random.next(), 1e-9 * random.next()][random.int(5)]

function state(over: Partial<PanelState> = {}): PanelState {
  const history = new Map(PANEL_METRICS.map((key) => [key, Array.from({ length: random.int(300) }, anyValue)]))
  const metrics = Object.fromEntries([...history].map(([key, values]) => [key, values.at(-1) ?? null]))
  return {
    step: 3,
    maxSteps: 12,
    metrics: { ...metrics, 'time/step': anyValue(), 'time/wait_for_batch': anyValue(), 'time/wait_for_trainer': anyValue(), 'perf/peak_memory': anyValue() },
    history,
    heldOut: new Map([['short-answers', { first: anyValue(), last: anyValue() }]]),
    waits: ['waiting for 3 of 32 rollouts, oldest 12.0s, decoding: 日本語のテキスト 🙂 (13.5s)', 'training step 24: micro-batch 2 of 4 (1.5s)', 'saving (0.1s)'],
    elapsed: 1e5 * random.next(),
    left: 1e6 * random.next(),
    gpuBytes: 1e10,
    processBytes: 1e9,
    keys: 's samples   l what is healthy   p hide this   q stop after this step',
    ...over,
  } // prettier-ignore
}

test(`no line is wider than the terminal, at any width and with any values (${seedWords})`, () => {
  for (let width = 40; width <= 200; width++) {
    for (const one of [state(), state({ metrics: {}, step: 0, left: undefined, heldOut: new Map(), waits: [], keys: '' })]) {
      const lines = panelLines(one, width)
      for (const line of lines) expect(textWidth(line), `${width}: ${line}`).toBeLessThanOrEqual(width)
      expect(lines.length).toBeLessThanOrEqual(panelHeight(width))
      expect(lines.join('\n')).not.toMatch(/NaN|undefined|Infinity/)
    }
  }
})

test('colours take no room, and columns stand below one another', () => {
  const one = state({ waits: ['x'] })
  const painted = panelLines(one, 100, (_style, text) => (text === '' ? '' : `\x1b[1m${text}\x1b[22m`))
  // oxlint-disable-next-line no-control-regex
  expect(painted.map((line) => line.replace(/\x1b\[\d+m/g, '').trimEnd())).toEqual(panelLines(one, 100))
  const [, , ...rows] = panelLines(one, 100)
  for (const [i, name] of ['mixed', 'truncated', 'gradient', 'failed', 'training'].entries())
    expect(rows[i].indexOf(name)).toBe(51)
})

test('before the first step there is what is known', () => {
  const lines = panelLines(
    { step: 0, maxSteps: 60, metrics: {}, history: new Map(), heldOut: new Map([['e', { first: 0.5, last: 0.5 }]]), waits: ['loading'], elapsed: 3, keys: '' },
    60,
  ) // prettier-ignore
  expect(lines).toEqual([
    '─'.repeat(60),
    `step 0/60  ${'─'.repeat(41)}  0%  3s`,
    'held-out   e 0.50',
    'waiting    no step is done yet',
    'memory',
    'now        loading',
    '',
  ])
})

test('supervised training: its loss and its gradient, and nothing of rollouts', () => {
  const metrics = {
    'loss/mean': 2.31,
    'entropy/all/mean': 0.01,
    'optim/grad_norm': 0.5,
    'perf/throughput': 12_300,
    'time/step': 0.2,
  }
  const history = new Map(Object.entries(metrics).map(([key, value]) => [key, [value]]))
  const lines = panelLines(
    { supervised: true, step: 3, maxSteps: 12, metrics, history, heldOut: new Map(), waits: ['training step 4'], elapsed: 3, keys: '' },
    100,
  ) // prettier-ignore
  const text = lines.map((line) => line.replaceAll(/ +/g, ' '))
  expect(text.slice(1)).toEqual([
    expect.stringMatching(/^step 3\/12 ━+─+ 25% 3s$/),
    'loss 2.31 ▄ gradient 0.5 ▄',
    // A model that knows the answers has little entropy: no cause for a mark.
    'entropy 0.01 ▄ training 12.3k tok/s ▄',
    'memory',
    'now training step 4',
    '',
  ])
})

test('health: ranges of the table, spikes against the steps before, skipped steps', () => {
  expect([0.29, 0.3, null, undefined].map((v) => healthOf('solved_some', v))).toEqual(['watch', 'good', 'none', 'none'])
  expect([0.1, 0.11, 0.5].map((v) => healthOf('is_truncated/mean', v))).toEqual(['good', 'watch', 'bad'])
  expect([0, 0.01, 0.25].map((v) => healthOf('has_error/mean', v))).toEqual(['good', 'watch', 'bad'])
  expect(healthOf('reward', 0)).toBe('none')
  const norms = [0.3, 0.2, 0.4, 0.5]
  expect([1.7, 1.8, null].map((v) => healthOf('optim/grad_norm', v, norms))).toEqual(['good', 'watch', 'bad'])
  expect(healthOf('optim/grad_norm', 100, norms.slice(1))).toBe('none')
  // A run begins with longer gradients: the last 20 steps count.
  const settled = Array.from({ length: 40 }, (_, i) => (i < 20 ? 10 : 0.3))
  expect([1.4, 1.6].map((v) => healthOf('optim/grad_norm', v, settled))).toEqual(['good', 'watch'])
  for (const key of Object.keys(LIMITS)) expect(Object.keys(METRICS)).toContain(key)
  for (const key of PANEL_METRICS) expect(metricInfo(key)?.name).toBe(key)
})

test('the line of a step leaves out what matters least, until it fits', () => {
  const metrics = {
    reward: 0.5, solved_some: 0.75, 'is_truncated/mean': 0.2, 'tokens/completion': 17, 'entropy/all/mean': 0.8, 'mismatch_kl/all/mean': 0.001,
    'optim/grad_norm': 0.4, 'perf/throughput': 1300, 'eval/short-answers/avg@4': 0.9,
  } // prettier-ignore
  const line = (width: number) =>
    stepLine({ step: 3, maxSteps: 12, metrics, rewards: [0.1, 0.5], seconds: 2, eta: 9 }, undefined, width)
  for (let width = 60; width < 160; width++) expect(textWidth(line(width))).toBeLessThanOrEqual(width)
  expect(line(80)).toBe('step  3/12 | reward 0.50 ▁█ | held-out short-answers 0.90 | truncated 20% | 2.0s')
  expect(line(20)).toBe('step  3/12 | reward 0.50 ▁█')
  expect(line(200)).toBe(line(Infinity))
  expect(line(200)).toMatch(/ \| eta 9\.0s$/)
})

test('wide characters take two columns, marks none', () => {
  expect(['abc', '日本', '𠮷', 'e\u0301', '🙂', '\x1b[31mred\x1b[39m', '▁━'].map(textWidth)).toEqual([3, 4, 2, 1, 2, 3, 2])
  expect([cut('日本語', 5), cut('日本語', 4), cut('日本語', 6), cut('abc', 2)]).toEqual(['日本…', '日…', '日本語', 'a…'])
})
