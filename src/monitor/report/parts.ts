/** Helpers for the parts of a report. */
import { heldOutEnv, mean } from '../aggregate.ts'
import type { MetricsRow } from '../metrics-writer.ts'
import { formatNumber } from '../format.ts'
import { escapeHtml } from './chart.ts'

/** The curves at the top, in this order; the others are collapsed by group. */
export const FIRST = [
  'reward', 'is_truncated/mean', 'tokens/completion', 'solved_some', 'loss/mean', 'entropy/all/mean', 'mismatch_kl/all/mean', 'ref_kl/all/mean',
  'optim/grad_norm', 'optim/lr', 'off_policy/mean', 'time/step', 'perf/throughput',
] // prettier-ignore

/** A section of the page; '' without content. */
export const section = (title: string, content: string): string => (content === '' ? '' : `<h2>${title}</h2>\n${content}`)

/** A table that scrolls where the page is too narrow. */
export function table(head: readonly string[], lines: readonly (readonly string[])[]): string {
  return `<div class="wide"><table>${tableRow(head, 'th')}${lines.map((line) => tableRow(line, 'td')).join('')}</table></div>`
}

const tableRow = (cells: readonly string[], tag: 'th' | 'td'): string =>
  `<tr>${cells.map((cell) => `<${tag}>${escapeHtml(cell)}</${tag}>`).join('')}</tr>`

/** Steps and values of a metric, without those that were not finite. */
export const values = (rows: readonly MetricsRow[], key: string): [number, number][] =>
  rows.flatMap((row) => (typeof row[key] === 'number' ? [[row.step, row[key]]] : []))

/** All keys that some row has. */
export const keysOf = (rows: readonly MetricsRow[]): string[] => [...new Set(rows.flatMap((row) => Object.keys(row)))]
/** The keys of evaluations' rewards, one for each environment. */
export const evalKeys = (rows: readonly MetricsRow[]): string[] => keysOf(rows).filter((key) => heldOutEnv(key) !== undefined)

/** The mean reward of a run's first and of its last steps: ten each, or half of all where there are fewer. */
export function rewardEnds(rows: readonly MetricsRow[]): { steps: number; text: string; last: number | null } {
  const rewards = values(rows, 'reward').map(([, reward]) => reward)
  const steps = Math.min(10, Math.ceil(rewards.length / 2))
  const [first, last] = [mean(rewards.slice(0, steps)), mean(rewards.slice(-steps))]
  return { steps, text: `${formatNumber(first)} to ${formatNumber(last)}`, last }
}
