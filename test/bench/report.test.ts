/** The verb as a user runs it, its JSON, its tables, and docs/performance.md against the JSON that it is made from. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { digits, reportLines, reportMarkdown, tablesOf, textOf, withTables } from '../../src/bench/report.ts'
import { groupsOf, topics, type BenchReport } from '../../src/bench/run.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-bench-test-'))
afterAll(() => rmSync(folder, { recursive: true }))
const bench = (...words: string[]) =>
  spawnSync(process.execPath, [join(root, 'cli.js'), 'bench', ...words], { encoding: 'utf8', cwd: root })
/** A file with this text. */
const written = (name: string, text: string) => {
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}

describe('node cli.js bench', () => {
  const out = join(folder, 'new/report.json')
  test('prints a table, progress on stderr, and one last line of JSON that --out keeps', () => {
    const { status, stdout, stderr } = bench(
      'matmul',
      'step',
      'decode',
      '--quick',
      '--model',
      'tiny',
      '--rows',
      '1,3',
      '--tokens',
      '20',
      '--out',
      out,
    )
    expect(status, stderr).toBe(0)
    const report = JSON.parse(stdout.trimEnd().split('\n').at(-1)!) as BenchReport
    expect(report).toEqual(JSON.parse(readFileSync(out, 'utf8')))
    expect(report).toMatchObject({ bench: 'dawn-rl', skipped: [], versions: { node: process.versions.node } })
    expect(report.command).toMatch(/^node cli\.js bench matmul step decode --quick/)
    expect(report.date).toMatch(/^\d{4}-\d\d-\d\d$/)
    expect(report.peaks.fma.timed).toBeGreaterThan(0)
    const kinds = report.rows.map((row) => `${row.group} ${'name' in row ? row.name : row.sequences}`)
    expect(kinds).toEqual([...['forward', 'forward', 'dX', 'dX', 'dW', 'dW'].map((form) => `matmul ${form}`), 'step score', 'step lora', 'step full', 'decode 1', 'decode 3']) // prettier-ignore
    for (const heading of ['adapter  ', 'multiply-add in registers', 'tokens/s', 'of peak']) expect(stdout).toContain(heading)
    expect(stderr).toContain('1/6 matmul forward 1 x 128 x 128 (tiny (random weights) q, o)')
  })
  test('--table prints that report as Markdown and measures nothing', () => {
    const { status, stdout, stderr } = bench('--table', out)
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout).toContain('### matmul')
    expect(stdout).toContain('| LoRA step | tiny (random weights) | 1 x 20 |')
  })
  test.each([
    [['sampling'], /'sampling' is invalid for argument 'what'.*kernels, matmul, attention/],
    [
      ['step', '--model', 'qwen4'],
      /^--model qwen4 is neither a file or folder here nor a shape with random weights, which are tiny, /,
    ],
    [['matmul', '--rows', '4,none'], /--rows.*whole number of 1 or more/],
    [['--repeats', '0'], /--repeats.*whole number of 1 or more/],
    [['--table', 'package.json'], /--table package.json is not a report/],
    [['--table', written('null.json', 'null')], /^--table .* is not a report/],
    [['--table', written('half.json', '{"bench": "dawn-rl", "rows": []}')], /^--table .* is not a report/],
    [['--table', 'nothing.json'], /--table nothing.json cannot be read: ENOENT/],
    [['norm', '--table', 'x.json', '--quick', '--out', 'x.md'], /^bench: --table prints .* Leave out norm, --quick, --out\.$/m],
    [['decode', 'kernels', '--tokens', '64'], /^bench: --tokens is for step alone\. Leave it out, or measure step too\.$/m],
    [
      ['step', 'attention', '--rows', '4'],
      /^bench: --rows is for kernels, matmul, norm, head, sampler and decode alone\. Leave it out,/m,
    ],
  ])('%j is refused with a sentence and exit code 2', (words, sentence) => {
    const { status, stdout, stderr } = bench(...words)
    expect({ status, stdout }).toEqual({ status: 2, stdout: '' })
    expect(stderr.replaceAll(/^Warning: .*\n/gm, '')).toMatch(sentence)
  })
})

const row = {
  group: 'matmul',
  name: 'forward',
  shape: '1 x 2 x 3',
  of: 'a',
  ms: 0.0123,
  gflops: 12.34,
  gbs: 1.5,
  ofPeak: 0.25,
  ofCopy: 0.5,
  error: 0,
} as const
const report: BenchReport = {
  bench: 'dawn-rl',
  adapter: 'an adapter',
  driver: '',
  software: true,
  date: '2026-01-01',
  command: 'node cli.js bench',
  versions: { node: '24' },
  peaks: { fma: { timed: 50, idle: 100 }, copy: { timed: 10 }, units: { timed: 400, unit: { m: 16, n: 8, k: 16 } } },
  rows: [row, { ...row, units: true, timesPlain: 20 }],
  skipped: [{ case: 'step full', why: 'there is no room' }],
}

test('tables: columns aligned, empty ones left out, Markdown with the same cells', () => {
  expect(tablesOf(report).flatMap(textOf)).toEqual([
    'matmul                 size       of      ms  GFLOP/s*  of peak  GB/s*  of copy  x plain',
    'forward                1 x 2 x 3  a   0.0123      12.3      25%   1.50      50%',
    'forward, matrix units  1 x 2 x 3  a   0.0123      12.3      25%   1.50      50%     20.0',
  ])
  expect(reportLines(report)).toContain('matrix units (16x8x16)     400.0 GFLOP/s')
  expect(reportLines(report).at(-1)).toBe('left out: step full: there is no room')
  const markdown = reportMarkdown(report).split('\n')
  expect(markdown).toContain('| forward, matrix units | 1 x 2 x 3 | a | 0.0123 | 12.3 | 25% | 1.50 | 50% | 20.0 |')
  expect(markdown).toContain('- multiply-add in registers: 50.0 GFLOP/s by the clock, 100.0 on an idle machine')
})

test('numbers keep three digits', () => {
  expect([0, 0.00123, 0.5, 3.14159, 42, 1234.5].map(digits)).toEqual(['0', '0.0012', '0.500', '3.14', '42.0', '1235'])
})

test('topics: all and kernels stand for every group, in one order', () => {
  expect(groupsOf(['all'])).toEqual(groupsOf(['kernels']))
  expect(groupsOf(['sampler', 'matmul'])).toEqual(['matmul', 'sampler'])
  expect(groupsOf(['step'])).toEqual([])
  expect(groupsOf(['all']).every((group) => topics.includes(group))).toBe(true)
})

test('docs/performance.md has the tables of bench/results/bench.json', () => {
  const page = readFileSync(join(root, 'docs/performance.md'), 'utf8')
  const results = join(root, 'bench/results/bench.json')
  if (existsSync(results)) {
    const tables = reportMarkdown(JSON.parse(readFileSync(results, 'utf8')) as BenchReport)
    expect(page).toBe(withTables(page, tables))
  }
  expect(withTables('a <!-- bench -->old<!-- /bench --> b', 'new')).toBe('a <!-- bench -->\nnew\n<!-- /bench --> b')
  expect(() => withTables('none', 'new')).toThrow('<!-- bench -->')
})
