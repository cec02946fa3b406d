/** The bars of a timeline, one track for each room. Spans of which many run at once are drawn as an area; an opened track has a bar for each. */
import { useMemo } from 'preact/hooks'
import { duration, num } from './format.js'
import { byTrack, clipped, concurrency, lanesOf, widest } from './spans.js'
import { html } from './ui.js'

/** @typedef {import('../types.ts').TimelineSpan} TimelineSpan */
/** @typedef {{ label: string, kind: string, lanes: TimelineSpan[][], points: { t: number, n: number }[], most: number, height: number }} Row */

/** Heights in pixels: a lane of a few, a lane of many, an area, a track's name, the gap between tracks, the times above. */
const [LANE, THIN, AREA, NAME, GAP, HEAD] = [19, 8, 44, 20, 12, 22]
/** Where more spans of a name run at once, they are drawn as an area. */
const FEW = 4
/** Most lanes of an opened track; spans that find none free are drawn over the last. */
const LANES = 128
export const ORDER = ['trainer', 'engine', 'environment', 'orchestrator']

/** The colour of a bar. @param {TimelineSpan} span */
export function kindOf({ name, track }) {
  if (/wait|idle|queue/.test(`${track} ${name}`)) return 'waits'
  return ORDER.includes(track) ? `track-${track}` : 'track-other'
}

/**
 * The rows of each track: first those with single bars, then those of spans of which many run at once.
 * @param {TimelineSpan[]} spans @param {Set<string>} opened tracks with a bar for each span
 */
function tracksOf(spans, opened) {
  return byTrack(spans, ORDER).map(([name, own]) => {
    const groups = [...Map.groupBy(own, (span) => span.name)]
    const dense = groups.filter(([, list]) => widest(list) > FEW)
    const few = groups.filter(([, list]) => widest(list) <= FEW).flatMap(([, list]) => list)
    /** @type {Row[]} */
    const rows = []
    if (few.length > 0) {
      const lanes = lanesOf(few, LANES)
      rows.push({ label: '', kind: '', lanes, points: [], most: 0, height: lanes.length * LANE })
    }
    for (const [label, list] of dense) {
      const [lanes, points] = opened.has(name) ? [lanesOf(list, LANES), []] : [[], concurrency(list)]
      rows.push({
        label,
        kind: kindOf(list[0]),
        lanes,
        points,
        most: widest(list),
        height: opened.has(name) ? lanes.length * THIN + 14 : AREA + 14,
      })
    }
    return { name, rows, dense: dense.length > 0 }
  })
}

/**
 * @param {{ spans: TimelineSpan[], opened: Set<string>, toggle: (track: string) => void, from: number, to: number, width: number, label: string,
 *   at: TimelineSpan | null, pick: (span: TimelineSpan) => void }} props
 */
export function Tracks({ spans, opened, toggle, from, to, width, label, at, pick }) {
  const tracks = useMemo(() => tracksOf(spans, opened), [spans, opened])
  const px = (/** @type {number} */ t) => ((t - from) / (to - from)) * width
  const pixel = (to - from) / Math.max(1, width)
  let y = HEAD
  const placed = tracks.map((track) => {
    const top = y
    y += NAME
    const rows = track.rows.map((row) => {
      const begin = y
      y += row.height + 4
      return { ...row, top: begin }
    })
    y += GAP
    return { ...track, top, rows }
  })
  const bars = (/** @type {TimelineSpan[]} */ lane, /** @type {number} */ top, /** @type {number} */ height) =>
    clipped(lane, from, to, pixel).map((span) => {
      const [x0, x1] = [Math.max(-4, px(span.start)), Math.min(width + 4, px(span.end))]
      const letters = Math.floor((x1 - Math.max(0, x0) - 8) / 6.4)
      return html`<g
        key=${`${span.start} ${span.name}`}
        class=${`span ${kindOf(span)}${span === at ? ' on' : ''}`}
        onClick=${() => pick(span)}
      >
        <rect x=${x0} y=${top} width=${Math.max(1.5, x1 - x0)} height=${height} rx="2"
          ><title>${span.name}: ${duration(span.end - span.start)}</title></rect
        >
        ${height > 12 && letters > 3 && html`<text x=${Math.max(0, x0) + 4} y=${top + height - 4.5}>${span.name.length > letters ? `${span.name.slice(0, letters - 1)}\u2026` : span.name}</text>`}
      </g>`
    })
  return html`<div class="tracks">
    <svg width=${width} height=${y} role="img" aria-label=${label}>
      ${ticks(from, to, width / 90).map(
        (t) =>
          html`<g key=${t}
            ><line class=${t === 0 ? 'tick zero' : 'tick'} x1=${px(t)} x2=${px(t)} y1="16" y2=${y} /><text x=${px(t) + 3} y="12"
              >${num(t, 4)}s</text
            ></g
          >`,
      )}
      ${from < 0 && html`<rect class="before" x="0" y="16" width=${Math.max(0, Math.min(width, px(0)))} height=${y} />`}
      ${placed.map(
        ({ name, rows, top }) =>
          html`<g key=${name}>
            <text class="track-name" x="6" y=${top + 14}>${name}</text>
            ${rows.map(
              (row) =>
                html`<g key=${row.label}>
                  ${row.label && html`<text x="6" y=${row.top + 10}>${row.label.replaceAll('_', ' ')}, up to ${row.most} at once</text>`}
                  ${row.points.length > 0 && html`<path class=${`area ${row.kind}`} d=${areaOf(row, px, from, to)} />`}
                  ${row.lanes.map((lane, k) => (row.label ? bars(lane, row.top + 14 + k * THIN, THIN - 1.5) : bars(lane, row.top + k * LANE, LANE - 3)))}
                </g>`,
            )}
          </g>`,
      )}
    </svg>
    ${placed.map(
      ({ name, top, dense }) =>
        dense &&
        html`<button
          type="button"
          key=${name}
          class="plain each"
          style=${{ top: `${top - 3}px` }}
          aria-pressed=${opened.has(name)}
          onClick=${() => toggle(name)}
        >
          ${opened.has(name) ? 'together' : 'one by one'}<span class="hidden">, ${name}</span>
        </button>`,
    )}
  </div>`
}

/**
 * The number of spans at once over time, as the path of an SVG area.
 * @param {Row & { top: number }} row @param {(t: number) => number} px @param {number} from @param {number} to
 */
function areaOf(row, px, from, to) {
  const base = row.top + 14 + AREA
  const y = (/** @type {number} */ n) => (base - (n / row.most) * AREA).toFixed(1)
  let path = `M-2 ${base}`
  let before = 0
  for (const { t, n } of row.points) {
    if (t >= from && t <= to) path += `H${px(t).toFixed(1)}V${y(n)}`
    else if (t < from) path = `M-2 ${base}V${y(n)}`
    else if (before > 0) {
      path += `H${px(to) + 2}`
      break
    }
    before = n
  }
  return `${path}V${base}Z`
}

/** Round times in a range. @param {number} low @param {number} high @param {number} count */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(2, count)
  const power = 10 ** Math.floor(Math.log10(rough))
  const size = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10
  const first = Math.ceil(low / size)
  return Array.from({ length: Math.max(0, Math.floor(high / size) - first + 1) }, (_, i) =>
    Number(((first + i) * size).toPrecision(10)),
  )
}
