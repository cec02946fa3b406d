/** Arithmetic of spans of time. */

/** @typedef {import('../types.ts').TimelineSpan} TimelineSpan */

/**
 * Distributes spans over lanes so that none overlap within a lane: each goes to the first free lane.
 * @param {TimelineSpan[]} spans @param {number} most lanes; spans that find none free go to the last
 * @returns {TimelineSpan[][]}
 */
export function lanesOf(spans, most) {
  /** @type {TimelineSpan[][]} */
  const lanes = []
  /** @type {number[]} */
  const ends = []
  for (const span of spans.toSorted((a, b) => a.start - b.start || b.end - a.end)) {
    const free = ends.findIndex((end) => end <= span.start + 1e-9)
    const lane = free >= 0 ? free : Math.min(lanes.length, most - 1)
    lanes[lane] ??= []
    lanes[lane].push(span)
    ends[lane] = Math.max(ends[lane] ?? -Infinity, span.end)
  }
  return lanes
}

/**
 * Spans of a lane that are in sight; of those too short to be seen, the first of each pixel.
 * @param {TimelineSpan[]} lane @param {number} from @param {number} to @param {number} pixel seconds of one
 */
export function clipped(lane, from, to, pixel) {
  let last = -Infinity
  return lane.filter((span) => {
    if (span.end < from || span.start > to) return false
    if (span.end - span.start < pixel && span.start < last + pixel) return false
    last = span.start
    return true
  })
}

/**
 * How many of the spans ran at once: the number from each time on.
 * @param {TimelineSpan[]} spans @returns {{ t: number, n: number }[]}
 */
export function concurrency(spans) {
  const events = spans
    .flatMap(({ start, end }) => [
      { t: start, by: 1 },
      { t: end, by: -1 },
    ])
    .toSorted((a, b) => a.t - b.t || a.by - b.by)
  /** @type {{ t: number, n: number }[]} */
  const points = []
  let n = 0
  for (const { t, by } of events) {
    n += by
    if (points.at(-1)?.t === t) points[points.length - 1].n = n
    else points.push({ t, n })
  }
  return points
}

/** Most spans at once. @param {TimelineSpan[]} spans */
export const widest = (spans) => concurrency(spans).reduce((most, { n }) => Math.max(most, n), 0)

/** The time in which at least one of the spans ran. @param {TimelineSpan[]} spans */
export function union(spans) {
  let [sum, end] = [0, -Infinity]
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    sum += Math.max(0, span.end - Math.max(end, span.start))
    end = Math.max(end, span.end)
  }
  return sum
}

/** Spans by track, the tracks in an order; others come last. @param {TimelineSpan[]} spans @param {string[]} order */
export function byTrack(spans, order) {
  const place = (/** @type {string} */ track) => (order.includes(track) ? order.indexOf(track) : order.length)
  return [...Map.groupBy(spans, ({ track }) => track)].toSorted(([a], [b]) => place(a) - place(b))
}

/**
 * For each track the time in which it worked, and its waits by name, longest first.
 * @param {TimelineSpan[]} spans @param {(span: TimelineSpan) => boolean} isWait @param {string[]} order of tracks; others come last
 */
export function totals(spans, isWait, order) {
  const length = Math.max(1e-9, union([...spans]) || 0)
  const tracks = byTrack(spans, order).map(([track, own]) => {
    const waits = Map.groupBy(own.filter(isWait), ({ name }) => name)
    return {
      track,
      busy: union(own.filter((span) => !isWait(span))),
      waits: [...waits].map(([name, list]) => ({ name, time: union(list) })).toSorted((a, b) => b.time - a.time),
    }
  })
  return { length, tracks }
}
