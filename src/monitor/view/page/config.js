/** Configurations: the keys in which the chosen runs differ, and the whole config of one run, with a search. */
import { useState } from 'preact/hooks'
import { runPath, useApi } from './api.js'
import { joinIds, setParams } from './router.js'
import { hasWords } from './text.js'
import { Loading, Nothing, Problem, RunSelect, SearchField, Swatch, html } from './ui.js'

/** @typedef {import('../types.ts').CompareAnswer} CompareAnswer */
/** @typedef {import('../types.ts').RunDetails} RunDetails */

/** @param {import('./app.js').ViewProps} props */
export function CompareView({ runs, chosen, run }) {
  const several = chosen.length > 1
  const ids = chosen.map(({ id }) => id)
  const compared = /** @type {{ data: CompareAnswer | undefined, error: string | null, loading: boolean }} */ (
    useApi(several ? `/api/compare?runs=${encodeURIComponent(joinIds(ids))}` : null)
  )
  const details = /** @type {{ data: RunDetails | undefined, error: string | null, loading: boolean }} */ (
    useApi(runPath(run.id))
  )
  const [text, setText] = useState('')
  const fits = hasWords(text)
  const differing = compared.data?.keys.filter(({ key, values }) => fits(`${key} ${values.join(' ')}`)) ?? []
  const flat = Object.entries(details.data?.flat ?? {}).filter(([key, value]) => fits(`${key} ${value}`))
  const changed = new Set(compared.data?.keys.map(({ key }) => key))
  return html`<div class="title-row"><h1>Config</h1></div>
    <div class="toolbar">
      <${SearchField} text=${text} onText=${setText} placeholder="a key or a value" grow />
      <${RunSelect}
        runs=${runs}
        value=${run.id}
        label="Whole config of"
        onPick=${(/** @type {string} */ id) => setParams({ run: id })}
      />
    </div>
    <${Problem} message=${compared.error} /><${Problem} message=${details.error} />
    <section aria-labelledby="differences">
      <h2 id="differences">Differences</h2>
      ${!several && html`<p class="muted">Choose two or more runs in the list of runs to see how they differ.</p>`}
      ${several && compared.data === undefined && compared.loading && html`<${Loading} what="the configs" />`}
      ${several && compared.data && differing.length === 0 && html`<${Nothing} title=${text.trim() !== '' ? 'No difference matches' : 'These runs have the same configuration'} />`}
      ${
        differing.length > 0 &&
        html`<div class="scroll" tabindex="0" role="region" aria-label="Differences">
          <table class="differences">
            <thead>
              <tr>
                <th scope="col">Key</th>
                ${chosen.map(({ id }, i) => html`<th scope="col" key=${id}><${Swatch} i=${i} /><bdi>${id}</bdi></th>`)}
              </tr>
            </thead>
            <tbody>
              ${differing.map(
                ({ key, values }) =>
                  html`<tr key=${key}>
                    <th scope="row"><bdi>${key}</bdi></th>
                    ${values.map((value, i) => html`<td key=${i} class=${value === null ? 'muted' : ''}><bdi>${value === null ? 'not set' : String(value)}</bdi></td>`)}
                  </tr>`,
              )}
            </tbody>
          </table>
        </div>`
      }
    </section>
    <section aria-labelledby="whole">
      <h2 id="whole"><bdi>${run.id}</bdi></h2>
      ${details.data === undefined && details.loading && html`<${Loading} what="the config" />`}
      ${
        flat.length > 0 &&
        html`<dl class="flat">
          ${flat.map(
            ([key, value]) =>
              html`<div key=${key} class=${changed.has(key) ? 'changed' : ''}>
                <dt><bdi>${key}</bdi></dt>
                <dd><bdi>${value === null ? 'none' : String(value)}</bdi></dd>
              </div>`,
          )}
        </dl>`
      }
      ${details.data && flat.length === 0 && html`<${Nothing} title="No key matches" />`}
      ${run.has.report && html`<p class="muted"><a href=${`/report/${encodeURIComponent(run.id)}`} target="_blank" rel="noreferrer">report.html</a>, in a tab of its own</p>`}
      ${details.data && html`<${More} details=${details.data} />`}
    </section>`
}

/** @param {{ details: RunDetails }} props */
function More({ details }) {
  const { versions, gitDiff, config } = details
  return html`${
      versions &&
      html`<details class="raw">
        <summary>Versions</summary>
        <dl class="flat">
          ${Object.entries(versions).map(
            ([name, value]) =>
              html`<div key=${name}>
                <dt><bdi>${name}</bdi></dt>
                <dd><bdi>${value}</bdi></dd>
              </div>`,
          )}
        </dl>
      </details>`
    }
    ${
      gitDiff &&
      html`<details class="raw">
        <summary>Changes to the code that were not committed</summary>
        <pre tabindex="0" aria-label="Changes"><bdi>${gitDiff}</bdi></pre>
      </details>`
    }
    <details class="raw">
      <summary>config.toml</summary>
      <pre tabindex="0" aria-label="config.toml"><bdi>${config}</bdi></pre>
    </details>`
}
