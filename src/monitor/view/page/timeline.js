/** Who ran when in a step: a track for each room, a bar for each span, and who waited for whom. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { runPath, useApi, useEvents, useThrottled } from './api.js'
import { duration, num, percent } from './format.js'
import { useKeys } from './keys.js'
import { setParams } from './router.js'
import { clipped, lanesOf, totals } from './spans.js'
import { Loading, Nothing, Problem, RunSelect, StepSlider, html, useSize } from './ui.js'

/** @typedef {import('../types.ts').TimelineAnswer} TimelineAnswer */
/** @typedef {import('../types.ts').TimelineSpan} TimelineSpan */

const LANE = 18
const GAP = 12
const LABEL = 22
/** Lanes of a track at most: what runs beside so many others is drawn over the last. */
const LANES = 24

/** @param {import('./app.js').ViewProps} props */
export function TimelineView({ runs, run, params }) {
  const step = params.step === undefined ? null : Number(params.step)
  const { data, error, loading, reload } = /** @type {{ data: TimelineAnswer | undefined, error: string | null, loading: boolean, reload: () => void }} */ (
    useApi(runPath(run.id, '/timeline', { step }))
  )
  const soon = useThrottled(reload, 2000)
  useEvents((event) => event.run === run.id && event.kind === 'metrics' && step === null && soon())
  const steps = data?.steps ?? []
  const now = data?.step ?? step
  const move = (/** @type {number} */ by) => {
    const at = steps.indexOf(now ?? -1)
    const next = steps[Math.min(steps.length - 1, Math.max(0, at + by))]
    if (next !== undefined) setParams({ step: next })
  }
  useKeys({ '[': () => move(-1), ']': () => move(1), k: () => move(-1), j: () => move(1) })
  return html`<div class="title-row"><h1>Timeline</h1>${data && html`<p class="muted" role="status">step ${data.step}, ${data.spans.length} spans</p>`}</div>
    <div class="toolbar">
      <${RunSelect} runs=${runs} value=${run.id} onPick=${(/** @type {string} */ id) => setParams({ run: id, step: '' })} />
      <${StepSlider} steps=${steps} value=${now} onPick=${(/** @type {number} */ next) => setParams({ step: next })} />
    </div>
    <${Problem} message=${error} retry=${reload} />
    ${data === undefined && loading && html`<${Loading} what="the timeline" />`}
    ${data && data.spans.length === 0 && html`<${Nothing} title="No timeline of this step">${steps.length === 0 ? 'The run wrote none: runs of older versions have no logs/timeline.jsonl.' : 'Other steps have one.'}<//>`}
    ${data && data.spans.length > 0 && html`<${Tracks} key=${run.id} answer=${data} />`}`
}

/** @param {{ answer: TimelineAnswer }} props */
function Tracks({ answer }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null))
  const { width } = useSize(box)
  const { spans } = answer
  const [low, high] = useMemo(() => [Math.min(0, ...spans.map(({ start }) => start)), Math.max(...spans.map(({ end }) => end))], [spans])
  const [view, setView] = useState(/** @type {[number, number]} */ ([low, high]))
  const [at, setAt] = useState(/** @type {TimelineSpan | null} */ (null))
  useEffect(() => {
    setView([low, high])
    setAt(null)
  }, [spans])
  const [from, to] = view
  const zoom = (/** @type {number} */ factor, middle = (from + to) / 2) => {
    const size = Math.min(high - low, Math.max((to - from) * factor, (high - low) / 5000))
    const begin = Math.min(high - size, Math.max(low, middle - ((middle - from) / (to - from)) * size))
    setView([begin, begin + size])
  }
  const pan = (/** @type {number} */ part) => {
    const by = Math.min(high - to, Math.max(low - from, (to - from) * part))
    setView([from + by, to + by])
  }
  useKeys({ '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), 0: () => setView([low, high]), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25) })
  const tracks = useMemo(() => [...Map.groupBy(spans, ({ track }) => track)].map(([name, own]) => ({ name, lanes: lanesOf(own, LANES) })), [spans])
  let y = 24
  const placed = tracks.map((track) => {
    const top = y
    y += LABEL + track.lanes.length * LANE + GAP
    return { ...track, top }
  })
  const px = (/** @type {number} */ t) => ((t - from) / (to - from)) * width
  const drag = useRef(/** @type {{ x: number, view: [number, number] } | null} */ (null))
  // Preact listens passively to the wheel; this one must keep the page from moving.
  const wheel = useRef(zoom)
  wheel.current = zoom
  useEffect(() => {
    const element = box.current
    const turn = (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.shiftKey) return
      event.preventDefault()
      const rect = /** @type {HTMLElement} */ (element).getBoundingClientRect()
      wheel.current(event.deltaY > 0 ? 1.25 : 0.8, from + ((event.clientX - rect.left) / rect.width) * (to - from))
    }
    element?.addEventListener('wheel', turn, { passive: false })
    return () => element?.removeEventListener('wheel', turn)
  }, [from, to])
  return html`<${Waits} spans=${spans} />
    <div class="toolbar zoom" role="group" aria-label="Part that is shown">
      <button type="button" aria-label="Zoom in" title="+" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" aria-label="Zoom out" title="-" onClick=${() => zoom(2)}>\u2212</button>
      <button type="button" title="0" onClick=${() => setView([low, high])}>All</button>
      <span class="muted">${duration(to - from)} of ${duration(high - low)}; drag to move, Shift and the wheel to zoom</span>
    </div>
    <div
      class="timeline"
      ref=${box}
      onPointerDown=${(/** @type {PointerEvent} */ event) => {
        if (event.button === 0) drag.current = { x: event.clientX, view }
      }}
      onPointerMove=${(/** @type {PointerEvent} */ event) => {
        if (drag.current === null || Math.abs(event.clientX - drag.current.x) < 3) return
        const by = Math.min(high - drag.current.view[1], Math.max(low - drag.current.view[0], ((drag.current.x - event.clientX) / width) * (to - from)))
        setView([drag.current.view[0] + by, drag.current.view[1] + by])
      }}
      onPointerUp=${() => (drag.current = null)}
      onPointerLeave=${() => (drag.current = null)}
    >
      <svg width=${width} height=${y} role="img" aria-label=${`Timeline of step ${answer.step}; the table below says the same`}>
        ${ticks(from, to, width / 90).map(
          (t) => html`<g key=${t}><line class="tick" x1=${px(t)} x2=${px(t)} y1="16" y2=${y} /><text x=${px(t) + 3} y="12">${num(t, 4)}s</text></g>`,
        )}
        ${placed.map(
          ({ name, lanes, top }) =>
            html`<g key=${name}>
              <text class="track-name" x="4" y=${top + 14}>${name}</text>
              ${lanes.map((lane, k) =>
                clipped(lane, from, to, (to - from) / Math.max(1, width)).map((span) => {
                  const [x0, x1] = [Math.max(-4, px(span.start)), Math.min(width + 4, px(span.end))]
                  const room = x1 - x0
                  const title = `${span.name}: ${duration(span.end - span.start)}`
                  return html`<g key=${`${span.start} ${span.name}`} class=${`span ${kindOf(span)}${span === at ? ' on' : ''}`} onClick=${() => setAt(span)}>
                    <rect x=${x0} y=${top + LABEL + k * LANE} width=${Math.max(1.5, room)} height=${LANE - 3} rx="2"><title>${title}</title></rect>
                    ${room > 46 && html`<text x=${Math.max(0, x0) + 4} y=${top + LABEL + k * LANE + 11}>${span.name.slice(0, Math.floor((room - 8) / 6.2))}</text>`}
                  </g>`
                }),
              )}
            </g>`,
        )}
      </svg>
    </div>
    <div class="span-facts" role="status">
      ${at ? html`<strong><bdi>${at.name}</bdi></strong> ${at.track}, ${num(at.start, 4)}s to ${num(at.end, 4)}s, ${duration(at.end - at.start)} ${detailText(at)}` : html`<span class="muted">Click a bar to read what it is.</span>`}
    </div>
    ${answer.left_out > 0 && html`<p class="muted">${answer.left_out} short spans were left out to keep the file small.</p>`}
    <details class="raw">
      <summary>All spans as a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Spans">
        <table>
          <thead><tr><th scope="col">Track</th><th scope="col">Name</th><th scope="col">From</th><th scope="col">Time</th><th scope="col">Detail</th></tr></thead>
          <tbody>
            ${spans.slice(0, 1000).map((span, i) => html`<tr key=${i}><td>${span.track}</td><td><bdi>${span.name}</bdi></td><td class="number">${num(span.start, 4)}s</td><td class="number">${duration(span.end - span.start)}</td><td>${detailText(span)}</td></tr>`)}
          </tbody>
        </table>
      </div>
    </details>`
}

/** @param {TimelineSpan} span */
const detailText = (span) => html`<bdi class="muted">${Object.entries(span.detail ?? {}).map(([key, value]) => `${key} ${value}`).join(', ')}</bdi>` // prettier-ignore

/** The colour of a bar. @param {TimelineSpan} span */
function kindOf({ name, track }) {
  if (/wait|idle|queue/.test(`${track} ${name}`)) return 'waits'
  const known = ['trainer', 'engine', 'environment', 'orchestrator']
  return known.includes(track) ? `track-${track}` : 'track-other'
}

/** Who was busy for how long, and who waited. @param {{ spans: TimelineSpan[] }} props */
function Waits({ spans }) {
  const { length, tracks } = totals(spans, (span) => kindOf(span) === 'waits')
  return html`<ul class="busy" aria-label="Who was busy, who waited">
    ${tracks.map(
      ({ track, busy, waits }) =>
        html`<li key=${track}>
          <strong>${track}</strong> <span>busy ${percent(busy / length)}</span>
          ${waits.map(({ name, time }) => html`<span class="muted" key=${name}>${name.replaceAll('_', ' ')} ${duration(time)} (${percent(time / length)})</span>`)}
        </li>`,
    )}
  </ul>`
}

/** Round times in a range. @param {number} low @param {number} high @param {number} count */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(2, count)
  const power = 10 ** Math.floor(Math.log10(rough))
  const size = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? power * 10
  const first = Math.ceil(low / size)
  return Array.from({ length: Math.max(0, Math.floor(high / size) - first + 1) }, (_, i) => Number(((first + i) * size).toPrecision(10)))
}
