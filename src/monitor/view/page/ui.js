/** The pieces that several views use. Text from runs only ever becomes text nodes. */
import { h } from 'preact'
import htm from 'htm'
import { useEffect, useState } from 'preact/hooks'
import { num } from './format.js'

/** @typedef {import('../types.ts').RunSummary} RunSummary */

/** A template as preact nodes; values in `${}` are data and never markup. */
export const html = htm.bind(h)

/** Number of run colours (base.css: --run-0 ...); further runs repeat them with another dash. */
export const RUN_COLOURS = 6
/** Dash patterns of lines, in pixels; the first is a solid line. */
export const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]]

/** The colour of the i-th run as a CSS value. @param {number} i */
const runColour = (i) => `var(--run-${i % RUN_COLOURS})`

/** A short piece of a run's line, as a legend shows it. @param {{ i: number }} props */
export function Swatch({ i }) {
  const dash = DASHES[Math.floor(i / RUN_COLOURS) % DASHES.length]
  return html`<svg class="swatch" width="18" height="8" aria-hidden="true">
    <line
      x1="1"
      x2="17"
      y1="4"
      y2="4"
      stroke-width="3"
      stroke-dasharray=${dash.join(' ') || null}
      style=${{ stroke: runColour(i) }}
    />
  </svg>`
}

/** A line without axes. @param {{ points: (number | null)[], label: string }} props */
export function Sparkline({ points, label }) {
  const known = points.flatMap((y) => (y !== null && Number.isFinite(y) ? [y] : []))
  if (known.length === 0) return html`<span class="muted">–</span>`
  // A constant line is drawn in the middle.
  const flat = Math.max(...known) === Math.min(...known)
  const low = Math.min(...known) - (flat ? 0.5 : 0)
  const span = Math.max(...known) - low + (flat ? 0.5 : 0)
  const [width, height] = [96, 22]
  const path = points
    .map((y, i) =>
      y === null
        ? null
        : `${((points.length === 1 ? 0.5 : i / (points.length - 1)) * (width - 6) + 3).toFixed(1)},${(height - 3 - ((y - low) / span) * (height - 6)).toFixed(1)}`,
    )
    .filter((point) => point !== null)
  const [x, y] = path[path.length - 1].split(',')
  return html`<svg
    class="spark"
    width=${width}
    height=${height}
    viewBox=${`0 0 ${width} ${height}`}
    role="img"
    aria-label=${label}
  >
    <polyline points=${path.join(' ')} />
    <circle cx=${x} cy=${y} r="2.4" />
  </svg>`
}

/** An error's sentence, shown in place of the part that failed. @param {{ message: string | null | undefined, retry?: () => void }} props */
export function Problem({ message, retry }) {
  if (!message) return null
  return html`<div class="problem" role="alert">
    <p><bdi>${message}</bdi></p>
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`
}

/** A sentence in which names stand in backticks. @param {{ text: string }} props */
export function Words({ text }) {
  return text.split('`').map((part, i) => (i % 2 === 1 ? html`<code key=${i}>${part}</code>` : part))
}

/** @param {{ title: string, children?: any }} props */
export function Nothing({ title, children }) {
  return html`<div class="nothing">
    <p class="nothing-title">${title}</p>
    ${children && html`<p>${children}</p>`}
  </div>`
}

/** Shown while data are loaded; it appears with a delay, so that quick answers do not flicker. @param {{ what: string }} props */
export function Loading({ what }) {
  return html`<p class="loading">Loading ${what}…</p>`
}

const STATUS = { running: '\u25cf', finished: '\u2713', stopped: '\u25a0', killed: '\u2715' }

/** @param {{ status: RunSummary['status'] }} props */
export function Status({ status }) {
  return html`<span class=${`status ${status}`}><span aria-hidden="true">${STATUS[status] ?? '?'}</span> ${status}</span>`
}

/** @param {{ runs: RunSummary[], value: string, onPick: (id: string) => void, label?: string }} props */
export function RunSelect({ runs, value, onPick, label = 'Run' }) {
  return html`<label class="field grow"
    ><span>${label}</span>
    <select value=${value} onChange=${(/** @type {any} */ event) => onPick(event.target.value)}>
      ${runs.map(({ id }) => html`<option value=${id} key=${id} selected=${id === value}>${id}</option>`)}
    </select></label
  >`
}

/** A field to search with. @param {{ text: string, onText: (text: string) => void, label?: string, placeholder?: string, grow?: boolean }} props */
export function SearchField({ text, onText, label = 'Search', placeholder, grow }) {
  return html`<label class=${grow ? 'field grow' : 'field'}
    ><span>${label}</span
    ><input
      type="search"
      value=${text}
      placeholder=${placeholder}
      onInput=${(/** @type {any} */ event) => onText(event.target.value)}
  /></label>`
}

/**
 * Chooses a step: a slider, buttons and the number.
 * @param {{ steps: number[], value: number | null, onPick: (step: number) => void }} props
 */
export function StepSlider({ steps, value, onPick }) {
  if (steps.length === 0) return null
  const found = value === null ? -1 : steps.indexOf(value)
  const at = found < 0 ? nearest(steps, value ?? steps[steps.length - 1]) : found
  const to = (/** @type {number} */ i) => onPick(steps[Math.min(steps.length - 1, Math.max(0, i))])
  return html`<div class="stepper" role="group" aria-label="Step">
    <button type="button" aria-label="Previous step" title="Previous step ([)" disabled=${at === 0} onClick=${() => to(at - 1)}>
      ‹
    </button>
    <label class="field grow"
      ><span>Step <span class="number">${steps[at]}</span></span>
      <input
        type="range"
        min="0"
        max=${steps.length - 1}
        value=${at}
        aria-valuetext=${`step ${steps[at]}`}
        onInput=${(/** @type {any} */ event) => to(Number(event.target.value))}
    /></label>
    <button
      type="button"
      aria-label="Next step"
      title="Next step (])"
      disabled=${at === steps.length - 1}
      onClick=${() => to(at + 1)}
    >
      ›
    </button>
  </div>`
}

/** Index of the number nearest to x in an ascending list; -1 if it is empty. @param {ArrayLike<number>} list @param {number} x */
export function nearest(list, x) {
  if (list.length === 0) return -1
  let [low, high] = [0, list.length - 1]
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (list[middle] <= x) low = middle
    else high = middle
  }
  return Math.abs(list[high] - x) < Math.abs(list[low] - x) ? high : low
}

/** A share as a bar with its number. @param {{ value: number | null, max?: number, text?: string }} props */
export function Bar({ value, max = 1, text }) {
  const part = value === null ? 0 : Math.min(1, Math.max(0, value / (max || 1)))
  return html`<span class="bar"
    ><span class="bar-fill" style=${{ width: `${(part * 100).toFixed(1)}%` }} aria-hidden="true"></span
    ><span class="bar-text">${text ?? num(value, 3)}</span></span
  >`
}

/** The current size of an element. @param {{ current: HTMLElement | null }} ref */
export function useSize(ref) {
  const [size, setSize] = useState({ width: 0, height: 0 })
  useEffect(() => {
    const element = ref.current
    if (element === null) return undefined
    const observer = new ResizeObserver(() => setSize({ width: element.clientWidth, height: element.clientHeight }))
    observer.observe(element)
    return () => observer.disconnect()
  }, [ref.current])
  return size
}

/** Whether a media query holds at present. @param {string} query */
export function useMedia(query) {
  const [holds, setHolds] = useState(() => matchMedia(query).matches)
  useEffect(() => {
    const list = matchMedia(query)
    const follow = () => setHolds(list.matches)
    list.addEventListener('change', follow)
    follow()
    return () => list.removeEventListener('change', follow)
  }, [query])
  return holds
}
