/** Who ran when in a step: a track for each room, a bar for each span, and who waited for whom. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { runPath, useApi, useEvents, useThrottled } from './api.js'
import { count, duration, num, percent } from './format.js'
import { useKeys } from './keys.js'
import { setParams } from './router.js'
import { totals } from './spans.js'
import { ORDER, Tracks, kindOf } from './tracks.js'
import { Bar, Loading, Nothing, Problem, RunSelect, StepSlider, html, useSize } from './ui.js'

/** @typedef {import('../types.ts').TimelineAnswer} TimelineAnswer */
/** @typedef {import('../types.ts').TimelineSpan} TimelineSpan */

/** @param {import('./app.js').ViewProps} props */
export function TimelineView({ runs, run, params }) {
  const step = params.step === undefined ? null : Number(params.step)
  const { data, error, loading, reload } =
    /** @type {{ data: TimelineAnswer | undefined, error: string | null, loading: boolean, reload: () => void }} */ (
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
  return html`<div class="title-row">
      <h1>Timeline</h1>
      ${data && html`<p class="muted" role="status">step ${data.step}, ${data.spans.length} spans</p>`}
    </div>
    <div class="toolbar">
      <${RunSelect} runs=${runs} value=${run.id} onPick=${(/** @type {string} */ id) => setParams({ run: id, step: '' })} />
      <${StepSlider} steps=${steps} value=${now} onPick=${(/** @type {number} */ next) => setParams({ step: next })} />
    </div>
    <${Problem} message=${error} retry=${reload} />
    ${data === undefined && loading && html`<${Loading} what="the timeline" />`}
    ${data && data.spans.length === 0 && html`<${Nothing} title="No timeline of this step">${steps.length === 0 ? 'The run wrote none: runs of older versions have no logs/timeline.jsonl.' : 'Other steps have one.'}<//>`}
    ${data && data.spans.length > 0 && html`<${Step} key=${run.id} answer=${data} />`}`
}

/** @param {{ answer: TimelineAnswer }} props */
function Step({ answer }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null))
  const { width } = useSize(box)
  const { spans } = answer
  const [low, high] = useMemo(
    () => [Math.min(0, ...spans.map(({ start }) => start)), Math.max(...spans.map(({ end }) => end))],
    [spans],
  )
  const [view, setView] = useState(/** @type {[number, number]} */ ([low, high]))
  const [at, setAt] = useState(/** @type {TimelineSpan | null} */ (null))
  const [opened, setOpened] = useState(/** @type {Set<string>} */ (new Set()))
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
  const moved = (/** @type {[number, number]} */ [a, b], /** @type {number} */ by) => {
    const kept = Math.min(high - b, Math.max(low - a, by))
    setView([a + kept, b + kept])
  }
  const pan = (/** @type {number} */ part) => moved(view, (to - from) * part)
  useKeys({
    '+': () => zoom(0.5),
    '=': () => zoom(0.5),
    '-': () => zoom(2),
    0: () => setView([low, high]),
    ArrowLeft: () => pan(-0.25),
    ArrowRight: () => pan(0.25),
  })
  const drag = useRef(/** @type {{ x: number, view: [number, number] } | null} */ (null))
  // Preact listens passively to the wheel; this one must keep the page from moving.
  const wheel = useRef((/** @type {WheelEvent} */ _event) => {})
  wheel.current = (event) => {
    if (!event.ctrlKey && !event.shiftKey) return
    event.preventDefault()
    const rect = /** @type {HTMLElement} */ (box.current).getBoundingClientRect()
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, from + ((event.clientX - rect.left) / rect.width) * (to - from))
  }
  useEffect(() => {
    const element = box.current
    const turn = (/** @type {WheelEvent} */ event) => wheel.current(event)
    element?.addEventListener('wheel', turn, { passive: false })
    return () => element?.removeEventListener('wheel', turn)
  }, [])
  const toggle = (/** @type {string} */ track) => {
    const next = new Set(opened)
    if (!next.delete(track)) next.add(track)
    setOpened(next)
  }
  return html`<${Busy} spans=${spans} />
    <div class="toolbar zoom" role="group" aria-label="Part that is shown">
      <button type="button" aria-label="Zoom in" title="+" onClick=${() => zoom(0.5)}>+</button>
      <button type="button" aria-label="Zoom out" title="-" onClick=${() => zoom(2)}>−</button>
      <button type="button" title="0" onClick=${() => setView([low, high])}>All</button>
      <span class="muted"
        >${duration(to - from)} of ${duration(high - low)}<span class="wide-only"
          >; drag to move, Shift + wheel to zoom</span
        ></span
      >
    </div>
    <div
      class="timeline"
      ref=${box}
      onPointerDown=${(/** @type {PointerEvent} */ event) => {
        if (event.button === 0) drag.current = { x: event.clientX, view }
      }}
      onPointerMove=${(/** @type {PointerEvent} */ event) => {
        if (drag.current !== null && Math.abs(event.clientX - drag.current.x) >= 3)
          moved(drag.current.view, ((drag.current.x - event.clientX) / width) * (to - from))
      }}
      onPointerUp=${() => (drag.current = null)}
      onPointerLeave=${() => (drag.current = null)}
    >
      <${Tracks}
        spans=${spans}
        opened=${opened}
        toggle=${toggle}
        from=${from}
        to=${to}
        width=${width}
        at=${at}
        pick=${setAt}
        label=${`Timeline of step ${answer.step}; the table below shows the same`}
      />
    </div>
    <div class="span-facts" role="status">
      ${at ? html`<strong><bdi>${at.name}</bdi></strong> ${at.track}, ${num(at.start, 4)}s to ${num(at.end, 4)}s, ${duration(at.end - at.start)} <${Detail} span=${at} />` : html`<span class="muted">Click a bar to see what it is. The step began at 0; what lies before 0 was started earlier for this step.</span>`}
    </div>
    ${answer.left_out > 0 && html`<p class="muted">${count(answer.left_out, 'short span')} left out to keep the file small.</p>`}
    <details class="raw">
      <summary>All spans as a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Spans">
        <table>
          <thead>
            <tr>
              <th scope="col">Track</th>
              <th scope="col">Name</th>
              <th scope="col" class="number">From</th>
              <th scope="col" class="number">Time</th>
              <th scope="col">Detail</th>
            </tr>
          </thead>
          <tbody>
            ${spans.slice(0, 1000).map(
              (span, i) =>
                html`<tr key=${i}>
                  <td>${span.track}</td>
                  <td><bdi>${span.name}</bdi></td>
                  <td class="number">${num(span.start, 4)}s</td>
                  <td class="number">${duration(span.end - span.start)}</td>
                  <td><${Detail} span=${span} /></td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </details>`
}

/** @param {{ span: TimelineSpan }} props */
function Detail({ span }) {
  return html`<bdi class="muted">${Object.entries(span.detail ?? {}).map(([key, value]) => `${key} ${value}`).join(', ')}</bdi>` // prettier-ignore
}

/** A sentence for each kind of wait: who waited for whom. @type {Record<string, string>} */
const WAITS = {
  wait_for_batch: 'the trainer waited for rollouts',
  wait_for_trainer: 'sampling waited for the trainer',
  queued: 'rollouts waited for their turn',
}

/** Who was busy for how long, and who waited for whom. @param {{ spans: TimelineSpan[] }} props */
function Busy({ spans }) {
  const { length, tracks } = totals(spans, (span) => kindOf(span) === 'waits', ORDER)
  const waits = tracks.flatMap((track) => track.waits)
  return html`<ul class="busy" aria-label="Who was busy, who waited for whom">
    ${tracks
      .filter(({ busy }) => busy > 0)
      .map(
        ({ track, busy }) =>
          html`<li key=${track}>
            <span class="busy-name">${track}</span><${Bar} value=${busy / length} text=${`busy ${percent(busy / length)}`} />
          </li>`,
      )}
    ${waits.map(({ name, time }) => html`<li key=${name}><span class="muted">${WAITS[name] ?? name.replaceAll('_', ' ')}: ${duration(time)}, ${percent(time / length)}</span></li>`)}
  </ul>`
}
