/** Rollouts of a run: search, a list of any length, and the one that is open. */
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { runPath, useApi, useEvents, useRested, useThrottled } from './api.js'
import { num, signed } from './format.js'
import { useKeys } from './keys.js'
import { useRollouts } from './pages.js'
import { RolloutDetail } from './rollout.js'
import { setParams } from './router.js'
import { visible } from './text.js'
import { Loading, Nothing, Problem, RunSelect, SearchField, html, useMedia, useSize } from './ui.js'

/** @typedef {import('../types.ts').RolloutSummary} RolloutSummary */
/** @typedef {import('../types.ts').RunDetails} RunDetails */

/** Pixels of a row: rollouts.css says the same. */
const ROW = 64
const SORTS = { '-step': 'newest first', step: 'oldest first', '-reward': 'best first', reward: 'worst first', '-tokens': 'longest first', tokens: 'shortest first', '-advantage': 'highest advantage', advantage: 'lowest advantage' } // prettier-ignore

/** @param {import('./app.js').ViewProps} props */
export function RolloutsView({ runs, run, params }) {
  const wide = useMedia('(min-width: 1000px)')
  const [version, setVersion] = useState(0)
  const [news, setNews] = useState(false)
  const { data: details, reload } = /** @type {{ data: RunDetails | undefined, reload: () => void }} */ (useApi(runPath(run.id)))
  const soon = useThrottled(() => setVersion((n) => n + 1), 2000)
  const stepsSoon = useThrottled(reload, 2000)
  useEvents((event) => {
    if (event.kind !== 'rollouts' || event.run !== run.id) return
    stepsSoon()
    // The list does not move while the user is further down in it: a button offers the new rows.
    if ((document.querySelector('.rollout-list')?.scrollTop ?? 0) < ROW && !params.at) soon()
    else setNews(true)
  })
  const text = useRested(params.text ?? '', 250)
  const query = {
    step: params.step ?? '', split: params.split ?? '', env: params.env ?? '', min_reward: params.min ?? '', max_reward: params.max ?? '', text,
    error: params.error ?? '', group: params.group ?? '', sort: params.sort ?? '-step',
  } // prettier-ignore
  const list = useRollouts(run.id, query, String(version))
  const [selected, setSelected] = useState(0)
  /** Counts keys that move: the selected row gets the focus, also where it was selected before. */
  const [moves, setMoves] = useState(0)
  const total = list.answer?.total ?? 0
  const at = params.at
  const parts = at?.split('.').map(Number)
  const place = parts?.length === 2 && parts.every(Number.isInteger) ? { step: parts[0], row: parts[1] } : null
  // The row that is open is the selected one, however it was opened: by its address, or as another answer of its group.
  const found = place ? list.indexOf(place) : -1
  useEffect(() => {
    if (found >= 0) setSelected(found)
  }, [found])
  // Back closes a rollout if none was open before it. One that opens by itself adds nothing to the history.
  const open = (/** @type {number} */ i, keep = !at) => {
    const row = list.rowAt(i)
    setSelected(i)
    if (row) setParams({ at: `${row.step}.${row.row}` }, keep)
  }
  const move = (/** @type {number} */ by) => {
    const next = Math.min(
      total - 1,
      Math.max(0, at || by < 0 ? selected + by : document.activeElement?.closest('.rollout-row') ? selected + by : selected),
    )
    if (next < 0) return
    list.need(next, next + 1)
    setSelected(next)
    setMoves(moves + 1)
    if (at || wide) open(next)
  }
  const close = () => setParams({ at: '' })
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => open(selected),
    ...(at && !wide ? { Escape: close } : {}),
  })
  useEffect(() => {
    setSelected(0)
    setNews(false)
  }, [JSON.stringify(query), run.id])
  // A wide page opens the first rollout by itself, so that there is something to read; after a search, once the results are those of the typed text.
  const isTyped = text === (params.text ?? '')
  useEffect(() => {
    if (wide && !at && isTyped && total > 0 && list.rowAt(0)) open(0, false)
  }, [wide, at, isTyped, total, list.rowAt(0)?.row, list.rowAt(0)?.step])

  const showList = wide || place === null
  return html`<div class=${wide ? 'split' : ''}>
    ${
      showList &&
      html`<section class="pane list-pane" aria-label="Rollouts found">
        <div class="title-row"><h1>Rollouts</h1></div>
        <${Search} runs=${runs} run=${run.id} params=${params} details=${details} />
        <${Problem} message=${list.error} />
        <p class="muted found" role="status">
          ${list.answer === null ? 'Searching\u2026' : `${total.toLocaleString('en')} found${list.answer.truncated ? `, ${list.searching ? 'still searching, so far' : 'searched'} from step ${list.answer.searchedFrom ?? 0} on` : ''}${params.group ? ` in group ${params.group}` : ''}`}
          ${params.group && html` <button type="button" onClick=${() => setParams({ group: '', at: '' })}>All groups</button>`}
          ${news && html` <button type="button" onClick=${() => (setNews(false), setVersion((n) => n + 1))}>Show new ones</button>`}
        </p>
        ${list.answer !== null && total === 0 && html`<${Nothing} title="No rollout matches">${details?.rolloutSteps.length === 0 ? 'This run has not written any yet.' : 'Remove a filter.'}<//>`}
        <${VirtualList} total=${total} list=${list} selected=${selected} moves=${moves} open=${open} current=${at} />
      </section>`
    }
    ${
      (place !== null || wide) &&
      html`<section class="pane detail-pane" aria-label="Rollout">
        ${
          place === null
            ? total > 0 && html`<${Loading} what="the rollout" />`
            : html`<${RolloutDetail} run=${run} step=${place.step} row=${place.row} back=${wide ? null : close} />`
        }
      </section>`
    }
  </div>`
}

/** @param {{ runs: import('../types.ts').RunSummary[], run: string, params: Record<string, string>, details?: RunDetails }} props */
function Search({ runs, run, params, details }) {
  const set = (/** @type {Record<string, string>} */ changes) => setParams({ ...changes, at: '', group: '' })
  const value = (/** @type {any} */ event) => event.target.value
  const more = ['split', 'env', 'min', 'max', 'error', 'sort'].filter((key) => params[key]).length
  return html`<form class="search" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <div class="row">
      <${RunSelect} runs=${runs} value=${run} onPick=${(/** @type {string} */ id) => set({ run: id, step: '', env: '' })} />
      <label class="field small"
        ><span>Step</span>
        <select value=${params.step ?? ''} onChange=${(/** @type {any} */ e) => set({ step: value(e) })}>
          <option value="">all</option>
          ${withOwn(details?.rolloutSteps.map(String).toReversed(), params.step).map((step) => html`<option key=${step} value=${step} selected=${step === params.step}>${step}</option>`)}
        </select></label
      >
    </div>
    <${SearchField}
      label="Text"
      text=${params.text ?? ''}
      onText=${(/** @type {string} */ text) => set({ text })}
      placeholder="in question, conversation or answer"
    />
    <details open=${more > 0}>
      <summary>More filters${more > 0 ? ` (${more})` : ''}</summary>
      <div class="row">
        <label class="field small"
          ><span>Split</span>
          <select value=${params.split ?? ''} onChange=${(/** @type {any} */ e) => set({ split: value(e) })}>
            <option value="">both</option>
            <option value="train">training</option>
            <option value="eval">evaluation</option>
          </select></label
        >
        <label class="field small"
          ><span>Environment</span>
          <select value=${params.env ?? ''} onChange=${(/** @type {any} */ e) => set({ env: value(e) })}>
            <option value="">all</option>
            ${withOwn(details?.summary.envs, params.env).map((env) => html`<option key=${env} value=${env} selected=${env === params.env}>${env}</option>`)}
          </select></label
        >
        <${NumberField} label="Reward from" value=${params.min ?? ''} pick=${(/** @type {string} */ min) => set({ min })} />
        <${NumberField} label="to" value=${params.max ?? ''} pick=${(/** @type {string} */ max) => set({ max })} />
        <label class="field small"
          ><span>Errors</span>
          <select value=${params.error ?? ''} onChange=${(/** @type {any} */ e) => set({ error: value(e) })}>
            <option value="">included</option>
            <option value="true">only these</option>
            <option value="false">left out</option>
          </select></label
        >
        <label class="field small"
          ><span>Order</span>
          <select
            value=${params.sort ?? '-step'}
            onChange=${(/** @type {any} */ e) => set({ sort: value(e) === '-step' ? '' : value(e) })}
          >
            ${Object.entries(SORTS).map(([name, title]) => html`<option key=${name} value=${name} selected=${name === params.sort}>${title}</option>`)}
          </select></label
        >
      </div>
    </details>
  </form>`
}

/**
 * The choices of a field and its current value, which an address may name although it is not a choice.
 * @param {string[] | undefined} list @param {string | undefined} own
 */
const withOwn = (list = [], own) => (own && !list.includes(own) ? [own, ...list] : list)

/**
 * A number field whose value takes effect on Enter, or when the field loses the focus. Until then it keeps its text, even if the page is redrawn.
 * @param {{ label: string, value: string, pick: (text: string) => void }} props
 */
function NumberField({ label, value, pick }) {
  const [text, setText] = useState(value)
  useEffect(() => setText(value), [value])
  return html`<label class="field small"
    ><span>${label}</span
    ><input
      type="number"
      step="any"
      value=${text}
      onInput=${(/** @type {any} */ e) => setText(e.target.value)}
      onChange=${(/** @type {any} */ e) => pick(e.target.value)}
  /></label>`
}

/**
 * The visible rows, and a few more above and below.
 * @param {{ total: number, list: ReturnType<typeof useRollouts>, selected: number, moves: number, open: (i: number) => void,
 *   current: string | undefined }} props
 */
function VirtualList({ total, list, selected, moves, open, current }) {
  const ref = useRef(/** @type {HTMLUListElement | null} */ (null))
  const [top, setTop] = useState(0)
  const { height } = useSize(ref)
  const first = Math.max(0, Math.floor(top / ROW) - 4)
  const end = Math.min(total, Math.ceil((top + (height || 600)) / ROW) + 4)
  useEffect(() => {
    if (total > 0) list.need(first, end)
  }, [first, end, total, list.need])
  // On a narrow page, returning from a rollout scrolls to its row.
  useLayoutEffect(() => {
    if (ref.current) ref.current.scrollTop = Math.max(0, (selected - 2) * ROW)
  }, [])
  const isFirst = useRef(true)
  useEffect(() => {
    const element = ref.current
    if (element === null || isFirst.current) return void (isFirst.current = false)
    if (selected * ROW < element.scrollTop) element.scrollTop = selected * ROW
    if ((selected + 1) * ROW > element.scrollTop + element.clientHeight)
      element.scrollTop = (selected + 1) * ROW - element.clientHeight
    // The row is drawn after the list has moved.
    requestAnimationFrame(() => {
      const inside =
        document.activeElement === document.body ||
        document.activeElement?.id === 'main' ||
        element.contains(document.activeElement)
      if (inside)
        /** @type {HTMLElement | null} */ (element.querySelector(`[data-i="${selected}"] a`))?.focus({ preventScroll: true })
    })
  }, [selected, moves])
  return html`<ul
    class="rollout-list"
    ref=${ref}
    aria-label="Rollouts"
    onScroll=${(/** @type {any} */ event) => setTop(event.target.scrollTop)}
  >
    ${total > 0 && html`<li class="spacer" aria-hidden="true" style=${{ height: `${total * ROW}px` }}></li>`}
    ${Array.from({ length: Math.max(0, end - first) }, (_, k) => first + k).map((i) => {
      const row = list.rowAt(i)
      return html`<li
        key=${i}
        data-i=${i}
        class="rollout-row"
        style=${{ top: `${i * ROW}px` }}
        aria-setsize=${total}
        aria-posinset=${i + 1}
      >
        ${row ? html`<${Row} row=${row} current=${current === `${row.step}.${row.row}`} open=${() => open(i)} />` : html`<span class="muted waiting">…</span>`}
      </li>`
    })}
  </ul>`
}

/** @param {{ row: RolloutSummary, current: boolean, open: () => void }} props */
function Row({ row, current, open }) {
  const { step, split, env, reward, advantage, tokens, turns, truncated, error, preview } = row
  return html`<a
    href="#"
    aria-current=${current ? 'true' : null}
    onClick=${(/** @type {Event} */ event) => {
      event.preventDefault()
      open()
    }}
  >
    <span class="row-facts">
      <span
        class=${reward === null ? 'reward-badge failed' : 'reward-badge'}
        style=${{ '--t': String(reward === null ? 0 : Math.min(1, Math.max(0, reward))) }}
        >${reward === null ? 'failed' : num(reward, 3)}</span
      >
      ${advantage !== null && html`<span class=${advantage > 0 ? 'plus' : advantage < 0 ? 'minus' : ''} title="advantage">${signed(advantage)}</span>`}
      <span class="muted">step ${step}${split === 'eval' ? ' eval' : ''}</span>
      <span class="muted"><bdi>${env}</bdi></span>
      <span class="muted">${tokens} tok${turns > 1 ? `, ${turns} turns` : ''}</span>
      ${truncated && html`<span class="flag" title="cut off">cut</span>`}
      ${error && html`<span class="flag bad" title=${error}>error</span>`}
    </span>
    <span class="preview"
      ><bdi>${visible(preview.question)}</bdi> <span class="arrow" aria-hidden="true">→</span>
      <bdi class="answer">${visible(error ?? preview.answer)}</bdi></span
    >
  </a>`
}
