/** Formats a report as text: tables for the terminal, and Markdown for docs/performance.md. */
import { kernelGroups, type KernelRow } from './case.ts'
import type { DecodeRow } from './decode.ts'
import type { Peaks, Rate } from './peaks.ts'
import type { BenchReport } from './run.ts'
import type { StepRow } from './step.ts'

type Row = BenchReport['rows'][number]

/** A heading, and rows of cells. The first `words` columns are text, the others numbers. */
export interface Table {
  title: string
  words: number
  head: string[]
  body: string[][]
}

const percent = (share: number | undefined): string => (share === undefined ? '' : `${(100 * share).toFixed(0)}%`)
const gib = (bytes: number): string => (bytes / 2 ** 30).toFixed(2)
/** Formats a number with three digits, without an exponent. */
export function digits(value: number): string {
  if (value === 0) return '0'
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))
  return value.toFixed(Math.min(places, 4))
}

const isKernel = (row: Row): row is KernelRow => (kernelGroups as readonly string[]).includes(row.group)

/** The tables of a report, in the order in which it was run, without empty ones. */
export function tablesOf({ rows, software }: Pick<BenchReport, 'rows' | 'software'>): Table[] {
  const kernels = kernelGroups.map((group) => kernelTable(group, rows.filter(isKernel), software))
  const steps = stepTable(rows.filter((row): row is StepRow => row.group === 'step'))
  const decode = decodeTable(rows.filter((row): row is DecodeRow => row.group === 'decode'))
  const shares = sharesTable(rows.filter((row): row is StepRow | DecodeRow => row.group === 'step' || row.group === 'decode'))
  return [...kernels, steps, decode, shares].filter(({ body }) => body.length > 0)
}

function kernelTable(group: KernelRow['group'], all: KernelRow[], software: boolean): Table {
  const rows = all.filter((row) => row.group === group)
  const counts = rows.some((row) => row.gflops > 0)
  const plain = rows.some((row) => row.timesPlain !== undefined)
  const mark = software ? '*' : ''
  const head = [
    group,
    'size',
    'of',
    'ms',
    ...(counts ? [`GFLOP/s${mark}`, 'of peak'] : []),
    `GB/s${mark}`,
    'of copy',
    ...(plain ? ['x plain'] : []),
  ]
  const body = rows.map((row) => [
    row.units ? `${row.name}, matrix units` : row.name,
    row.shape,
    row.of,
    digits(row.ms),
    ...(counts ? [row.gflops > 0 ? digits(row.gflops) : '', row.gflops > 0 ? percent(row.ofPeak) : ''] : []),
    digits(row.gbs),
    percent(row.ofCopy),
    ...(plain ? [row.timesPlain === undefined ? '' : digits(row.timesPlain)] : []),
  ])
  return { title: group, words: 3, head, body }
}

function stepTable(rows: StepRow[]): Table {
  const head = ['step', 'model', 'sequences x tokens', 's', 'tokens/s', 'MFU', 'device idle', 'peak GiB', 'process GiB']
  const words = { score: 'scoring', lora: 'LoRA step', full: 'full step' }
  const body = rows.map((row) => [
    row.matrixUnits ? `${words[row.name]}, matrix units` : words[row.name],
    row.model,
    `${row.sequences} x ${row.length}`,
    digits(row.seconds),
    digits(row.tokensPerSecond),
    percent(row.mfu),
    percent(row.idleShare),
    gib(row.peakBytes),
    gib(row.rssBytes),
  ])
  return { title: 'step', words: 3, head, body }
}

function decodeTable(rows: DecodeRow[]): Table {
  const head = ['decode', 'sequences', 'tokens/s', 'with prompts', 'ms a step', 'CPU ms', 'JavaScript ms', 'dispatches', 'MFU', 'device idle', 'peak GiB'] // prettier-ignore
  const body = rows.map((row) => [
    row.matrixUnits ? `${row.model}, matrix units` : row.model,
    String(row.sequences),
    digits(row.decodeTokensPerSecond),
    digits(row.tokensPerSecond),
    digits(row.stepMs),
    digits(row.stepCpuMs),
    digits(row.stepJavaScriptMs),
    row.dispatches.toFixed(0),
    percent(row.mfu),
    percent(row.idleShare),
    gib(row.peakBytes),
  ])
  return { title: 'decode', words: 1, head, body }
}

/** The share of each family of kernels in the time of steps. */
function sharesTable(rows: (StepRow | DecodeRow)[]): Table {
  const timed = rows.filter((row) => row.kernels)
  const sum = new Map<string, number>()
  for (const { kernels } of timed)
    for (const [family, share] of Object.entries(kernels!.byFamily)) sum.set(family, (sum.get(family) ?? 0) + share)
  const families = [...sum].toSorted(([, a], [, b]) => b - a).map(([family]) => family)
  const body = timed.map((row) => {
    const what = row.group === 'step' ? `${row.name} ${row.sequences} x ${row.length}` : `decode ${row.sequences}`
    return [what, row.model, ...families.map((family) => percent(row.kernels!.byFamily[family]))]
  })
  return { title: 'share of kernel time', words: 2, head: ['', 'model', ...families], body }
}

/** Describes a row in a few words, to be shown while others are still measured. */
export function briefly(row: Row): string {
  if (row.group === 'step') return `${digits(row.seconds)} s, ${digits(row.tokensPerSecond)} tokens/s`
  if (row.group === 'decode') return `${digits(row.stepMs)} ms a step, ${digits(row.decodeTokensPerSecond)} tokens/s`
  const { ms, gflops, ofPeak, gbs, ofCopy } = row as KernelRow
  return `${digits(ms)} ms, ` + (gflops > 0 ? `${percent(ofPeak)} of peak` : `${digits(gbs)} GB/s, ${percent(ofCopy)} of copy`)
}

/** A table as lines for a terminal: columns as wide as necessary, numbers aligned right. */
export function textOf({ words, head, body }: Table): string[] {
  const widths = head.map((cell, i) => Math.max(cell.length, ...body.map((row) => row[i].length)))
  return [head, ...body].map((row) =>
    row
      .map((cell, i) => (i < words ? cell.padEnd(widths[i]) : cell.padStart(widths[i])))
      .join('  ')
      .trimEnd(),
  )
}

function markdownOf({ words, head, body }: Table): string[] {
  const line = (cells: string[]): string => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map((_, i) => (i < words ? '---' : '---:'))), ...body.map(line)]
}

/** The peaks, one per line. */
export function peakLines({ fma, units, copy }: Peaks): string[] {
  const text = ({ timed, idle }: Rate, unit: string): string =>
    `${timed.toFixed(1)} ${unit}` + (idle === undefined ? '' : ` by the clock, ${idle.toFixed(1)} on an idle machine`)
  const shape = units && `${units.unit.m}x${units.unit.n}x${units.unit.k}`
  return [
    `multiply-add in registers  ${text(fma, 'GFLOP/s')}`,
    ...(units ? [`matrix units (${shape})`.padEnd(27) + text(units, 'GFLOP/s')] : []),
    `copy                       ${text(copy, 'GB/s')}`,
  ]
}

const softwareNote =
  '* by the processor time of the driver over the cores: what an idle machine gives. Milliseconds are by the clock.'

/** The whole report as lines for a terminal. */
export function reportLines(report: BenchReport): string[] {
  const lines = [`adapter  ${report.adapter}`, ...peakLines(report.peaks)]
  for (const table of tablesOf(report)) lines.push('', ...textOf(table))
  if (report.software && report.rows.some(isKernel)) lines.push('', softwareNote)
  for (const { case: name, why } of report.skipped) lines.push(`left out: ${name}: ${why}`)
  return lines
}

/** The whole report as Markdown, with a section for each table. */
export function reportMarkdown(report: BenchReport): string {
  const versions = Object.entries(report.versions).map(([name, version]) => `${name} ${version}`)
  const lines = [
    `Adapter: ${report.adapter}. Date: ${report.date}. Versions: ${versions.join(', ')}. Command: \`${report.command}\``,
    '',
    ...peakLines(report.peaks).map((line) => `- ${line.replace(/ {2,}/, ': ')}`),
  ]
  for (const table of tablesOf(report)) lines.push('', `### ${table.title}`, '', ...markdownOf(table))
  if (report.software && report.rows.some(isKernel)) lines.push('', `\\${softwareNote}`)
  if (report.skipped.length > 0) lines.push('', 'Left out:', '')
  for (const { case: name, why } of report.skipped) lines.push(`- ${name}: ${why}`)
  return lines.join('\n')
}

/** `page` with `tables` between its marks. @throws Error if it has no marks */
export function withTables(page: string, tables: string): string {
  const [begin, end] = ['<!-- bench -->', '<!-- /bench -->']
  const [from, to] = [page.indexOf(begin), page.indexOf(end)]
  if (from < 0 || to < from) throw new Error(`the page has no ${begin} ... ${end}`)
  return `${page.slice(0, from + begin.length)}\n${tables}\n${page.slice(to)}`
}
