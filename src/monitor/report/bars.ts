/** Horizontal bars as SVG text, in the style of chart.ts. */
import { escapeHtml, round } from './chart.ts'

export interface Bar {
  name: string
  value: number
  /** The value as it is written beside the bar. */
  text: string
  /** Which colour: the number of its series. */
  series?: number
}

const WIDTH = 560
const NAMES = 230
const TEXT = 72
const ROW = 17
const LONGEST = 40

/**
 * A bar for each value.
 * @param options.max the value of a whole bar, at which there is a line; default: the largest, without one
 * @param options.from1 ratios: bars go from 1 to the left or the right, on a logarithmic axis
 * @returns SVG text, or '' where there is no bar
 */
export function bars(label: string, list: readonly Bar[], options: { max?: number; from1?: boolean } = {}): string {
  if (list.length === 0) return ''
  const room = WIDTH - NAMES - TEXT
  const height = list.length * ROW + 6
  const place = options.from1 ? ratioPlace(list, room) : sharePlace(list, room, options.max)
  const parts = list.map(({ name, value, text, series = 0 }, i) => {
    const y = i * ROW + 4
    const [from, to] = place(value)
    const shown = name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name
    return (
      `<text x="${NAMES - 6}" y="${y + 10}" text-anchor="end">${escapeHtml(shown)}</text>` +
      `<rect class="bar s${series % 6}" x="${round(NAMES + from)}" y="${y}" width="${round(Math.max(1, to - from))}" height="${ROW - 5}"><title>${escapeHtml(`${name}: ${text}`)}</title></rect>` +
      `<text x="${round(NAMES + to + 5)}" y="${y + 10}">${escapeHtml(text)}</text>`
    )
  })
  const line = round(NAMES + (options.from1 ? place(1)[0] : 0))
  const lines = options.max === undefined ? [line] : [line, NAMES + room]
  const axis = lines.map((x) => `<line class="grid" x1="${x}" x2="${x}" y1="0" y2="${height}"/>`).join('')
  return `<svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escapeHtml(label)}">${axis}${parts.join('')}</svg>`
}

type Place = (value: number) => [from: number, to: number]

function sharePlace(list: readonly Bar[], room: number, max = list.reduce((a, { value }) => Math.max(a, value), 0)): Place {
  return (value) => [0, max > 0 ? (room * Math.min(Math.max(value, 0), max)) / max : 0]
}

function ratioPlace(list: readonly Bar[], room: number): Place {
  const logs = list.map(({ value }) => Math.log2(value)).filter(Number.isFinite)
  const low = logs.reduce((a, b) => Math.min(a, b), -1)
  const high = logs.reduce((a, b) => Math.max(a, b), 1)
  const at = (value: number) => (room * (Math.min(high, Math.max(low, Math.log2(value))) - low)) / (high - low)
  return (value) => [Math.min(at(1), at(value)), Math.max(at(1), at(value))]
}
