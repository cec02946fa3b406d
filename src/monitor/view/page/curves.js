/** Learning curves of many runs together. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { get, runPath, useApi, useEvents, useThrottled } from './api.js'
import { useKeys } from './keys.js'
import { Chart } from './plot.js'
import { go, hrefFrom, joinIds, joinKeys, setParams, splitIds } from './router.js'
import { TOKENS, firstKeys, lineOf } from './series.js'
import { hasWords } from './text.js'
import { Loading, Nothing, Problem, SearchField, Swatch, html } from './ui.js'

/** @typedef {import('../types.ts').MetricsAnswer} MetricsAnswer */
/** @typedef {import('../types.ts').GlossaryEntry} GlossaryEntry */
/** @typedef {import('../types.ts').RunSummary} RunSummary */
/** @typedef {import('./series.js').Axis} Axis */

/** Most points of a curve: a chart has no more pixels. Thinning keeps the smallest and the largest values, so a smoothed curve asks for all steps. */
const POINTS = 1500
/** @type {Axis[]} */
const AXES = ['step', 'time', 'tokens']

/** @param {import('./app.js').ViewProps} props */
export function CurvesView({ runs, chosen, params }) {
  const ids = chosen.map(({ id }) => id)
  const [keys, keysError] = useKeysOf(ids)
  const wanted = params.keys ? splitIds(params.keys).filter((key) => keys.includes(key)) : firstKeys(keys)
  const { data: glossary } = useApi(wanted.length > 0 ? `/api/glossary?keys=${encodeURIComponent(joinKeys(wanted))}` : null)
  const axis = AXES.find((name) => name === params.x) ?? 'step'
  const log = params.log === '1'
  const smooth = Math.min(0.99, Math.max(0, Number(params.smooth) || 0))
  const [answers, error] = useMetrics(ids, wanted, smooth > 0)
  const [hidden, setHidden] = useState(/** @type {Set<string>} */ (new Set()))
  useKeys({
    s: () => setParams({ x: AXES[(AXES.indexOf(axis) + 1) % AXES.length] }),
    l: () => setParams({ log: log ? '' : '1' }),
    j: () => step(1),
    k: () => step(-1),
  })
  const lines = useMemo(
    () =>
      wanted.map((key) => ({
        key,
        lines: chosen.flatMap((run, i) => {
          const answer = answers.get(run.id)
          return answer && !hidden.has(run.id) ? [{ id: run.id, i, line: lineOf(answer, key, axis) }] : []
        }),
      })),
    [answers, wanted.join(), ids.join(), axis, hidden],
  )
  const open = (/** @type {string} */ run, /** @type {number} */ at) => go(hrefFrom('rollouts', { run, step: at }))
  const toggle = (/** @type {string} */ id) => {
    const next = new Set(hidden)
    if (!next.delete(id)) next.add(id)
    setHidden(next)
  }
  return html`<div class="title-row">
      <h1>Curves</h1>
      <div class="legend" role="group" aria-label="Runs">
        ${chosen.map(
          ({ id }, i) =>
            html`<button
              type="button"
              class="chip"
              key=${id}
              aria-pressed=${!hidden.has(id)}
              onClick=${() => toggle(id)}
              title="Show or hide"
            >
              <${Swatch} i=${i} /><bdi>${id}</bdi>
            </button>`,
        )}
        <${AddRun} runs=${runs} ids=${ids} />
      </div>
    </div>
    <div class="toolbar">
      <${Metrics} keys=${keys} wanted=${wanted} />
      <label class="field"
        ><span>Smoothing <span class="number">${smooth === 0 ? 'none' : smooth}</span></span
        ><input
          type="range"
          min="0"
          max="0.99"
          step="0.01"
          value=${smooth}
          onInput=${(/** @type {any} */ e) => setParams({ smooth: e.target.value === '0' ? '' : e.target.value })}
      /></label>
      <fieldset class="field segments">
        <legend>Along</legend>
        ${AXES.map(
          (name) =>
            html`<label key=${name}
              ><input
                type="radio"
                name="axis"
                checked=${name === axis}
                onChange=${() => setParams({ x: name === 'step' ? '' : name })}
              /><span>${name}</span></label
            >`,
        )}
      </fieldset>
      <label class="field check-field"
        ><input type="checkbox" checked=${log} onChange=${() => setParams({ log: log ? '' : '1' })} /><span
          >Logarithmic</span
        ></label
      >
    </div>
    <${Problem} message=${keysError ?? error} />
    ${keys.length === 0 && !keysError && (chosen.some(({ has }) => has.metrics) ? html`<${Loading} what="the metrics" />` : html`<${Nothing} title="No step is done yet">The curves begin with the first one.<//>`)}
    <div class="cards">
      ${lines.map(
        ({ key, lines: own }) =>
          html`<${Chart}
            key=${key}
            metric=${key}
            lines=${own}
            entry=${glossary?.[key]}
            axis=${axis}
            smooth=${key.startsWith('eval/') ? 0 : smooth}
            log=${log}
            sync=${`curves-${axis}`}
            open=${open}
          />`,
      )}
    </div>`
}

/** The focus to the next or previous chart. @param {number} by */
function step(by) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('.plot')])
  const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement))
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus()
}

/** All metrics of the runs, in the order of the first one. @param {string[]} ids @returns {[string[], string | null]} */
function useKeysOf(ids) {
  const [state, setState] = useState(/** @type {{ keys: string[], error: string | null }} */ ({ keys: [], error: null }))
  const [turn, setTurn] = useState(0)
  const soon = useThrottled(() => setTurn((n) => n + 1), 5000)
  useEvents((event) => event.kind === 'metrics' && event.run !== null && ids.includes(event.run) && soon())
  useEffect(() => {
    let gone = false
    Promise.all(ids.map((id) => get(runPath(id, '/metrics', { keys: 'time', points: 2 })))).then(
      (answers) => {
        const keys = [...new Set(/** @type {MetricsAnswer[]} */ (answers).flatMap((answer) => answer.keys))].filter(
          (key) => key !== 'step' && key !== 'time',
        )
        if (!gone) setState((was) => (was.error === null && was.keys.join() === keys.join() ? was : { keys, error: null }))
      },
      (error) => !gone && setState({ keys: [], error: error.message }),
    )
    return () => void (gone = true)
  }, [ids.join('\n'), turn])
  return [state.keys, state.error]
}

/**
 * The answers of the runs, asked for again as they grow.
 * @param {string[]} ids @param {string[]} keys @param {boolean} whole all steps, however many @returns {[Map<string, MetricsAnswer>, string | null]}
 */
function useMetrics(ids, keys, whole) {
  const [state, setState] = useState(
    /** @type {{ answers: Map<string, MetricsAnswer>, error: string | null }} */ ({ answers: new Map(), error: null }),
  )
  const grown = useRef(/** @type {Set<string>} */ (new Set()))
  const [turn, setTurn] = useState(0)
  const soon = useThrottled(() => setTurn((n) => n + 1), 1000)
  useEvents((event) => {
    if (event.kind !== 'metrics' || event.run === null || !ids.includes(event.run)) return
    grown.current.add(event.run)
    soon()
  })
  const query = keys.length === 0 ? null : joinKeys([...keys, 'time', TOKENS])
  const load = (/** @type {string[]} */ which) => {
    if (query === null) return undefined
    let gone = false
    Promise.all(
      which.map(
        async (id) =>
          /** @type {[string, MetricsAnswer]} */ ([
            id,
            await get(runPath(id, '/metrics', { keys: query, points: whole ? null : POINTS })),
          ]),
      ),
    ).then(
      (found) => !gone && setState((was) => ({ answers: new Map([...was.answers, ...found]), error: null })),
      (error) => !gone && setState((was) => ({ ...was, error: error.message })),
    )
    return () => void (gone = true)
  }
  useEffect(() => load(ids), [ids.join('\n'), query, whole])
  useEffect(() => {
    if (grown.current.size === 0) return undefined
    const which = [...grown.current].filter((id) => ids.includes(id))
    grown.current.clear()
    return load(which)
  }, [turn])
  return [state.answers, state.error]
}

/** @param {{ runs: RunSummary[], ids: string[] }} props */
function AddRun({ runs, ids }) {
  const others = runs.filter(({ id }) => !ids.includes(id))
  if (others.length === 0) return null
  return html`<label class="add-run"
    ><span class="hidden">Add a run</span>
    <select
      value=""
      onChange=${(/** @type {any} */ event) => event.target.value && setParams({ runs: joinIds([...ids, event.target.value]) })}
    >
      <option value="">+ run</option>
      ${others.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
    </select></label
  >`
}

/** The list of metrics with a search. @param {{ keys: string[], wanted: string[] }} props */
function Metrics({ keys, wanted }) {
  const [text, setText] = useState('')
  const found = keys.filter(hasWords(text))
  const set = (/** @type {string[]} */ next) => setParams({ keys: joinKeys(next) })
  const box = useRef(/** @type {HTMLDetailsElement | null} */ (null))
  useEffect(() => {
    const close = (/** @type {Event} */ event) => {
      if (box.current?.open && !box.current.contains(/** @type {Node} */ (event.target))) box.current.open = false
    }
    addEventListener('pointerdown', close)
    return () => removeEventListener('pointerdown', close)
  }, [])
  return html`<details
    class="popover"
    ref=${box}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
      if (event.key !== 'Escape' || !box.current?.open) return
      box.current.open = false
      box.current.querySelector('summary')?.focus()
      event.stopPropagation()
    }}
  >
    <summary class="button">Metrics <span class="muted">${wanted.length} of ${keys.length}</span></summary>
    <div class="popover-body">
      <${SearchField} text=${text} onText=${setText} placeholder="reward, time, eval …" />
      <div class="row">
        <button type="button" onClick=${() => setParams({ keys: '' })}>Default set</button>
        <button type="button" onClick=${() => set([...new Set([...wanted, ...found])])}>Add all found</button>
      </div>
      <ul class="metric-list">
        ${found.map(
          (key) =>
            html`<li key=${key}>
              <label
                ><input
                  type="checkbox"
                  checked=${wanted.includes(key)}
                  onChange=${() => set(wanted.includes(key) ? wanted.filter((one) => one !== key) : [...wanted, key])}
                /><bdi>${key}</bdi></label
              >
            </li>`,
        )}
      </ul>
      ${found.length === 0 && html`<p class="muted">No metric matches.</p>`}
    </div>
  </details>`
}
