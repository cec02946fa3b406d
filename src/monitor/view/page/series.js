/** Numbers of curves: the axes, smoothing, and tables for uPlot. */

/** @typedef {import('../types.ts').MetricsAnswer} MetricsAnswer */
/** @typedef {'step' | 'time' | 'tokens'} Axis */
/** One run's values of one metric: where each is known, ascending in x. @typedef {{ xs: number[], ys: number[], steps: number[] }} Line */

/** The metric that counts tokens. */
export const TOKENS = 'progress/total_tokens'

/** Metrics that are shown where none was chosen, in this order. */
const FIRST = [
  /^reward$/, /^eval\/.+\/avg@\d+$/, /^solved_some$/, /^entropy\/all\/mean$/, /^mismatch_kl\/all\/mean$/, /^ref_kl\/all\/mean$/, /^optim\/grad_norm$/,
  /^is_truncated\/mean$/, /^tokens\/completion$/, /^perf\/generation_throughput$/, /^time\/step$/, /^loss\/mean$/,
] // prettier-ignore
/** Index of the loss: it comes first for supervised runs, which have no reward, and is left out for others. */
const LOSS = FIRST.length - 1

/** @param {string[]} keys @returns {string[]} */
export function firstKeys(keys) {
  const rules = keys.includes('reward') ? FIRST.slice(0, LOSS) : [FIRST[LOSS], ...FIRST.slice(0, LOSS)]
  return rules.flatMap((rule) => keys.filter((key) => rule.test(key)))
}

/**
 * The line of a metric in an answer. Values that are missing are left out; a time without one takes that of the row before.
 * @param {MetricsAnswer} answer @param {string} key @param {Axis} axis @returns {Line}
 */
export function lineOf(answer, key, axis) {
  /** @type {Line} */
  const line = { xs: [], ys: [], steps: [] }
  const values = answer.series[key]
  if (!values) return line
  const along = axis === 'step' ? answer.steps : (answer.series[axis === 'time' ? 'time' : TOKENS] ?? [])
  const begin = axis === 'time' ? (along.find((x) => x !== null) ?? 0) : 0
  let last = axis === 'tokens' ? 0 : null
  values.forEach((y, i) => {
    const x = along[i] ?? last
    last = x
    if (x === null || y === null || !Number.isFinite(y)) return
    // Two rows at one place (an evaluation beside its step): the later one counts.
    if (line.xs.at(-1) === x - begin) {
      line.ys[line.ys.length - 1] = y
      return
    }
    line.xs.push(x - begin)
    line.ys.push(y)
    line.steps.push(answer.steps[i])
  })
  return line
}

/**
 * The exponential mean of a line: m_i = w m_(i-1) + (1 - w) y_i, divided by 1 - w^i, so that its beginning is not pulled to 0.
 * @param {number[]} ys @param {number} weight 0 (none) to below 1
 */
export function smoothed(ys, weight) {
  if (!(weight > 0)) return ys
  let [mean, rest] = [0, 1]
  return ys.map((y) => {
    mean = weight * mean + (1 - weight) * y
    rest *= weight
    return mean / (1 - rest)
  })
}

/**
 * Several lines over one ascending x, as uPlot wants them; undefined where a line has no value there, which leaves no gap.
 * @param {{ xs: number[], ys: number[] }[]} lines @returns {[number[], ...(number | null | undefined)[][]]}
 */
export function joined(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.xs))].toSorted((a, b) => a - b)
  const place = new Map(xs.map((x, i) => [x, i]))
  const columns = lines.map((line) => {
    /** @type {(number | undefined)[]} */
    const column = Array.from({ length: xs.length })
    line.xs.forEach((x, i) => (column[/** @type {number} */ (place.get(x))] = line.ys[i]))
    return column
  })
  return [xs, ...columns]
}

/**
 * Bounds of an axis with a little room. A constant line is drawn in the middle, as is one that varies by rounding only.
 * @param {number | null} low @param {number | null} high @returns {[number, number]}
 */
export function roomy(low, high) {
  if (low === null || high === null) return [0, 1]
  const span = high - low
  const size = Math.max(Math.abs(low), Math.abs(high))
  if (span <= size * 1e-9) return size === 0 ? [-0.05, 1] : [low - size * 0.5, high + size * 0.5]
  return [low >= 0 && low < span * 0.1 ? 0 : low - span * 0.06, high + span * 0.06]
}

/**
 * Bounds of a logarithmic axis: whole powers of ten, at least one.
 * @param {number | null} low @param {number | null} high @returns {[number, number]}
 */
export function decades(low, high) {
  if (low === null || high === null || !(low > 0)) return [0.1, 1]
  const [first, last] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)]
  return [10 ** first, 10 ** Math.max(last, first + 1)]
}

/** The healthy range in words: `at most 0.1`. @param {{ min?: number, max?: number } | undefined} range @param {(x: number) => string} show */
export function rangeText(range, show) {
  if (range?.min !== undefined && range.max !== undefined)
    return range.min === range.max ? show(range.min) : `${show(range.min)} to ${show(range.max)}`
  if (range?.min !== undefined) return `at least ${show(range.min)}`
  return range?.max !== undefined ? `at most ${show(range.max)}` : ''
}
