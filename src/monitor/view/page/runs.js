/** All runs: status, step, reward, model, environments; chosen ones are compared. */
import { useEffect, useState } from 'preact/hooks'
import { ago, num, shortModel } from './format.js'
import { moveFocus, useKeys } from './keys.js'
import { hrefFrom, joinIds, setParams, splitIds } from './router.js'
import { hasWords } from './text.js'
import { Bar, Nothing, SearchField, Sparkline, Status, html } from './ui.js'

/** @typedef {import('../types.ts').RunSummary} RunSummary */

/** @type {Record<string, (run: RunSummary) => string | number>} */
const SORTS = {
  updated: (run) => -(run.updated ?? 0),
  name: (run) => run.id,
  reward: (run) => -(run.reward?.last ?? -Infinity),
  step: (run) => -run.step,
}

/** @param {import('./app.js').ViewProps} props */
export function RunsView({ runs, params }) {
  const [text, setText] = useState('')
  const sort = SORTS[params.sort] ? params.sort : 'updated'
  const ids = new Set(splitIds(params.runs))
  const fits = hasWords(text)
  const shown = runs
    .filter(({ id, name, model, envs, status }) => fits(`${id} ${name} ${model ?? ''} ${envs.join(' ')} ${status}`))
    .toSorted((a, b) => compare(SORTS[sort](a), SORTS[sort](b)))
  const choose = (/** @type {string} */ id) => {
    if (ids.has(id)) ids.delete(id)
    else ids.add(id)
    setParams({ runs: joinIds([...ids]) })
  }
  const all = shown.length > 0 && shown.every(({ id }) => ids.has(id))
  useKeys({
    j: () => moveFocus('.run-row a.run-name', 1),
    k: () => moveFocus('.run-row a.run-name', -1),
    x: () => {
      const id = document.activeElement?.closest('.run-row')?.getAttribute('data-id')
      if (id) choose(id)
    },
  })
  // Draws again from time to time, as the page says how long ago a run changed.
  const [, tick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 20_000)
    return () => clearInterval(timer)
  }, [])
  const running = runs.filter(({ status }) => status === 'running').length
  return html`<div class="title-row">
      <h1>Runs</h1>
      <p class="muted">${runs.length} in all${running > 0 ? `, ${running} running` : ''}</p>
    </div>
    <div class="toolbar">
      <${SearchField} text=${text} onText=${setText} placeholder="name, model, environment, status" grow />
      <label class="field"
        ><span>Sort by</span>
        <select value=${sort} onChange=${(/** @type {any} */ e) => setParams({ sort: e.target.value })}>
          ${Object.keys(SORTS).map((name) => html`<option key=${name} value=${name} selected=${name === sort}>${name}</option>`)}
        </select></label
      >
      <div class="actions" aria-label="Chosen runs" role="group">
        <span class="muted" role="status">${ids.size} chosen</span>
        <a class="button primary" href=${hrefFrom('curves')}>Curves</a>
        <a class="button" href=${hrefFrom('config')}>Differences</a>
      </div>
    </div>
    ${
      shown.length === 0
        ? html`<${Nothing} title="No run matches">Try other words.<//>`
        : html`<table class="runs" role="table">
            <thead role="rowgroup">
              <tr role="row">
                <th scope="col" role="columnheader" class="check">
                  <input
                    type="checkbox"
                    aria-label="Choose all shown"
                    checked=${all}
                    onChange=${() => setParams({ runs: all ? '' : joinIds(shown.map(({ id }) => id)) })}
                  />
                </th>
                <th scope="col" role="columnheader" class="name">Run</th>
                <th scope="col" role="columnheader">Status</th>
                <th scope="col" role="columnheader">Step</th>
                <th scope="col" role="columnheader">Reward</th>
                <th scope="col" role="columnheader" class="wide-only">Model</th>
                <th scope="col" role="columnheader" class="wide-only">Environments</th>
                <th scope="col" role="columnheader" class="wide-only">Changed</th>
              </tr>
            </thead>
            <tbody role="rowgroup">
              ${shown.map((run) => html`<${RunRow} key=${run.id} run=${run} checked=${ids.has(run.id)} choose=${choose} />`)}
            </tbody>
          </table>`
    }`
}

/** @param {{ run: RunSummary, checked: boolean, choose: (id: string) => void }} props */
function RunRow({ run, checked, choose }) {
  const { reward } = run
  const label = reward ? `reward from ${num(reward.first)} to ${num(reward.last)}, best ${num(reward.best)}` : 'no reward yet'
  const envs = run.envs.join(', ') || '\u2013'
  return html`<tr class=${checked ? 'run-row chosen' : 'run-row'} data-id=${run.id} role="row">
    <td role="cell" class="check">
      <input type="checkbox" aria-label=${`Choose ${run.id}`} checked=${checked} onChange=${() => choose(run.id)} />
    </td>
    <th scope="row" role="rowheader" class="name">
      <a class="run-name" href=${hrefFrom('curves', { runs: encodeURIComponent(run.id), run: run.id, step: '' })}
        ><bdi>${run.id}</bdi></a
      >
      <span class="narrow-only second"><bdi>${shortModel(run.model)}</bdi> · <bdi>${envs}</bdi> · ${ago(run.updated)}</span>
    </th>
    <td role="cell" class="status-cell"><${Status} status=${run.status} /></td>
    <td role="cell" class="number">
      ${
        run.max_steps === null
          ? num(run.step)
          : html`<${Bar}
              value=${run.step}
              max=${run.max_steps}
              text=${`${run.step.toLocaleString('en')} / ${run.max_steps.toLocaleString('en')}`}
            />`
      }
    </td>
    <td role="cell" class="reward" title=${label}>
      ${reward ? html`<${Sparkline} points=${reward.points} label=${label} /> <span class="number">${num(reward.last, 3)}</span>` : html`<span class="muted">–</span>`}
    </td>
    <td role="cell" class="wide-only" title=${run.model}><bdi>${shortModel(run.model)}</bdi></td>
    <td role="cell" class="wide-only"><bdi>${envs}</bdi></td>
    <td role="cell" class="wide-only nowrap">${ago(run.updated)}</td>
  </tr>`
}

/** @param {string | number} a @param {string | number} b */
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0)
