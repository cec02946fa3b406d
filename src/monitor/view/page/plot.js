/** One chart: the same metric of several runs, drawn by uPlot. The pointer or the arrow keys move its cursor; a click or Enter opens the step. */
import uPlot from 'uplot'
import { useEffect, useRef, useState } from 'preact/hooks'
import { clock, marks, num } from './format.js'
import { decades, joined, rangeText, roomy, smoothed } from './series.js'
import { DASHES, RUN_COLOURS, Swatch, Words, html, nearest, useMedia } from './ui.js'

/** @typedef {import('./series.js').Line} Line */
/** @typedef {import('../types.ts').GlossaryEntry} GlossaryEntry */
/** @typedef {{ id: string, i: number, line: Line }} RunLine */

const HEIGHT = 210
/** Lines with at most this many points are drawn with dots. */
const DOTS = 40

/** Distances between two marks of an axis: whole numbers for steps and tokens, those of a clock for times. */
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((m) => m * 10 ** power)).flat()
const SECONDS = [
  1,
  2,
  5,
  10,
  15,
  30,
  60,
  120,
  300,
  600,
  900,
  1800,
  ...[1, 2, 3, 6, 12, 24, 48, 96, 168, 336].map((hours) => hours * 3600),
]

/** @param {string} name a custom property of the page */
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

/**
 * @param {{ metric: string, lines: RunLine[], entry?: GlossaryEntry, axis: import('./series.js').Axis, smooth: number, log: boolean,
 *   sync: string, open: (run: string, step: number) => void }} props
 */
export function Chart({ metric, lines, entry, axis, smooth, log, sync, open }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null))
  const plot = useRef(/** @type {uPlot | null} */ (null))
  const [at, setAt] = useState(/** @type {{ x: number, left: number, own: boolean } | null} */ (null))
  const dark = useMedia('(prefers-color-scheme: dark)')
  const shown = lines.filter(({ line }) => line.xs.length > 0)
  const state = useRef({ shown, open })
  state.current = { shown, open }
  const curves = shown.map(({ line }) => positive({ xs: line.xs, ys: smoothed(line.ys, smooth) }, log))
  const raw = smooth > 0 ? shown.map(({ line }) => positive(line, log)) : []
  const structure = JSON.stringify([
    shown.map(({ id, i, line }) => [id, i, line.xs.length <= DOTS]),
    axis,
    smooth > 0,
    log,
    dark,
    entry?.range,
  ])

  useEffect(() => {
    const element = box.current
    if (element === null || shown.length === 0) return undefined
    const options = optionsOf({ width: element.clientWidth, shown, axis, faint: raw.length, log, range: entry?.range, sync })
    options.hooks = {
      ...options.hooks,
      setCursor: [
        (u) => {
          const left = u.cursor.left ?? -1
          setAt(left < 0 ? null : { x: u.posToVal(left, 'x'), left, own: element.matches(':hover, :focus-within') })
        },
      ],
    }
    const u = new uPlot(options, /** @type {any} */ (joined([...raw, ...curves])), element)
    plot.current = u
    const observer = new ResizeObserver(() => u.setSize({ width: element.clientWidth, height: HEIGHT }))
    observer.observe(element)
    return () => {
      observer.disconnect()
      u.destroy()
      plot.current = null
    }
  }, [structure, sync])
  useEffect(() => {
    const u = plot.current
    if (u === null) return
    // When zoomed in, the visible part stays while new steps come. A new plot has no scale yet.
    const { min, max } = u.scales.x
    const xs = /** @type {number[]} */ (u.data[0])
    const zoomed = typeof min === 'number' && typeof max === 'number' && (min > xs[0] || max < xs[xs.length - 1])
    u.setData(/** @type {any} */ (joined([...raw, ...curves])), !zoomed)
    if (zoomed) u.redraw()
  }, [lines, smooth, log])

  const values = at === null ? [] : valuesAt(shown, curves, at.x)
  const openAt = () => {
    const u = plot.current
    if (u === null || at === null || values.length === 0) return
    const top = u.cursor.top ?? 0
    const picked = values.toSorted((a, b) => Math.abs(u.valToPos(a.y, 'y') - top) - Math.abs(u.valToPos(b.y, 'y') - top))[0]
    open(picked.run.id, picked.step)
  }
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const u = plot.current
    if (u === null) return
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
    if (by !== undefined) {
      const xs = /** @type {number[]} */ (u.data[0])
      const from = at === null ? (by > 0 ? -1 : xs.length) : nearest(xs, at.x)
      const next = Math.min(xs.length - 1, Math.max(0, from + by * (event.shiftKey ? 10 : 1)))
      u.setCursor({ left: u.valToPos(xs[next], 'x'), top: HEIGHT / 2 })
    } else if (event.key === 'Enter') openAt()
    else if (event.key === 'Escape') u.setCursor({ left: -10, top: -10 })
    else return
    event.preventDefault()
    event.stopPropagation()
  }
  const spoken = at?.own ? `${axisText(axis, at.x, values)}: ${values.map(({ run, y }) => `${run.id} ${num(y)}`).join(', ')}` : ''
  const range = rangeText(entry?.range, (x) => num(x, 3))
  const lasts = shown.map((run, k) => ({ run, y: curves[k].ys.at(-1) }))
  return html`<figure class="card" aria-label=${metric}>
    <figcaption>
      <span class="metric" title=${entry?.help}><bdi>${metric}</bdi></span>
      <span class="muted unit">${entry?.unit ?? ''}</span>
      <span class="lasts">
        ${(at === null ? lasts : values).map(({ run, y }) => html`<span key=${run.id} title=${run.id}><${Swatch} i=${run.i} />${num(y, 3)}</span>`)}
      </span>
    </figcaption>
    ${
      shown.length === 0
        ? html`<p class="muted empty-chart">no value yet</p>`
        : html`<div class="chart">
            <div
              class="plot"
              ref=${box}
              tabindex="0"
              role="group"
              aria-label=${`Curve of ${metric}. ${lasts.map(({ run, y }) => `${run.id}: ${num(y)}`).join(', ')}. Arrow keys move along it, Enter opens the rollouts of the step.`}
              onKeyDown=${onKey}
              onClick=${(/** @type {MouseEvent} */ event) => event.detail === 1 && /** @type {any} */ (event.target).closest('.u-over') && openAt()}
            ></div>
            ${at?.own && values.length > 0 && html`<${Tip} at=${at} values=${values} axis=${axis} width=${box.current?.clientWidth ?? 0} />`}
            <span class="hidden" role="status" aria-live="polite">${spoken}</span>
          </div>`
    }
    ${(entry?.healthy || range) && html`<p class="healthy">${range && html`<span class="healthy-mark" title=${`healthy: ${range}`}>${range}</span>`} <${Words} text=${entry?.healthy ?? ''} /></p>`}
  </figure>`
}

/**
 * @param {{ at: { x: number, left: number }, values: { run: RunLine, y: number, step: number }[],
 *   axis: import('./series.js').Axis, width: number }} props
 */
function Tip({ at, values, axis, width }) {
  const left = at.left + LEFT_AXIS
  const side = left > width / 2 ? { right: `${Math.max(0, width - left + 12)}px` } : { left: `${left + 12}px` }
  const sorted = values.toSorted((a, b) => b.y - a.y)
  // Each run's step where they differ: thinned curves lack some steps, and at the same time or token count runs are at different steps.
  const apart = axis !== 'step' || values.some(({ step }) => step !== values[0].step)
  return html`<div class="tip" style=${side} aria-hidden="true">
    <strong>${axisText(axis, at.x, values)}</strong>
    ${sorted.map(
      ({ run, y, step }) =>
        html`<span class="tip-row" key=${run.id}
          ><${Swatch} i=${run.i} /><bdi>${run.id}</bdi
          ><span class="number">${num(y)}</span>${apart && html`<span class="muted">step ${step}</span>`}</span
        >`,
    )}
  </div>`
}

/** @param {import('./series.js').Axis} axis @param {number} x @param {{ step: number }[]} values */
function axisText(axis, x, values) {
  if (axis === 'step') return `step ${values[0]?.step ?? Math.round(x)}`
  return axis === 'time' ? `after ${clock(x)}` : `${num(Math.round(x))} tokens`
}

/** For each run that reaches x, its value nearest to x. @param {RunLine[]} shown @param {{ xs: number[], ys: number[] }[]} curves @param {number} x */
function valuesAt(shown, curves, x) {
  return shown.flatMap((run, k) => {
    const { xs, ys } = curves[k]
    const i = nearest(xs, x)
    const slack = ((xs.at(-1) ?? 0) - (xs[0] ?? 0)) * 0.02 + 0.5
    if (i < 0 || (i === xs.length - 1 && x > xs[i] + slack) || (i === 0 && x < xs[i] - slack)) return []
    const place = nearest(run.line.xs, xs[i])
    return [{ run, y: ys[i], step: run.line.steps[place] }]
  })
}

/** On a logarithmic axis only what is above 0 can be drawn. @param {{ xs: number[], ys: number[] }} line @param {boolean} log */
function positive(line, log) {
  if (!log) return { xs: line.xs, ys: line.ys }
  const kept = line.ys.flatMap((y, i) => (y > 0 ? [i] : []))
  return { xs: kept.map((i) => line.xs[i]), ys: kept.map((i) => line.ys[i]) }
}

/** Pixels: least width of the numbers beside the chart, and about the width of one character. */
const LEFT_AXIS = 54
const SIGN = 6.6

/**
 * @param {{ width: number, shown: RunLine[], axis: import('./series.js').Axis, faint: number, log: boolean, range?: { min?: number, max?: number }, sync: string }} of
 * @returns {uPlot.Options}
 */
function optionsOf({ width, shown, axis, faint, log, range, sync }) {
  const [ink, grid] = [css('--muted'), css('--grid')]
  const font = `12px ${css('--sans')}`
  const series = (/** @type {RunLine} */ { id, i, line }, /** @type {boolean} */ pale) => {
    const colour = css(`--run-${i % RUN_COLOURS}`)
    return {
      label: id,
      stroke: pale ? `color-mix(in srgb, ${colour} 30%, transparent)` : colour,
      width: pale ? 1 : 1.75,
      dash: DASHES[Math.floor(i / RUN_COLOURS) % DASHES.length],
      points: { show: !pale && line.xs.length <= DOTS, size: 5, fill: colour },
      spanGaps: true,
    }
  }
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 16, 0, 0],
    scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: (_u, low, high) => (log ? decades(low, high) : roomy(low, high)) } },
    // The pale lines (values before smoothing) get no dot at the cursor.
    cursor: { y: false, sync: { key: sync, scales: ['x', null] }, drag: { x: true, y: false, dist: 6 }, points: { size: (_u, i) => (i <= faint ? 0 : 7) } },
    axes: [
      { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, size: 4 }, size: 30, space: 60, incrs: axis === 'time' ? SECONDS : WHOLE, values: (_u, list) => (axis === 'time' ? list.map(clock) : marks(list)) },
      { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, size: 4 }, size: (_u, list) => (list ?? []).reduce((room, { length }) => Math.max(room, length * SIGN + 12), LEFT_AXIS), values: (_u, list) => marks(list) },
    ],
    series: [{}, ...(faint > 0 ? shown.map((run) => series(run, true)) : []), ...shown.map((run) => series(run, false))],
    hooks: { drawClear: range ? [(u) => shade(u, range)] : [] },
  } // prettier-ignore
}

/** The healthy range behind the curves. @param {uPlot} u @param {{ min?: number, max?: number }} range */
function shade(u, range) {
  const { min: low, max: high } = u.scales.y
  if (low === undefined || high === undefined || low === null || high === null) return
  const bottom = Math.max(low, range.min ?? low)
  const top = Math.min(high, range.max ?? high)
  if (bottom > top) return
  const [y0, y1] = [u.valToPos(top, 'y', true), u.valToPos(bottom, 'y', true)]
  u.ctx.save()
  u.ctx.fillStyle = css('--healthy-fill')
  u.ctx.fillRect(u.bbox.left, y0, u.bbox.width, Math.max(2 * devicePixelRatio, y1 - y0))
  u.ctx.restore()
}
