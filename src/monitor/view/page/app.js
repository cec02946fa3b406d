/** The page of `node cli.js view`: its frame, the list of runs that all views share, and which view is open. */
import { render } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { useApi, useEvents, useLive, useThrottled } from './api.js'
import { CompareView } from './config.js'
import { CurvesView } from './curves.js'
import { HelpDialog } from './help.js'
import { KernelsView } from './kernels.js'
import { useKeys } from './keys.js'
import { go, hrefFrom, splitIds, usePlace } from './router.js'
import { RolloutsView } from './rollouts.js'
import { RunsView } from './runs.js'
import { TimelineView } from './timeline.js'
import { Loading, Nothing, Problem, html } from './ui.js'

/** @typedef {import('../types.ts').RunSummary} RunSummary */
/** @typedef {{ runs: RunSummary[], chosen: RunSummary[], run: RunSummary, params: Record<string, string> }} ViewProps */

/** How many of the newest runs are shown if none was chosen. */
const NEWEST = 4

/** @type {{ name: string, title: string, key: string, view: (props: ViewProps) => any }[]} */
const VIEWS = [
  { name: 'runs', title: 'Runs', key: 'r', view: RunsView },
  { name: 'curves', title: 'Curves', key: 'c', view: CurvesView },
  { name: 'rollouts', title: 'Rollouts', key: 'o', view: RolloutsView },
  { name: 'timeline', title: 'Timeline', key: 't', view: TimelineView },
  { name: 'kernels', title: 'Kernels', key: 'k', view: KernelsView },
  { name: 'config', title: 'Config', key: 'f', view: CompareView },
]

function App() {
  const place = usePlace()
  const { data: runs, error, reload } = useApi('/api/runs')
  const [help, setHelp] = useState(false)
  const [said, setSaid] = useState('')
  const live = useLive()
  const main = useRef(/** @type {HTMLElement | null} */ (null))
  const soon = useThrottled(reload, 500)
  useEvents(soon)
  const listed =
    runs &&
    /** @type {RunSummary[]} */ (runs)
      .map(({ id, status }) => `${id} ${status}`)
      .toSorted()
      .join('\n')
  const before = useRef(listed)
  useEffect(() => {
    if (before.current !== undefined && before.current !== listed) setSaid('The list of runs has changed.')
    before.current = listed
  }, [listed])
  const view = VIEWS.find(({ name }) => name === place.view) ?? VIEWS[0]
  useKeys({
    ...Object.fromEntries(VIEWS.map(({ name, key }) => [`g ${key}`, () => go(hrefFrom(name))])),
    '?': () => setHelp(true),
    '/': () => /** @type {HTMLElement | null} */ (document.querySelector('main input[type=search]'))?.focus(),
  })
  const opened = useRef(false)
  useEffect(() => {
    document.title = `${view.title} \u00b7 dawn-rl`
    // A new view gets the focus, so that Tab starts at its beginning; on the first load the browser decides.
    if (opened.current) main.current?.focus({ preventScroll: true })
    opened.current = true
    scrollTo(0, 0)
  }, [view.name])

  const list = /** @type {RunSummary[]} */ (runs ?? [])
  const ids = splitIds(place.params.runs)
  const named = ids.flatMap((id) => list.find((run) => run.id === id) ?? [])
  const chosen = named.length > 0 ? named : list.slice(0, NEWEST)
  const run = list.find(({ id }) => id === place.params.run) ?? chosen[0]
  return html`<a
      class="skip"
      href="#main"
      onClick=${(/** @type {Event} */ event) =>
        (event.preventDefault(), main.current?.focus())}
      >Skip to the content</a
    >
    <header class="top">
      <a class="brand" href=${hrefFrom('runs')}><img src="./icon.svg" alt="" width="22" height="22" /> dawn-rl</a>
      <nav aria-label="Views">
        ${VIEWS.map(
          ({ name, title, key }) =>
            html`<a key=${name} href=${hrefFrom(name)} aria-current=${name === view.name ? 'page' : null} title=${`g ${key}`}
              >${title}</a
            >`,
        )}
      </nav>
      <button type="button" class="plain help-button" aria-label="Help: keys" title="Keys (?)" onClick=${() => setHelp(true)}>
        ?
      </button>
    </header>
    <main id="main" tabindex="-1" ref=${main} aria-label=${view.title}>
      <${Problem} message=${error} retry=${reload} />
      ${!error && runs === undefined && html`<${Loading} what="the runs" />`}
      ${runs !== undefined && list.length === 0 && html`<${Nothing} title="No run here yet">Start one (npm start): it will show up by itself.<//>`}
      ${run && html`<${view.view} runs=${list} chosen=${chosen} run=${run} params=${place.params} />`}
    </main>
    <footer class="bottom">
      <span class=${live ? 'live on' : 'live'}
        ><span aria-hidden="true">${live ? '\u25cf' : '\u25cb'}</span> ${live ? 'live' : 'not connected'}</span
      >
      <span>${list.length === 1 ? '1 run' : `${list.length} runs`}</span>
      <span class="wide-only">press <kbd>?</kbd> for the keys</span>
      <span class="hidden" role="status" aria-live="polite">${said}</span>
    </footer>
    ${help && html`<${HelpDialog} views=${VIEWS} close=${() => setHelp(false)} />`}`
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')))
