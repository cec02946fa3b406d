/** Numbers, times and names as text. */

const MINUS = '\u2212'

/** A number in few characters: 0.8123, 12.3, 1.2e-5, 123,456; a dash where there is none.
 * @param {number | null | undefined} x @param {number} [digits] significant ones */
export function num(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return '\u2013'
  if (!Number.isFinite(x)) return x > 0 ? '\u221e' : `${MINUS}\u221e`
  if (x === 0) return '0'
  const size = Math.abs(x)
  let text
  if (size >= 1e9 || size < 1e-4)
    text = x
      .toExponential(Math.max(0, digits - 2))
      .replace(/\.?0+e/, 'e')
      .replace('e+', 'e')
  else if (Number.isInteger(x) || size >= 10 ** digits) text = Math.round(x).toLocaleString('en')
  else text = String(Number(x.toPrecision(digits)))
  return text.replaceAll('-', MINUS)
}

/** A number of an axis: 12k, 3.4M, 1e-5. @param {number} x @param {number} digits */
function mark(x, digits) {
  const size = Math.abs(x)
  if (size >= 1e6) return `${num(x / 1e6, digits)}M`
  if (size >= 1e4) return `${num(x / 1e3, digits)}k`
  return num(x, digits)
}

/** The numbers beside an axis, with as many digits as tell neighbours apart. @param {(number | null)[]} list ascending; null: none there */
export function marks(list) {
  const known = list.filter((x) => x !== null)
  const gap = known.slice(1).reduce((least, x, i) => Math.min(least, x - known[i]), Infinity)
  const place = (/** @type {number} */ x) => Math.floor(Math.log10(Math.abs(x)) + 1e-9)
  // A gap of 2.5 has two digits, and num gives one less to small numbers.
  return list.map((x) => (x === null ? '' : x === 0 ? '0' : mark(x, Math.min(12, Math.max(3, place(x) - place(gap) + 3)))))
}

/** With a sign, as an advantage is read. @param {number | null | undefined} x @param {number} [digits] */
export function signed(x, digits = 3) {
  // Rounding errors around 0 count as 0.
  if (x !== null && x !== undefined && Math.abs(x) < 1e-12) return '0'
  return x !== null && x !== undefined && x > 0 ? `+${num(x, digits)}` : num(x, digits)
}

/** @param {number | null | undefined} x 0 to 1 */
export function percent(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return '\u2013'
  return `${num(x * 100, x < 0.1 ? 2 : 3)}%`
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '\u2013'
  if (seconds < 1e-3) return `${num(seconds * 1e6, 3)} \u00b5s`
  if (seconds < 1) return `${num(seconds * 1e3, 3)} ms`
  if (seconds < 120) return `${num(seconds, 3)} s`
  const minutes = Math.floor(seconds / 60)
  if (minutes < 120) return `${minutes} min${minutes < 10 ? ` ${Math.floor(seconds % 60)} s` : ''}`
  const hours = Math.floor(minutes / 60)
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`
}

/** How long ago a time was. @param {number | null | undefined} time seconds since 1970 @param {number} [now] */
export function ago(time, now = Date.now() / 1000) {
  if (time === null || time === undefined) return '\u2013'
  const past = Math.max(0, now - time)
  return past < 5 ? 'now' : `${duration(Math.floor(past))} ago`
}

/** Seconds on an axis: 90 is 1:30, 5400 is 1h30. @param {number} seconds */
export function clock(seconds) {
  const s = Math.round(seconds)
  if (Math.abs(s) < 60) return `${num(seconds, 3)}s`
  if (Math.abs(s) < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`
  return `${Math.floor(s / 3600)}h${String(Math.floor((s % 3600) / 60)).padStart(2, '0')}`
}

/** The last part of a path or hub id. @param {string | null} model */
export function shortModel(model) {
  if (!model) return '\u2013'
  return (
    model
      .replace(/[\\/]+$/, '')
      .split(/[\\/]/)
      .at(-1) ?? model
  )
}

/** 1 rollout, 2 rollouts. @param {number} n @param {string} word */
export function count(n, word) {
  return `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`
}
