/** report.html from the files of a run: what must be in it, and that text of a model can't become markup. */
import {
  appendFileSync,
  closeSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { chart, movingMean, ticks } from '../../../src/monitor/report/chart.ts'
import { reportHtml, writeReport } from '../../../src/monitor/report/html.ts'
import { withoutData } from '../helpers.ts'
import { canLink } from '../../windows.ts'

const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-report-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

const answer = (step: number, example_id: number, text: string, reward: number) => ({
  example_id, index: 0, env: 'e', split: 'eval', step, reward, answer: 'x<y', prompt: [{ role: 'user', content: `question ${example_id}` }],
  completion: [{ role: 'assistant', content: text }], is_truncated: false,
}) // prettier-ignore
const lines = (rows: object[]) => rows.map((row) => `${JSON.stringify(row)}\n`).join('')

test('curves, evaluations, samples before and after, config', async () => {
  mkdirSync(join(dir, 'rollouts'))
  writeFileSync(join(dir, 'config.toml'), 'model = "a&b"\n')
  const rows = Array.from({ length: 21 }, (_, step) => ({
    step, time: 1000 + step, ...(step > 0 && { reward: step / 20, 'optim/grad_norm': step === 3 ? null : 1, 'reward/my_func': 1 }),
    ...(step % 10 === 0 && { 'eval/e/avg@1': 0.25 + step / 40, 'eval/e/pass@1': 0.5, 'eval/e/is_truncated/mean': 0.5 }),
  })) // prettier-ignore
  writeFileSync(join(dir, 'metrics.jsonl'), lines(rows))
  const evil = '<script>alert("1")</script>'
  writeFileSync(join(dir, 'rollouts/step_0.jsonl'), lines([answer(0, 1, evil, 0), answer(0, 2, 'same', 1)]))
  writeFileSync(join(dir, 'rollouts/step_20.jsonl'), lines([answer(20, 1, 'the answer', 1), answer(20, 2, 'same', 1)]))
  const { html } = await reportHtml([dir])
  expect(html).not.toContain('<script')
  expect(html).toContain('&#60;script&#62;')
  expect(html).toContain('model = &#34;a&#38;b&#34;')
  expect(html).toContain('<dd>1970-01-01 00:16 UTC</dd>')
  expect(html).toContain('0.25 (step 0)</td><td>0.75 (step 20)')
  expect(html.indexOf('before: reward 0')).toBeLessThan(html.indexOf('after: reward 1'))
  expect(html).toContain('<b>assistant</b> the answer')
  // Reward and evaluation come first, what is no metric of the first row is folded away.
  const captions = [...html.matchAll(/<figcaption>([^ <]+)/g)].map(([, name]) => name)
  expect(captions.slice(0, 2)).toEqual(['reward', 'eval/e/avg@1'])
  expect(html.indexOf('<details>')).toBeLessThan(html.indexOf('reward/my_func'))
  expect(withoutData(html)).not.toMatch(/NaN|undefined|Infinity/)
  // No address is loaded, and what can be saved is in the page.
  expect(html).not.toMatch(/src=|href="(?!data:image\/(?:svg\+xml|png);base64,)/)
  // Balanced tags, by name.
  for (const tag of ['div', 'figure', 'svg', 'details', 'article', 'table', 'tr', 'td', 'main', 'dl'])
    expect([tag, html.match(new RegExp(`<${tag}[ >]`, 'g'))?.length]).toEqual([
      tag,
      html.match(new RegExp(`</${tag}>`, 'g'))?.length,
    ])
  expect(await writeReport([dir])).toMatchObject({ path: join(dir, 'report.html'), plots: join(dir, 'plots') })
})

test('roles and ids are text too; a page goes into a link, which stays one, where there are links', async () => {
  const run = join(dir, 'roles')
  mkdirSync(join(run, 'rollouts'), { recursive: true })
  writeFileSync(join(run, 'metrics.jsonl'), lines([{ step: 1, time: 1, reward: 0 }]))
  const evil = '<meta http-equiv="refresh" content="0;url=//x">'
  const row = { ...answer(1, 1, 'a', 0), example_id: evil, prompt: [{ role: evil, content: 'q' }] }
  writeFileSync(join(run, 'rollouts/step_1.jsonl'), lines([row]))
  const [target, link] = ['target.html', 'link.html'].map((name) => join(run, name))
  writeFileSync(target, '')
  if (canLink) symlinkSync(target, link)
  await writeReport([run], { out: canLink ? link : target })
  if (canLink) expect(lstatSync(link).isSymbolicLink()).toBe(true)
  const html = readFileSync(target, 'utf8')
  expect(html).toContain('<article>')
  expect(html).not.toContain(evil)
})

test("samples of another program's rows: a prompt as text, parts as content, an answer that is a number, fields that are missing", async () => {
  const run = join(dir, 'foreign')
  mkdirSync(join(run, 'rollouts'), { recursive: true })
  writeFileSync(join(run, 'metrics.jsonl'), lines([{ step: 1, time: 1, reward: 0 }]))
  const parts = [{ type: 'text', text: 'in parts' }]
  const rows = [
    { reward: 4, prompt: 'asked as text', completion: 'answered as text', answer: 42 },
    { reward: 3, prompt: [null, { role: 'user', content: parts }], completion: [{ role: 'assistant', content: { a: 1 } }] },
    { reward: 2, completion: [{ role: 'assistant', content: null, tool_calls: [null, { function: { name: 'f', arguments: { x: 1 } } }] }] },
    { reward: 1, completion: [{ content: 'nobody', tool_calls: 'none' }] },
    { prompt: 'without a reward' },
    { reward: 'high', prompt: 'a word as reward' },
  ] // prettier-ignore
  writeFileSync(join(run, 'rollouts/step_1.jsonl'), lines(rows))
  const { html } = await reportHtml([run])
  for (const text of [
    '<b>user</b> asked as text',
    '<b>assistant</b> answered as text',
    'expected: 42',
    'in parts',
    'f({',
    'nobody',
  ])
    expect(html).toContain(text)
  expect(html).not.toMatch(/\[object|undefined|a reward|as reward/)
})

test('two evaluations of many answers are put side by side at once', async () => {
  const run = join(dir, 'many')
  mkdirSync(join(run, 'rollouts'), { recursive: true })
  writeFileSync(join(run, 'metrics.jsonl'), lines([{ step: 1, time: 1, reward: 0 }]))
  const evaluation = (step: number) => lines(Array.from({ length: 60_000 }, (_, i) => answer(step, i, 'a', 0)))
  for (const step of [0, 5]) writeFileSync(join(run, `rollouts/step_${step}.jsonl`), evaluation(step))
  const begin = process.cpuUsage()
  expect((await reportHtml([run])).html).toContain('after: reward 0')
  // Each with each were 10 s.
  expect(process.cpuUsage(begin).user / 1e6).toBeLessThan(4)
})

test('evaluations of more than half a gigabyte, which no text of Node holds', async () => {
  const run = join(dir, 'large')
  mkdirSync(join(run, 'rollouts'), { recursive: true })
  writeFileSync(join(run, 'metrics.jsonl'), lines([{ step: 1, time: 1, reward: 0 }]))
  writeFileSync(join(run, 'rollouts/step_0.jsonl'), lines([answer(0, 1, '', 0), answer(0, 2, '', 1)]))
  const fd = openSync(join(run, 'rollouts/step_5.jsonl'), 'w')
  writeSync(fd, lines([answer(5, 1, 'the first', 1)]))
  // Holes, which take no room of the disk.
  for (let at = 1; at <= 33; at++) writeSync(fd, '\n', at * 2 ** 24)
  writeSync(fd, lines([answer(5, 2, 'the last', 0)]), 33 * 2 ** 24 + 1)
  closeSync(fd)
  const { html } = await reportHtml([run])
  for (const text of ['after: reward 1', '<b>assistant</b> the first', '<b>assistant</b> the last']) expect(html).toContain(text)
}, 60_000)

test('a row of many evaluations: the keys of all rows are gathered once, and not for each', async () => {
  const run = join(dir, 'evaluations')
  mkdirSync(run)
  const values = Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`eval/e${i}/avg@1`, 0.5]))
  writeFileSync(join(run, 'metrics.jsonl'), lines(Array.from({ length: 300 }, (_, step) => ({ step, time: step, ...values }))))
  const begin = process.cpuUsage()
  const { html } = await reportHtml([run])
  expect(html.includes('<td>e499</td>')).toBe(true)
  // For each evaluation anew it were 4 s.
  expect(process.cpuUsage(begin).user / 1e6).toBeLessThan(2)
}, 60_000)

test('of several runs those that differ in their seeds alone have a mean and a spread', async () => {
  const paths = [
    [1, 0.5, 1],
    [2, 0.7, 1],
    [3, 0.9, 1],
    [1, 0.1, 2],
  ].map(([seed, reward, rate], i) => {
    const run = join(dir, `seeds/run-${i}`)
    mkdirSync(run, { recursive: true })
    const args = `run_name = "run-${i}"\nseed = ${seed}\nlearning_rate = ${rate}\n`
    writeFileSync(join(run, 'config.toml'), `[trainer.args]\n${args}`)
    const row = { step: 1, time: 1, reward, ...(i > 0 && { 'eval/e/avg@1': reward }) }
    writeFileSync(join(run, 'metrics.jsonl'), lines([row]))
    return run
  })
  const { html } = await reportHtml(paths)
  expect(html).toContain('<td>run-0, run-1, run-2</td><td>0.7 ± 0.2</td><td>0.8 ± 0.141 (of 2)</td>')
  expect(html.match(/±/gu)).toHaveLength(2 + 1)
  expect((await reportHtml([paths[0], paths[3]])).html).not.toContain('±')
})

test('a run of one row, and a folder with nothing', async () => {
  const empty = join(dir, 'empty')
  mkdirSync(empty)
  expect((await reportHtml([empty])).html).toContain('No step is done yet')
  appendFileSync(join(empty, 'metrics.jsonl'), '{"step": 1, "time": 1, "reward": 0, "loss/mean": null}\n')
  // A row that somebody has edited.
  mkdirSync(join(empty, 'rollouts'))
  writeFileSync(join(empty, 'rollouts/step_1.jsonl'), '{"reward": 1, "split": "train", "env": "e", "example_id": 7}\n')
  const { html } = await reportHtml([empty])
  expect(html).toContain('e #7')
  expect(html).toContain('<svg')
  expect(withoutData(html)).not.toMatch(/NaN|undefined|Infinity/)
})

test('a control character in the name of an environment or a metric: a page, and plots that are XML', async () => {
  const run = join(dir, 'odd')
  mkdirSync(run)
  const name = 'eval/\x1b[31mred\0\ud800\uffff\u{1f600}/avg@1'
  writeFileSync(join(run, 'metrics.jsonl'), lines([{ step: 0, time: 1, [name]: 0.25 }, { step: 1, time: 2, [name]: 0.5 }])) // prettier-ignore
  await writeReport([run])
  const page = readFileSync(join(run, 'report.html'), 'utf8')
  expect(page).toContain('<figcaption>eval/\ufffd[31mred\ufffd\ufffd\ufffd\u{1f600}/avg@1 ')
})

test('charts: points stand where their values are', () => {
  expect(ticks(0, 1, 4)).toEqual([0, 0.5, 1])
  expect(ticks(0, 100, 5)).toEqual([0, 20, 40, 60, 80, 100])
  expect(ticks(-3, 7, 5)).toEqual([-2, 0, 2, 4, 6])
  expect(movingMean([[1, 1], [2, 3], [3, 8]], 2)).toEqual([[1, 1], [2, 2], [3, 5.5]]) // prettier-ignore
  // One huge value is forgotten once it is out of the window.
  expect(movingMean([[1, 1e18], [2, 3], [3, 5], [4, 7]], 2).slice(2)).toEqual([[3, 4], [4, 6]]) // prettier-ignore
  const svg = chart('c', [{ name: 'c', points: [[0, 0], [5, 1], [10, 0.5]] }]) // prettier-ignore
  const dots = [...svg.matchAll(/cx="([\d.]+)" cy="([\d.]+)"/g)].map(([, x, y]) => [Number(x), Number(y)])
  expect(dots[1][0]).toBeCloseTo((dots[0][0] + dots[2][0]) / 2)
  expect(dots[2][1]).toBeCloseTo((dots[0][1] + dots[1][1]) / 2)
  expect(dots[1][1]).toBeLessThan(dots[0][1])
  const long = chart('c', [{ name: 'c', points: Array.from({ length: 10_000 }, (_, i) => [i, Math.sin(i / 500)] as const) }]) // prettier-ignore
  expect(long.length).toBeLessThan(12_000)
  expect(chart('c', [{ name: 'c', points: [] }])).toBe('')
})
