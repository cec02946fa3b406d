/** What the page computes: curves, spans of time, trees, texts, and its colours. */
import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import * as format from '../../src/monitor/view/page/format.js'
import { decades, firstKeys, joined, lineOf, roomy, smoothed } from '../../src/monitor/view/page/series.js'
import { concurrency, lanesOf, totals, union, widest } from '../../src/monitor/view/page/spans.js'
import { visible } from '../../src/monitor/view/page/text.js'
import { placesOf } from '../../src/monitor/view/page/turns.js'
import type { TimelineSpan, ViewTurn } from '../../src/monitor/view/types.ts'
import { seed, seedWords } from '../seed.ts'

describe('curves', () => {
  const answer = {
    keys: [],
    rows: 5,
    steps: [0, 1, 2, 3, 4],
    series: {
      reward: [null, 0.1, 0.2, null, 0.4],
      time: [100, 110, 120, 130, 140],
      'progress/total_tokens': [null, 50, 100, 150, 200],
    },
  }

  test('leave out what is missing, along each axis', () => {
    expect(lineOf(answer, 'reward', 'step')).toEqual({ xs: [1, 2, 4], ys: [0.1, 0.2, 0.4], steps: [1, 2, 4] })
    expect(lineOf(answer, 'reward', 'time').xs).toEqual([10, 20, 40])
    expect(lineOf(answer, 'reward', 'tokens').xs).toEqual([50, 100, 200])
    expect(lineOf(answer, 'none', 'step')).toEqual({ xs: [], ys: [], steps: [] })
  })

  test('of several runs stand over one axis', () => {
    const two = joined([{ xs: [1, 3], ys: [10, 30] }, { xs: [2, 3], ys: [20, 31] }]) // prettier-ignore
    expect(two).toEqual([[1, 2, 3], [10, undefined, 30], [undefined, 20, 31]]) // prettier-ignore
  })

  test('smoothing keeps a constant, and its beginning is not pulled to 0', () => {
    expect(smoothed([3, 3, 3, 3], 0.9)).toEqual([3, 3, 3, 3].map((x) => expect.closeTo(x, 12)))
    // The definition: weights w^(n-i), normalised.
    const random = new Random(seed)
    const ys = Array.from({ length: 20 }, () => random.next())
    const w = 0.7
    const expected = ys.map((_, n) => {
      const weights = ys.slice(0, n + 1).map((_y, i) => w ** (n - i))
      return weights.reduce((sum, weight, i) => sum + weight * ys[i], 0) / weights.reduce((a, b) => a + b, 0)
    })
    expect(smoothed(ys, w), seedWords).toEqual(expected.map((x) => expect.closeTo(x, 9)))
    expect(smoothed(ys, 0)).toBe(ys)
  })

  test('stand on axes that are never without a length', () => {
    expect(roomy(0.2, 1)).toEqual([expect.closeTo(0.152, 9), expect.closeTo(1.048, 9)])
    expect(roomy(0.01, 1)[0]).toBe(0)
    expect([roomy(null, null), roomy(0, 0), roomy(400, 400.00000000000006)]).toEqual([[0, 1], [-0.05, 1], [expect.closeTo(200, 6), expect.closeTo(600, 6)]]) // prettier-ignore
    expect([decades(0.02, 30), decades(400, 400.00000000000006), decades(100, 1000), decades(null, null)]).toEqual([
      [0.01, 100], [100, 1000], [100, 1000], [0.1, 1],
    ]) // prettier-ignore
  })

  test('have numbers beside them that tell neighbours apart', () => {
    expect(format.marks([0.9998, 1, 1.0002])).toEqual(['0.9998', '1', '1.0002'])
    expect(format.marks([12_340, 12_350, 12_360])).toEqual(['12.34k', '12.35k', '12.36k'])
    expect(format.marks([1e6, 1.5e6])).toEqual(['1M', '1.5M'])
    expect(format.marks([1e-5, 1.25e-5, 1.5e-5])).toEqual(['1e\u22125', '1.25e\u22125', '1.5e\u22125'])
    expect(format.marks([-0.5, 0, 0.5])).toEqual(['\u22120.5', '0', '0.5'])
    expect([format.marks([null, 0.01, null, 0.1]), format.marks([5]), format.marks([])]).toEqual([['', '0.01', '', '0.1'], ['5'], []]) // prettier-ignore
  })

  test('begin with what one looks at: the reward of a run, the loss where there is none', () => {
    expect(firstKeys(['loss/mean', 'optim/grad_norm', 'reward', 'eval/a/avg@4', 'x'])).toEqual([
      'reward',
      'eval/a/avg@4',
      'optim/grad_norm',
    ])
    expect(firstKeys(['optim/grad_norm', 'loss/mean'])).toEqual(['loss/mean', 'optim/grad_norm'])
  })
})

describe('spans', () => {
  const random = new Random(seed + 1)
  const spans: TimelineSpan[] = Array.from({ length: 200 }, () => {
    const start = random.next() * 10
    return { track: 'engine', name: 'generate', start, end: start + random.next(), step: 1 }
  })

  test('in lanes do not overlap, and take no more lanes than run at once', () => {
    const lanes = lanesOf(spans, 1000)
    expect(lanes.flat().length).toBe(spans.length)
    for (const lane of lanes)
      for (let i = 1; i < lane.length; i++) expect(lane[i].start).toBeGreaterThanOrEqual(lane[i - 1].end - 1e-9)
    expect(lanes.length, seedWords).toBe(widest(spans))
    expect(lanesOf(spans, 3).length).toBe(3)
  })

  test('are counted at each time, and their time once', () => {
    const points = concurrency(spans)
    expect(points.at(-1)!.n).toBe(0)
    const at = (t: number) => spans.filter(({ start, end }) => start <= t && t < end).length
    for (const { t, n } of points) expect(n, seedWords).toBe(at(t))
    const grid = Array.from({ length: 40_000 }, (_, i) => (i / 40_000) * 12)
    const covered = (grid.filter((t) => at(t) > 0).length / grid.length) * 12
    expect(union(spans), seedWords).toBeCloseTo(covered, 1)
    expect(union([])).toBe(0)
  })

  test('say who was busy and who waited', () => {
    const span = (track: string, name: string, start: number, end: number) => ({ track, name, start, end, step: 1 })
    const isWait = ({ name }: TimelineSpan) => name.startsWith('wait')
    const { length, tracks } = totals([span('engine', 'generate', 0, 4), span('trainer', 'wait_for_batch', 0, 3), span('trainer', 'gradients', 3, 5), span('trainer', 'optimizer', 4, 6)], isWait, ['trainer']) // prettier-ignore
    expect(length).toBe(6)
    expect(tracks).toEqual([{ track: 'trainer', busy: 3, waits: [{ name: 'wait_for_batch', time: 3 }] }, { track: 'engine', busy: 4, waits: [] }]) // prettier-ignore
  })
})

test('turns: each stands behind the one it goes on with, and a second one that does on a line of its own', () => {
  const turn = (index: number, parent: number | null): ViewTurn => ({ index, parent, branch: parent === null, first: 0, sampledFirst: 0, end: 0, logprob: null }) // prettier-ignore
  const places = placesOf([turn(0, null), turn(1, 0), turn(2, null), turn(3, 2), turn(4, 0)]).map(
    ({ turn: { index }, column, line }) => [index, column, line],
  )
  expect(places).toEqual([[0, 0, 0], [1, 1, 0], [2, 2, 1], [3, 3, 1], [4, 1, 2]]) // prettier-ignore
})

describe('texts', () => {
  test('numbers are short and keep their sign', () => {
    const shown = [0, 1, 0.81234567, -0.25, 1234567, 1.5e-7, -2e12, Infinity, null, undefined, NaN].map((x) => format.num(x))
    expect(shown).toEqual([
      '0',
      '1',
      '0.8123',
      '\u22120.25',
      '1,234,567',
      '1.5e\u22127',
      '\u22122e12',
      '\u221e',
      '\u2013',
      '\u2013',
      '\u2013',
    ])
    expect([0.5, -0.5, 1e-16, null].map((x) => format.signed(x))).toEqual(['+0.5', '\u22120.5', '0', '\u2013'])
    expect([0.5, 0.001234, 1].map(format.percent)).toEqual(['50%', '0.12%', '100%'])
    expect([2e-5, 0.25, 61, 605, 7300, 900_000].map(format.duration)).toEqual([
      '20 \u00b5s',
      '250 ms',
      '61 s',
      '10 min',
      '2 h 1 min',
      '10 days',
    ])
  })

  test('what cannot be seen is made visible', () => {
    expect(visible('a\nb\u0000\u202e\ufeff')).toBe('a\u21b5\nb\u2400\u27e8202e\u27e9\u27e8feff\u27e9')
    const family = 'caf\u00e9 \u05e9 \u{1f468}\u200d\u{1f467}'
    expect(visible(`${family}\u200d`)).toBe(`${family}\u27e8200d\u27e9`)
  })
})

/** Light of each channel as each kind of colour blindness sees it: matrices of Machado, Oliveira and Fernandes (2009), at full severity. */
const SIGHTS: Record<string, number[]> = {
  'all colours': [1, 0, 0, 0, 1, 0, 0, 0, 1],
  protanopia: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  deuteranopia: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  tritanopia: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
}

describe('the colours of runs', () => {
  const css = readFileSync(new URL('../../src/monitor/view/page/base.css', import.meta.url), 'utf8')
  const found = [...css.matchAll(/--run-\d: #(..)(..)(..);/g)].map(([, ...hex]) => hex.map((x) => linear(parseInt(x, 16) / 255)))

  test.for([
    { scheme: 'light', colours: found.slice(0, 6), ground: [1, 1, 1] },
    { scheme: 'dark', colours: found.slice(6), ground: [0x1b, 0x1f, 0x23].map((x) => linear(x / 255)) },
  ])('$scheme: apart to every sight, and seen on their ground', ({ colours, ground }) => {
    expect(colours.length).toBe(6)
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      const seen = colours.map((colour) =>
        oklab([0, 3, 6].map((row) => colour.reduce((sum, x, i) => sum + matrix[row + i] * x, 0))),
      )
      const least = Math.min(...seen.flatMap((a, i) => seen.slice(i + 1).map((b) => Math.hypot(...a.map((x, k) => x - b[k])))))
      // 0.02 is what one just sees side by side; lines that cross need several times that.
      expect(least, sight).toBeGreaterThan(0.13)
    }
    const light = ([r, g, b]: number[]) => 0.2126 * r + 0.7152 * g + 0.0722 * b
    for (const colour of colours) {
      const [low, high] = [light(colour), light(ground)].toSorted((a, b) => a - b)
      expect((high + 0.05) / (low + 0.05)).toBeGreaterThan(3)
    }
  })
})

function linear(x: number): number {
  return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4
}

/** Linear sRGB to OKLab, in which distances are as they are seen. */
function oklab([r, g, b]: number[]): number[] {
  const [l, m, s] = [
    0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b, 0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
    0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
  ].map((x) => Math.cbrt(Math.max(0, x))) // prettier-ignore
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s, 1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ] // prettier-ignore
}
