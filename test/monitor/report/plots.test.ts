/** Plots as files, of benchmarks, and of several runs over one another. */
import { appendFileSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { expect, test } from 'vitest'
import { benchPlots } from '../../../src/monitor/report/bench.ts'
import { bars } from '../../../src/monitor/report/bars.ts'
import { chart } from '../../../src/monitor/report/chart.ts'
import { reportHtml, writeReport } from '../../../src/monitor/report/html.ts'
import { picture, plotFiles, type Plot } from '../../../src/monitor/report/plots.ts'
import { openPainter } from '../../../src/monitor/report/png.ts'
import { temporaryFolder, withoutData } from '../helpers.ts'

const results = (name: string) => resolve('bench/results', `${name}.json`)
const curve = (title: string): Plot => ({
  title,
  series: ['a<b', 'c'],
  axis: 'step',
  svg: chart(title, [{ name: 'a', points: [[0, 0.1], [5, 1]] }, { name: 'c', points: [[0, 0.5]] }]), // prettier-ignore
})

/** A folder with metrics and a config, as a run leaves it. */
function run(folder: string, name: string, slope: number): string {
  const path = join(folder, name)
  mkdirSync(path, { recursive: true })
  for (let step = 1; step <= 24; step++)
    appendFileSync(
      join(path, 'metrics.jsonl'),
      `${JSON.stringify({ step, time: 1000 + step, reward: slope * step, 'eval/e/avg@1': slope })}\n`,
    )
  writeFileSync(join(path, 'config.toml'), `model = "m"\n[trainer.args]\nlearning_rate = ${slope}\nrun_name = "${name}"\n`)
  return path
}

test('a picture stands by itself: title, names, axis, its own colours, no reference to anything', () => {
  const svg = picture(curve('eval/x & y'))
  expect(svg).toMatch(/^<svg xmlns="http:\/\/www.w3.org\/2000\/svg" width="(\d+)" height="(\d+)" viewBox="0 0 \1 \2">/)
  for (const text of ['eval/x &#38; y', '>a&#60;b<', '>step<', '.s0{stroke:#', '<polyline']) expect(svg).toContain(text)
  expect(svg.match(/<svg/g)).toHaveLength(2)
  expect(svg).not.toMatch(/var\(|href|NaN|undefined/)
  // Many long names take several lines, none of them wider than the picture.
  const names = Array.from({ length: 9 }, (_, i) => `a run with a long name ${i}`)
  const rows = [...picture({ ...curve('t'), series: names }).matchAll(/<text class="n\d" x="([\d.]+)" y="([\d.]+)"/g)]
  expect(new Set(rows.map(([, , y]) => y)).size).toBeGreaterThan(2)
})

test('the numbers beside a chart are those of its lines, also where they lie close, and have room', () => {
  const beside = (...ys: number[]) =>
    [...chart('x', [{ name: 'x', points: ys.map((y, i) => [i, y] as const) }]).matchAll(/<text x="(\d+)"[^>]*text-anchor="end">([^<]*)/g)] // prettier-ignore
  const texts = (...ys: number[]) => beside(...ys).map(([, , text]) => text)
  expect(texts(0.9991, 0.9999)).toEqual(['0.9992', '0.9994', '0.9996', '0.9998'])
  expect(texts(1.2e6, 1.29e6)).toEqual(['1.2e+6', '1.25e+6'])
  expect(texts(0.1, 1)).toEqual(['0.5', '1'])
  for (const [, x, text] of beside(-1.23456e8, -1.23452e8)) expect(Number(x)).toBeGreaterThan(text.length * 6)
})

test('PNG: twice the size of the SVG, with its text; without a font there is a sentence and no picture', async () => {
  const missing = await openPainter([], false)
  expect('missing' in missing && missing.missing).toMatch(
    /no font was found .*fonts-dejavu-core|package @resvg.resvg-js is not installed/,
  )
  const painter = await openPainter()
  if ('missing' in painter) {
    // Neither font nor package on this machine: what is left is the sentence, and the SVG.
    expect((await plotFiles([curve('a')])).note).toBe(painter.missing)
    return
  }
  const { files, note } = await plotFiles([curve('Loss/a b'), curve('loss/a-b'), { ...curve('x'), file: '../../etc' }])
  expect(note).toBeUndefined()
  expect(files.map(({ name }) => name)).toEqual(['loss-a-b', 'loss-a-b-2', 'etc'])
  const [{ svg, png }] = files
  const view = new DataView(png!.buffer, png!.byteOffset)
  expect([...png!.subarray(1, 4)].map((c) => String.fromCharCode(c)).join('')).toBe('PNG')
  const [, width, height] = /width="(\d+)" height="(\d+)"/.exec(svg)!.map(Number)
  expect([view.getUint32(16), view.getUint32(20)]).toEqual([2 * width, 2 * height])
  const without = painter.paint(svg.replace(/<text[^]*?<\/text>/g, ''))
  expect(png!.length - without.length).toBeGreaterThan(1000)
})

test('bars are as long as their values, and ratios go from 1 to either side', () => {
  const rects = (svg: string) => [...svg.matchAll(/<rect class="bar s(\d)" x="([\d.]+)"[^>]* width="([\d.]+)"/g)].map((m) => m.slice(1).map(Number)) // prettier-ignore
  const list = [1, 0.5, 0.25, 0].map((value, i) => ({ name: `k${i}`, value, text: String(value), series: i }))
  const [whole, half, quarter, nothing] = rects(bars('b', list))
  expect([whole[2] / half[2], whole[2] / quarter[2], nothing[2]]).toEqual([2, 4, 1])
  const [double, same, fourth] = rects(bars('r', [2, 1, 0.25].map((value) => ({ name: 'x', value, text: '' })), { from1: true })) // prettier-ignore
  expect(double[1]).toBeCloseTo(same[1])
  expect(fourth[1] + fourth[2]).toBeCloseTo(same[1])
  expect(fourth[2] / double[2]).toBeCloseTo(2)
  expect(bars('none', [])).toBe('')
})

test('every file of bench/results that has rows of these kinds is drawn; another is refused in a sentence', () => {
  const titles = (name: string) => benchPlots(results(name)).plots.map(({ title }) => title)
  expect(titles('bench')).toContain("matmul: share of the adapter's measured peak")
  expect(titles('decode')).toEqual([expect.stringMatching(/^decode: tokens\/s of SmolLM2/)])
  expect(titles('serve')).toEqual([expect.stringMatching(/^serve: tokens\/s/)])
  expect(titles('peers')).toContain('speed against transformers')
  expect(titles('quickstart')).toEqual(['reward'])
  for (const name of ['bench', 'decode', 'serve', 'peers', 'quickstart', 'vllm', 'matmul', 'memory'])
    for (const { svg } of benchPlots(results(name)).plots) expect(svg, name).not.toMatch(/NaN|undefined|Infinity/)
  expect(() => benchPlots(results('sinks'))).toThrow(/holds nothing that can be drawn/)
  expect(() => benchPlots(results('nowhere'))).toThrow(/cannot be read/)
})

test('several runs: a line each, where they ended, where their configs differ; and benchmarks on the page', async () => {
  const folder = temporaryFolder()
  const paths = [run(folder, 'slow', 0.01), run(folder, 'fast', 0.02), run(join(folder, 'other'), 'fast', 0.03)]
  const out = join(folder, 'compare.html')
  const made = await writeReport(paths, { out, plots: join(folder, 'plots'), bench: [resolve('bench/results/decode.json')] })
  expect(made).toMatchObject({ path: out, plots: join(folder, 'plots') })
  const html = readFileSync(out, 'utf8')
  const [first] = html.split('</figure>')
  expect(first.match(/<polyline/g)).toHaveLength(3)
  for (const text of [
    '<h2>Runs</h2>',
    '<td>slow</td><td>24</td>',
    `${join('other', 'fast')}</th>`,
    '<td>trainer.args.learning_rate</td><td>0.01</td>',
    'decode.json',
  ])
    expect(html).toContain(text)
  expect(withoutData(html)).not.toMatch(/<td>trainer.args.run_name|<td>model<|NaN|undefined/)
  expect(readdirSync(join(folder, 'plots'))).toEqual(
    expect.arrayContaining(['reward.svg', 'eval-e-avg@1.svg', 'decode-decode.svg']),
  )
  const { html: alone } = await reportHtml([], [resolve('bench/results/decode.json')])
  expect(alone).toContain('<h1>Benchmarks</h1>')
  expect(alone).not.toContain('<h2>Runs')
})
