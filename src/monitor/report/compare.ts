/** Several runs on one page: how they differ, their final results, and each curve with one line for each run. */
import { basename, join } from 'node:path'
import { mean, populationStd } from '../aggregate.ts'
import { textOf } from '../files.ts'
import { formatDuration, formatNumber } from '../format.ts'
import { readMetrics, type MetricsRow } from '../metrics-writer.ts'
import { metricInfo } from '../metrics-table.ts'
import { chart, escapeHtml, movingMean } from './chart.ts'
import { evalKeys, FIRST, rewardEnds, section, table, values } from './parts.ts'
import type { Plot } from './plots.ts'
import { compareConfigs, readConfig } from '../view/config.ts'

interface ComparedRun {
  name: string
  rows: MetricsRow[]
  config: string
}

/** From this many rows on, a curve is the mean of ten steps. */
const SMOOTH_FROM = 20

/** Reads the runs' folders. Runs with the same name are told apart by the parent folder in front. */
export function readRuns(paths: readonly string[]): ComparedRun[] {
  const last = paths.map((path) => basename(path))
  return paths.map((path, i) => {
    const twice = last.filter((name) => name === last[i]).length > 1
    return {
      name: twice ? join(basename(join(path, '..')), last[i]) : last[i],
      rows: readMetrics(join(path, 'metrics.jsonl')),
      config: textOf(join(path, 'config.toml')),
    }
  })
}

/** The curves, one series for each run. Rewards of long runs are means of ten steps, since overlapping noisy lines cannot be read. */
export function comparedPlots(runs: readonly ComparedRun[]): Plot[] {
  const evals = [...new Set(runs.flatMap(({ rows }) => evalKeys(rows)))]
  const keys = [FIRST[0], ...evals, ...FIRST.slice(1)]
  return keys.flatMap((key) => {
    const smooth = key === 'reward' && runs.some(({ rows }) => rows.length > SMOOTH_FROM)
    const series = runs.map(({ name, rows }) => ({
      name,
      points: smooth ? movingMean(values(rows, key), 10) : values(rows, key),
    }))
    const info = metricInfo(key)
    const about = [info?.unit, smooth ? 'mean of ten steps' : undefined, info?.healthy].filter(Boolean).join(' · ')
    const svg = chart(key, series)
    return svg === '' ? [] : [{ title: key, series: runs.map(({ name }) => name), about, axis: 'step', svg }]
  })
}

/** The parts of the page above the curves: the result of each run, and the keys in which they differ. */
export function comparedTables(runs: readonly ComparedRun[]): string {
  const evals = [...new Set(runs.flatMap(({ rows }) => evalKeys(rows)))]
  const lines = runs.map(({ name, rows }) => {
    const [first, last] = [rows[0]?.time ?? 0, rows.at(-1)?.time ?? 0]
    const held = evals.map((key) => {
      const points = values(rows, key)
      return points.length === 0 ? '' : `${formatNumber(points[0][1])} to ${formatNumber(points.at(-1)![1])}`
    })
    const tokens = values(rows, 'progress/total_tokens').at(-1)?.[1]
    return [
      name,
      String(rows.at(-1)?.step ?? 0),
      formatDuration(last - first),
      rewardEnds(rows).text,
      ...held,
      tokens?.toLocaleString('en') ?? '',
    ]
  })
  const head = [
    'run',
    'steps',
    'time',
    'reward, first to last ten steps',
    ...evals.map((key) => key.slice('eval/'.length)),
    'tokens',
  ]
  const { keys } = compareConfigs(
    runs.map(({ name }) => name),
    runs.map(({ config }) => readConfig(config).flat),
  )
  const differ = keys.filter(({ key }) => !/(^|\.)(run_name|output_dir)$/.test(key))
  const shown = differ.map(({ key, values: own }) => [key, ...own.map((value) => (value === null ? 'not set' : String(value)))])
  return (
    section('Runs', table(head, lines)) +
    seedsTable(runs, evals) +
    section(
      'How their configs differ',
      shown.length === 0 ? '<p>They do not differ.</p>' : table(['key', ...runs.map(({ name }) => name)], shown),
    )
  )
}

/** Runs that differ only in seeds: mean and standard deviation of their results, to judge whether another config's result really differs. */
function seedsTable(runs: readonly ComparedRun[], evals: readonly string[]): string {
  const key = ({ config }: ComparedRun) =>
    JSON.stringify(Object.entries(readConfig(config).flat).filter(([name]) => !/(^|\.)(seed|run_name|output_dir)$/.test(name)))
  const known = runs.filter(({ config }) => config !== '')
  const groups = [...Map.groupBy(known, key).values()].filter((group) => group.length > 1)
  if (groups.length === 0) return ''
  const spread = (ends: (number | null | undefined)[]): string => {
    const there = ends.filter((end) => typeof end === 'number')
    if (there.length < 2) return ''
    const std = populationStd(there)! * Math.sqrt(there.length / (there.length - 1))
    return `${formatNumber(mean(there))} ± ${formatNumber(std)}${there.length < ends.length ? ` (of ${there.length})` : ''}`
  }
  const lines = groups.map((group) => [
    group.map(({ name }) => name).join(', '),
    spread(group.map(({ rows }) => rewardEnds(rows).last)),
    ...evals.map((held) => spread(group.map(({ rows }) => values(rows, held).at(-1)?.[1]))),
  ])
  const head = [
    'runs that differ only in their seeds',
    'reward, last ten steps',
    ...evals.map((held) => held.slice('eval/'.length)),
  ]
  return section('Over seeds: mean ± standard deviation', table(head, lines))
}

export const compareTitle = (runs: readonly ComparedRun[]): string => escapeHtml(runs.map(({ name }) => name).join(', '))
