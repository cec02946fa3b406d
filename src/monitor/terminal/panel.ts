/** The panel of a run in a terminal: a few lines, as a pure function of its state. Every line is at most `width` columns wide. */
import type { Metrics } from '../../common/types.ts'
import { formatBytes, formatCount, formatDuration, formatNumber, formatPercent, sparkline } from '../format.ts'
import { healthOf, type Health } from '../health.ts'
import { cut, textWidth } from './text-width.ts'
import { plain, type Paint } from './step-line.ts'

export interface PanelState {
  /** Supervised training: nothing is sampled. */
  supervised?: boolean
  /** The last finished step; 0 before the first. */
  step: number
  maxSteps: number
  /** Metrics of that step. */
  metrics: Metrics
  /** Each metric's values by step, the newest last. */
  history: ReadonlyMap<string, readonly (number | null)[]>
  /** Held-out rewards by environment: the first and the newest evaluation. */
  heldOut: ReadonlyMap<string, { first: number | null; last: number | null }>
  /** The current waits, oldest first. */
  waits: readonly string[]
  /** Seconds since this process began, and to the end of the run where that is known. */
  elapsed: number
  left?: number
  /** Bytes of GPU buffers, and of the process. */
  gpuBytes?: number
  processBytes?: number
  /** The line of keys; '' where keys are not read. */
  keys: string
}

interface Cell {
  label: string
  key: string
  text: (value: number | null) => string
  /** The healthy range in health.ts is for sampling and does not apply here. */
  anyRange?: true
}

const share = (value: number | null) => formatPercent(value)
const rate = (value: number | null) => `${formatCount(value)} tok/s`
/** Two cells a line if there is room: on the left what is learned, on the right what may go wrong. */
const CELLS: readonly (readonly [Cell, Cell])[] = [
  [{ label: 'reward', key: 'reward', text: (v) => (v !== null && Math.abs(v) < 1000 ? v.toFixed(3) : formatNumber(v)) }, { label: 'mixed', key: 'solved_some', text: share }],
  [{ label: 'entropy', key: 'entropy/all/mean', text: formatNumber }, { label: 'truncated', key: 'is_truncated/mean', text: share }],
  [{ label: 'kl', key: 'mismatch_kl/all/mean', text: formatNumber }, { label: 'gradient', key: 'optim/grad_norm', text: formatNumber }],
  [{ label: 'length', key: 'tokens/completion', text: (v) => `${formatCount(v)} tok` }, { label: 'failed', key: 'has_error/mean', text: share }],
  [{ label: 'sampling', key: 'perf/generation_throughput', text: rate }, { label: 'training', key: 'perf/throughput', text: rate }],
] // prettier-ignore

/** The same for supervised training, which has no rollouts. */
const SUPERVISED_CELLS: readonly (readonly [Cell, Cell])[] = [
  [{ label: 'loss', key: 'loss/mean', text: formatNumber }, { label: 'gradient', key: 'optim/grad_norm', text: formatNumber }],
  [{ label: 'entropy', key: 'entropy/all/mean', text: formatNumber, anyRange: true }, { label: 'training', key: 'perf/throughput', text: rate }],
] // prettier-ignore

/** Metrics that the panel shows, which `history` must contain. */
export const PANEL_METRICS: readonly string[] = [
  ...new Set([...CELLS, ...SUPERVISED_CELLS].flatMap((cells) => cells.map(({ key }) => key))),
]

const LABEL = 11
const VALUE = 11
/** The greatest width: beyond it nothing becomes easier to read. */
const WIDEST = 120
const TWO_COLUMNS = 64
const SPARK = 40
const LEAST_BAR = 8

/** The most rows of a panel of this width. */
export const panelHeight = (width: number): number => (width < TWO_COLUMNS ? 2 * CELLS.length : CELLS.length) + 8

/** The lines of the panel, top to bottom. */
export function panelLines(state: PanelState, width: number, paint: Paint = plain): string[] {
  const wide = Math.min(width, WIDEST)
  const { heldOut, waits, keys } = state
  const lines = [paint('dim', '─'.repeat(wide)), header(state, wide, paint), ...grid(state, wide, paint)]
  const row = (label: string, text: string) => `${paint('dim', label.padEnd(LABEL))}${cut(text, wide - LABEL)}`
  if (heldOut.size > 0) lines.push(row('held-out', [...heldOut].map(([env, e]) => `${env} ${change(e)}`).join(', ')))
  if (!state.supervised) lines.push(row('waiting', waiting(state.metrics)))
  lines.push(row('memory', memory(state)))
  // Always two lines, so that the height does not change with each wait.
  lines.push(row('now', waits[0] ?? ''), row('', waits.slice(1).join(' | ')))
  if (keys) lines.push(paint('dim', cut(keys, wide)))
  return lines.map((line) => line.trimEnd())
}

function header({ step, maxSteps, elapsed, left }: PanelState, width: number, paint: Paint): string {
  const before = `step ${step}/${maxSteps} `.padEnd(LABEL)
  const times = [formatPercent(maxSteps > 0 ? step / maxSteps : 0), whole(Math.floor(elapsed))]
  if (left !== undefined) times.push(`${whole(Math.ceil(left))} left`)
  const bar = (text: string) => width - before.length - textWidth(text)
  // The elapsed time is left out first.
  const after = [times, times.toSpliced(1, 1), []]
    .map((some) => some.map((text) => `  ${text}`).join(''))
    .find((text) => bar(text) >= LEAST_BAR)
  const room = Math.max(0, bar(after ?? ''))
  const filled = Math.min(room, Math.round((room * step) / Math.max(1, maxSteps)))
  return `${paint('bold', before)}${paint('cyan', '━'.repeat(filled))}${paint('dim', '─'.repeat(room - filled))}${after ?? ''}`
}

const whole = (seconds: number) => formatDuration(seconds).replace('.0s', 's')

function grid(state: PanelState, width: number, paint: Paint): string[] {
  const { metrics } = state
  const columns = width < TWO_COLUMNS ? 1 : 2
  const gap = 2
  const size = columns === 2 ? Math.floor((width - gap) / 2) : width
  const cell = (c: Cell) => cellText(c, state, size, paint)
  return (state.supervised ? SUPERVISED_CELLS : CELLS).flatMap(([left, right]) => {
    const shown = [left, right].filter(({ key }) => metrics[key] !== undefined)
    if (shown.length === 0) return []
    if (columns === 1) return shown.map(cell)
    const text = [left, right].map((c) => (metrics[c.key] === undefined ? ' '.repeat(size) : cell(c)))
    return [text.join(' '.repeat(gap))]
  })
}

/** Exactly `width` columns: name, value with its health, and sparkline. */
function cellText({ label, key, text, anyRange }: Cell, { metrics, history }: PanelState, width: number, paint: Paint): string {
  const value = metrics[key] ?? null
  const values = history.get(key) ?? []
  const health = anyRange ? 'none' : healthOf(key, value, values.slice(0, -1))
  const mark = MARKS[health]
  const said = cut(text(value), VALUE)
  const first = key === 'reward' || key === 'loss/mean'
  const shown = ' '.repeat(VALUE - textWidth(said)) + coloured(health, first, said, paint)
  const room = Math.min(SPARK, width - LABEL - VALUE - 4)
  const line = room > 2 ? sparkline(values, room) : ''
  const rest = ' '.repeat(Math.max(0, width - LABEL - VALUE - 4 - line.length))
  return `${paint('dim', label.padEnd(LABEL))}${shown} ${coloured(health, false, mark.padEnd(2), paint)} ${paint(first ? 'cyan' : 'dim', line)}${rest}`
}

/** Marks beside the colour, for readers who cannot see colours. */
const MARKS: Record<Health, string> = { none: '', good: '', watch: '!', bad: '!!' }

function coloured(health: Health, bold: boolean, text: string, paint: Paint): string {
  const style = ({ none: undefined, good: 'green', watch: 'yellow', bad: 'red' } as const)[health]
  return style ? paint(style, text) : bold ? paint('bold', text) : text
}

function change({ first, last }: { first: number | null; last: number | null }): string {
  const [from, to] = [first, last].map((value) => (value === null ? 'n/a' : value.toFixed(2)))
  return first === last ? to : `${from} -> ${to}`
}

/** How long trainer and sampler were idle in the last step. */
function waiting(metrics: Metrics): string {
  const [step, trainer, sampler] = ['time/step', 'time/wait_for_batch', 'time/wait_for_trainer'].map((key) => metrics[key])
  if (!step || typeof trainer !== 'number') return 'no step is done yet'
  const part = (seconds: number) => `${formatDuration(seconds)} (${formatPercent(Math.min(1, seconds / step))})`
  const said = [`trainer for answers ${part(trainer)}`]
  if (typeof sampler === 'number') said.push(`sampler for the trainer ${part(sampler)}`)
  return said.join(', ')
}

function memory({ gpuBytes, processBytes, metrics }: PanelState): string {
  const said: string[] = []
  const peak = metrics['perf/peak_memory']
  const most = typeof peak === 'number' ? ` (${formatBytes(peak * 2 ** 30)} at most)` : ''
  if (gpuBytes !== undefined) said.push(`GPU ${formatBytes(gpuBytes)}${most}`)
  if (processBytes !== undefined) said.push(`process ${formatBytes(processBytes)}`)
  return said.join(', ')
}
