/** Arithmetic of spans of time. */

/** @typedef {import('../types.ts').TimelineSpan} TimelineSpan */

/**
 * Spans in lanes, so that in a lane none overlaps another: each goes to the first lane that is free.
 * @param {TimelineSpan[]} spans @param {number} most lanes; what finds none free goes to the last
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

/** The time in which at least one of the spans ran. @param {TimelineSpan[]} spans */
export function union(spans) {
  let [sum, end] = [0, -Infinity]
  for (const span of spans.toSorted((a, b) => a.start - b.start)) {
    sum += Math.max(0, span.end - Math.max(end, span.start))
    end = Math.max(end, span.end)
  }
  return sum
}

/**
 * Of each track: the time in which it worked, and its waits by name, longest first.
 * @param {TimelineSpan[]} spans @param {(span: TimelineSpan) => boolean} isWait
 */
export function totals(spans, isWait) {
  const length = Math.max(1e-9, union([...spans]) || 0)
  const tracks = [...Map.groupBy(spans, ({ track }) => track)].map(([track, own]) => {
    const waits = Map.groupBy(own.filter(isWait), ({ name }) => name)
    return {
      track,
      busy: union(own.filter((span) => !isWait(span))),
      waits: [...waits].map(([name, list]) => ({ name, time: union(list) })).toSorted((a, b) => b.time - a.time),
    }
  })
  return { length, tracks }
}
