/** Line charts as SVG text: no script, colours from the page, values as tooltips. */
import { formatNumber } from '../format.ts'

export interface Series {
  name: string
  /** Step and value, ascending in step, without values that were not finite. */
  points: readonly (readonly [number, number])[]
}

const WIDTH = 420
const HEIGHT = 170
/** The least width for the numbers beside the chart, and the approximate width of one character. */
const LEFT = 52
const SIGN = 6.4
const RIGHT = 10
const TOP = 10
const BOTTOM = 22
/** The most points of a line; longer series are averaged. */
const MOST = 400

/** Characters that XML cannot hold, not even escaped: an SVG with one of them is refused as a whole. */
// oxlint-disable-next-line no-control-regex
const NOT_XML = /[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g

/** Escapes text for HTML and SVG. */
export function escapeHtml(text: string): string {
  const clean = text.toWellFormed().replace(NOT_XML, '\ufffd')
  return clean.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`)
}

/** The mean of the last `width` values at each point. */
export function movingMean(points: Series['points'], width: number): [number, number][] {
  // Each sum anew: in a running one, a huge value would leave its rounding error behind.
  return points.map(([x], i) => {
    const part = points.slice(Math.max(0, i + 1 - width), i + 1)
    return [x, part.reduce((sum, [, y]) => sum + y, 0) / part.length]
  })
}

/** About `count` round numbers in a range, 1, 2 or 5 times a power of ten apart. */
export function ticks(low: number, high: number, count: number): number[] {
  const rough = (high - low) / count
  if (!(rough > 0)) return [low]
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999)!
  const first = Math.ceil(low / step - 1e-9)
  const last = Math.floor(high / step + 1e-9)
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)))
}

/** The text of a round number beside an axis: three digits where these are exact, else all, since close neighbours would look the same. */
function markText(value: number): string {
  const short = formatNumber(value)
  if (Number(short) === value) return short
  const size = Math.abs(value)
  return size < 1e-4 || size >= 1e6 ? value.toExponential() : String(value)
}

/**
 * A chart over steps. A series of up to 60 points has its points drawn; with `smooth`, the line is the mean of the last ten values, and
 * the values themselves are pale.
 * @returns SVG text, or '' without points
 */
export function chart(label: string, series: readonly Series[], smooth = false): string {
  const all = series.flatMap(({ points }) => points)
  if (all.length === 0) return ''
  const xs = all.map(([x]) => x)
  const ys = all.map(([, y]) => y)
  const [x0, x1] = widened(least(xs), most(xs), 1)
  const [y0, y1] = widened(least(ys), most(ys), Math.abs(ys[0]) || 1)
  const marks = ticks(y0, y1, 4).map((y) => [y, markText(y)] as const)
  const left = marks.reduce((room, [, text]) => Math.max(room, Math.ceil(text.length * SIGN) + 8), LEFT)
  const px = (x: number) => round(left + ((x - x0) / (x1 - x0)) * (WIDTH - left - RIGHT))
  const py = (y: number) => round(HEIGHT - BOTTOM - ((y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM))
  const parts = [
    ...marks.map(
      ([y, text]) =>
        `<line class="grid" x1="${left}" x2="${WIDTH - RIGHT}" y1="${py(y)}" y2="${py(y)}"/><text x="${left - 6}" y="${py(y) + 4}" text-anchor="end">${text}</text>`,
    ),
    ...ticks(x0, x1, 5)
      .filter(Number.isInteger)
      .map((x) => `<text x="${px(x)}" y="${HEIGHT - 6}" text-anchor="middle">${x}</text>`),
  ]
  series.forEach(({ name, points }, i) => {
    const shown = thinned(points)
    const line = (list: Series['points'], extra: string) =>
      `<polyline class="line s${i % 6}${extra}" points="${list.map(([x, y]) => `${px(x)},${py(y)}`).join(' ')}"/>`
    const curve = smooth && shown.length > 10 ? movingMean(shown, 10) : undefined
    parts.push(line(shown, curve ? ' pale' : ''))
    if (curve) parts.push(line(curve, ''))
    if (points.length <= 60) {
      for (const [x, y] of points)
        parts.push(
          `<circle class="dot s${i % 6}" cx="${px(x)}" cy="${py(y)}" r="2.5"><title>${escapeHtml(`${name}, step ${x}: ${formatNumber(y)}`)}</title></circle>`,
        )
    }
  })
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escapeHtml(label)}">${parts.join('')}</svg>`
}

/** Averages over parts of equal length, where there are too many points. */
function thinned(points: Series['points']): Series['points'] {
  if (points.length <= MOST) return points
  return Array.from({ length: MOST }, (_, i) => {
    const part = points.slice(Math.floor((i * points.length) / MOST), Math.floor(((i + 1) * points.length) / MOST))
    const mean = (at: 0 | 1) => part.reduce((sum, point) => sum + point[at], 0) / part.length
    return [mean(0), mean(1)] as const
  })
}

const least = (values: readonly number[]) => values.reduce((a, b) => Math.min(a, b), Infinity)
const most = (values: readonly number[]) => values.reduce((a, b) => Math.max(a, b), -Infinity)
export const round = (value: number) => Math.round(value * 100) / 100
const widened = (low: number, high: number, by: number): [number, number] =>
  high > low ? [low, high] : [low - by / 2, high + by / 2]
