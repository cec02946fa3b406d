/** Plots of benchmarks' JSON files: of `bench --out`, and of the scripts in bench/. The kind of a row is recognised by its fields. */
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { CLI } from '../../common/commands.ts'
import { messageOf, UserError } from '../../common/errors.ts'
import { formatCount, formatPercent } from '../format.ts'
import { bars } from './bars.ts'
import { chart } from './chart.ts'
import type { Plot } from './plots.ts'

interface BenchPlots {
  /** The file's name, and what it says of machine and date. */
  title: string
  about: string
  plots: Plot[]
}

type Row = Record<string, unknown>

const number = (value: unknown): number | undefined => (typeof value === 'number' && Number.isFinite(value) ? value : undefined)
const text = (value: unknown): string => (typeof value === 'string' || typeof value === 'number' ? String(value) : '')
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])
const isRow = (value: unknown): value is Row => typeof value === 'object' && value !== null && !Array.isArray(value)

/**
 * The plots of one file.
 * @throws UserError where it cannot be read, or holds nothing that can be drawn
 */
export function benchPlots(path: string): BenchPlots {
  let data: unknown
  try {
    data = JSON.parse(readFileSync(path, 'utf8'))
  } catch (error) {
    throw new UserError(`--bench ${path} cannot be read: ${messageOf(error)}`)
  }
  const head = isRow(data) ? data : {}
  const rows = listOf(Array.isArray(data) ? data : (head.rows ?? head.results ?? head.report))
  const stem = basename(path).replace(/\.json$/, '')
  const plots = [...plotsOf(rows.filter(isRow))].flatMap((plot) =>
    plot.svg === '' ? [] : { ...plot, file: `${stem}-${plot.file}` },
  )
  if (plots.length === 0)
    throw new UserError(
      `--bench ${path} holds nothing that can be drawn: give a file written by '${CLI} bench --out FILE', or one of bench/results that has rows.`,
    )
  const about = [text(head.adapter), text(head.model), text(head.date).slice(0, 10), text(head.command)]
    .filter(Boolean)
    .join(' · ')
  return { title: basename(path), about, plots }
}

function* plotsOf(rows: readonly Row[]): Generator<Plot> {
  const by = (key: string) => Map.groupBy(rows.filter((row) => text(row[key]) !== ''), (row) => text(row[key])) // prettier-ignore
  for (const [group, own] of by('group')) {
    const shares = own.filter((row) => number(row.ofCopy) !== undefined)
    if (shares.length > 0) yield sharesOfPeak(group, shares)
    const speeds = own.filter((row) => number(row.tokensPerSecond) !== undefined)
    if (speeds.length > 0) yield tokensPerSecond(group, speeds)
  }
  for (const [peer, own] of by('peer')) yield againstPeer(peer, own)
  const served = rows.filter((row) => number(row.clients) !== undefined && number(row.tokensPerSecond) !== undefined)
  if (served.length > 0) yield tokensPerSecond('serve', served)
  const products = rows.filter((row) => text(row.form) !== '' && number(row.share) !== undefined)
  if (products.length > 0) yield sharesOfProducts(products)
  const grown = rows.filter((row) => Array.isArray(row.points))
  for (const [model, own] of Map.groupBy(grown, (row) => text(row.model))) yield memoryOf(model, own)
  const runs = rows.filter((row) => Array.isArray(row.reward))
  if (runs.length > 0) yield rewards(runs)
}

/** A kernel is limited by arithmetic or by moving bytes, whichever takes longer. */
function sharesOfPeak(group: string, rows: readonly Row[]): Plot {
  const list = rows.map((row) => {
    const [ofPeak, ofCopy] = [number(row.ofPeak) ?? 0, number(row.ofCopy) ?? 0]
    const value = Math.max(ofPeak, ofCopy)
    const units = row.units ? ', matrix units' : ''
    return {
      name: `${text(row.name)} ${text(row.shape)}${units}`,
      value,
      text: formatPercent(value),
      series: ofPeak >= ofCopy ? 0 : 1,
    }
  })
  return {
    file: group,
    title: `${group}: share of the adapter's measured peak`,
    series: ['of multiply-adds in registers', 'of a copy'],
    about: 'Each kernel compared with the peak that it comes closer to: arithmetic or memory bandwidth.',
    svg: bars(`${group}: share of peak`, list, { max: Math.max(1, ...list.map(({ value }) => value)) }),
  }
}

const counted = (value: unknown, one: string): string =>
  number(value) === undefined ? '' : `${text(value)} ${one}${value === 1 ? '' : 's'}`

function tokensPerSecond(group: string, rows: readonly Row[]): Plot {
  const models = new Set(rows.map((row) => text(row.model)))
  const list = rows.map((row) => {
    const size = counted(row.sequences, 'sequence') || counted(row.clients, 'client')
    const length = number(row.length) === undefined ? '' : `of ${text(row.length)}`
    const extra = [row.matrixUnits ? 'matrix units' : '', row.clients !== undefined && row.shared === true ? 'shared prefix' : '']
    const name = [models.size > 1 ? text(row.model) : '', text(row.name), size, length, ...extra].filter(Boolean).join(' ')
    const value = number(row.tokensPerSecond)!
    return { name, value, text: formatCount(value) }
  })
  const of = models.size === 1 ? [...models][0] : ''
  return { file: group, title: `${group}: tokens/s${of ? ` of ${of}` : ''}`, series: [], svg: bars(`${group}: tokens/s`, list) }
}

function againstPeer(peer: string, rows: readonly Row[]): Plot {
  const list = rows.flatMap((row) => {
    const value = number(row.ratio)
    return value === undefined || value <= 0
      ? []
      : [{ name: text(row.name), value, text: `${value.toFixed(2)}x`, series: value >= 1 ? 2 : 1 }]
  })
  return {
    file: peer,
    title: `speed against ${peer}`,
    series: [],
    about: 'Our speed as a multiple of theirs: to the right of the line we are faster. The axis is logarithmic.',
    svg: bars(`speed against ${peer}`, list, { from1: true }),
  }
}

function rewards(rows: readonly Row[]): Plot {
  const series = rows.map((row) => ({
    name: text(row.run) || `seed ${text(row.seed)}`,
    points: listOf(row.reward).flatMap((value, i) => (number(value) === undefined ? [] : [[i + 1, number(value)!] as const])),
  }))
  return { file: 'reward', title: 'reward', series: series.map(({ name }) => name), axis: 'step', svg: chart('reward', series) }
}

/** Rows of bench/matmul.ts. */
function sharesOfProducts(rows: readonly Row[]): Plot {
  const list = rows.map((row) => {
    const value = number(row.share)!
    return { name: [row.form, [row.rows, row.n, row.k].map(text).join(' x ')].join(' '), value, text: formatPercent(value) }
  })
  return { file: 'products', title: 'matmul: share of peak', series: [], svg: bars('matmul: share of peak', list, { max: 1 }) }
}

/** Rows of bench/memory.ts: bytes of a training step by its tokens. */
function memoryOf(model: string, rows: readonly Row[]): Plot {
  const series = rows.map((row) => ({
    name: row.checkpointing === true ? 'with gradient checkpointing' : 'without',
    points: listOf(row.points)
      .filter(isRow)
      .flatMap((point) => {
        const [tokens, bytes] = [number(point.tokens), number(point.bytes)]
        return tokens === undefined || bytes === undefined ? [] : [[tokens, bytes / 2 ** 20] as const]
      }),
  }))
  const title = `memory of a training step of ${model}, MiB`
  return { file: model, title, series: series.map(({ name }) => name), axis: 'tokens', svg: chart(title, series) }
}
