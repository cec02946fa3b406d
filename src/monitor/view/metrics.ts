/** metrics.jsonl as columns, as charts need them, in a tenth of the memory of row objects. */
import { mean } from '../aggregate.ts'
import { LIMITS, type Limits } from '../health.ts'
import { metricInfo, METRICS } from '../metrics-table.ts'
import { GrowingFile, parseRow } from './lines.ts'
import type { EvalRow, GlossaryEntry, MetricsAnswer, RunSummary } from './types.ts'

/** The rows of a file by step, ascending; rows with the same step are merged (an evaluation may be written after its step). */
export class MetricsTable extends GrowingFile {
  /** Number of lines that were rows. */
  rows = 0
  steps: number[] = []
  /** Columns by key; shorter than `steps` where the last rows lack the key. */
  readonly columns = new Map<string, (number | null)[]>()

  get cells(): number {
    return this.columns.size * this.steps.length
  }

  protected reset(): void {
    this.rows = 0
    this.steps = []
    this.columns.clear()
  }

  protected take(line: Buffer | null): void {
    const row = parseRow<Record<string, unknown>>(line)
    if (!row || typeof row.step !== 'number' || !Number.isInteger(row.step)) return
    this.rows++
    const at = this.#place(row.step)
    for (const [key, value] of Object.entries(row)) {
      if (key === 'step' || (typeof value !== 'number' && value !== null)) continue
      let column = this.columns.get(key)
      if (!column) this.columns.set(key, (column = []))
      while (column.length < at) column.push(null)
      column[at] = value ?? column[at] ?? null
    }
  }

  value(key: string, at: number): number | null {
    return this.columns.get(key)?.[at] ?? null
  }

  /** The index of a step, which is nearly always the last. */
  #place(step: number): number {
    const last = this.steps.at(-1)
    if (last === undefined || step > last) return this.steps.push(step) - 1
    const at = this.steps.findIndex((other) => other >= step)
    if (this.steps[at] === step) return at
    this.steps.splice(at, 0, step)
    for (const column of this.columns.values()) if (column.length > at) column.splice(at, 0, null)
    return at
  }

  /** Columns of the given keys from a step on; thinned out to about `points` rows. */
  answer(keys: readonly string[], from: number, points?: number): MetricsAnswer {
    const begin = this.steps.findIndex((step) => step >= from)
    const range = begin < 0 ? [] : Array.from({ length: this.steps.length - begin }, (_, i) => begin + i)
    const chosen = points !== undefined && range.length > points ? thinned(this, keys, range, points) : range
    const series = Object.fromEntries(keys.map((key) => [key, chosen.map((at) => this.value(key, at))]))
    return { keys: [...this.columns.keys()], steps: chosen.map((at) => this.steps[at]), series, rows: this.rows }
  }

  /** A summary of the rewards. */
  reward(): RunSummary['reward'] {
    const rewards = (this.columns.get('reward') ?? []).filter((value) => value !== null)
    if (rewards.length === 0) return null
    const parts = Math.min(40, rewards.length)
    const bound = (i: number): number => Math.round((i * rewards.length) / parts)
    const sparkline = Array.from({ length: parts }, (_, i) => mean(rewards.slice(bound(i), bound(i + 1))))
    const best = rewards.reduce((a, b) => Math.max(a, b))
    return { first: rewards[0], last: rewards.at(-1)!, best, points: sparkline }
  }

  /** The rows with an evaluation. Searched by column, as most cells are empty. */
  evalRows(): EvalRow[] {
    const rows: EvalRow[] = []
    for (const [key, column] of this.columns) {
      if (!key.startsWith('eval/')) continue
      column.forEach((value, at) => {
        if (value !== null) (rows[at] ??= { step: this.steps[at], time: this.value('time', at) })[key] = value
      })
    }
    return rows.filter(Boolean)
  }
}

/**
 * Thins out rows while keeping the shape of all series: keeps the first and last row and, in each bucket, the rows with the smallest and the largest
 * value of each series. With more series there are fewer buckets, so the answer always has about `points` rows.
 */
function thinned(table: MetricsTable, keys: readonly string[], range: number[], points: number): number[] {
  const buckets = Math.max(1, Math.floor(points / (2 * Math.max(1, keys.length))))
  const kept = new Set([range[0], range.at(-1)!])
  for (let b = 0; b < buckets; b++) {
    const [begin, end] = [b, b + 1].map((i) => Math.round((i * range.length) / buckets))
    for (const key of keys) {
      let [low, high] = [-1, -1]
      for (let i = begin; i < end; i++) {
        const value = table.value(key, range[i])
        if (value === null) continue
        if (low < 0 || value < table.value(key, range[low])!) low = i
        if (high < 0 || value > table.value(key, range[high])!) high = i
      }
      if (low >= 0) kept.add(range[low]).add(range[high])
    }
  }
  return [...kept].toSorted((a, b) => a - b)
}

/** Descriptions of the given keys, or of the whole table. Users' own keys have an entry too. */
export function glossary(keys: readonly string[] = Object.keys(METRICS)): Record<string, GlossaryEntry> {
  return Object.fromEntries(keys.map((key) => [key, entryOf(key)]))
}

function entryOf(key: string): GlossaryEntry {
  const info = metricInfo(key)
  if (key === 'time')
    return { label: 'time', unit: 's', help: 'when the row was written, in seconds since 1970', group: 'Progress' }
  if (!info) return { label: key, unit: '', help: 'a metric of the environment or the loss', group: 'Own' }
  const { formula, unit, healthy, group } = info
  return { label: key.replace(/\/mean$/, ''), unit, help: formula, healthy, group, range: rangeOf(info.name, healthy) }
}

/** The bounds of health.ts, or those in the words: 'under 0.1', 'above 0.3', '0'. */
function rangeOf(name: string, words: string): GlossaryEntry['range'] {
  const limits: Limits | undefined = Object.hasOwn(LIMITS, name) ? LIMITS[name as keyof typeof LIMITS] : undefined
  const first = /^(under|above) (\d+(?:\.\d+)?)/.exec(words)
  const min = limits?.low ?? (first?.[1] === 'above' ? Number(first[2]) : undefined)
  const max = limits?.high ?? (first?.[1] === 'under' ? Number(first[2]) : /^0(?:$|,| or few)/.test(words) ? 0 : undefined)
  return min === undefined && max === undefined
    ? undefined
    : { ...(min !== undefined && { min }), ...(max !== undefined && { max }) }
}
