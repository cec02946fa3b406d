/** Where the GPU's time goes, kernel by kernel. */
import { useState } from 'preact/hooks'
import { runPath, useApi } from './api.js'
import { num, percent } from './format.js'
import { setParams } from './router.js'
import { Bar, Loading, Nothing, Problem, RunSelect, SearchField, html } from './ui.js'

/** @typedef {import('../types.ts').KernelsAnswer} KernelsAnswer */
/** @typedef {import('../types.ts').KernelRow} KernelRow */

/** @type {{ key: keyof KernelRow, title: string }[]} */
const COLUMNS = [
  { key: 'kernel', title: 'Kernel' },
  { key: 'calls', title: 'Calls' },
  { key: 'ms', title: 'Time, ms' },
  { key: 'share', title: 'Share' },
  { key: 'gflops', title: 'GFLOP/s' },
  { key: 'gbs', title: 'GB/s' },
]

/** @param {import('./app.js').ViewProps} props */
export function KernelsView({ runs, run }) {
  const { data, error, loading } = /** @type {{ data: KernelsAnswer | undefined, error: string | null, loading: boolean }} */ (
    useApi(runPath(run.id, '/kernels'))
  )
  const [sort, setSort] = useState(/** @type {{ key: keyof KernelRow, down: boolean }} */ ({ key: 'ms', down: true }))
  const [text, setText] = useState('')
  const columns = COLUMNS.filter(
    ({ key }) => !['gflops', 'gbs'].includes(key) || data?.rows.some((row) => row[key] !== undefined),
  )
  const rows = (data?.rows ?? [])
    .filter(({ kernel }) => kernel.toLowerCase().includes(text.toLowerCase()))
    .toSorted((a, b) => order(a[sort.key], b[sort.key]) * (sort.down ? -1 : 1))
  const most = Math.max(1e-9, ...(data?.rows ?? []).map(({ share }) => share))
  const by = (/** @type {keyof KernelRow} */ key) => setSort({ key, down: sort.key === key ? !sort.down : key !== 'kernel' })
  return html`<div class="title-row">
      <h1>Kernels</h1>
      ${data?.source && html`<p class="muted">from the run's ${data.source}</p>`}
    </div>
    <div class="toolbar">
      <${RunSelect} runs=${runs} value=${run.id} onPick=${(/** @type {string} */ id) => setParams({ run: id })} />
      <${SearchField} text=${text} onText=${setText} />
    </div>
    <${Problem} message=${error} />
    ${data === undefined && loading && html`<${Loading} what="the kernels" />`}
    ${
      data &&
      data.source === null &&
      html`<${Nothing} title="This run has no trace of its kernels"
        >This command makes one: <code class="command">${data.command}</code><//
      >`
    }
    ${data?.notes.map((note) => html`<p class="muted note" key=${note}><bdi>${note}</bdi></p>`)}
    ${
      data &&
      data.source !== null &&
      html`<div class="scroll" tabindex="0" role="region" aria-label="Kernels">
        <table class="kernels">
          <thead>
            <tr>
              ${columns.map(
                ({ key, title }) =>
                  html`<th
                    key=${key}
                    scope="col"
                    aria-sort=${sort.key === key ? (sort.down ? 'descending' : 'ascending') : null}
                    class=${key === 'kernel' ? '' : 'number'}
                  >
                    <button type="button" class="plain" onClick=${() => by(key)}>
                      ${title}<span aria-hidden="true">${sort.key === key ? (sort.down ? ' \u25be' : ' \u25b4') : ''}</span>
                    </button>
                  </th>`,
              )}
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (row) =>
                html`<tr key=${row.kernel}>
                  ${columns.map(({ key }) => cell(row, key, most))}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>`
    }`
}

/** @param {KernelRow} row @param {keyof KernelRow} key @param {number} most */
function cell(row, key, most) {
  if (key === 'kernel') return html`<th scope="row"><bdi>${row.kernel}</bdi></th>`
  if (key === 'share') return html`<td class="number"><${Bar} value=${row.share} max=${most} text=${percent(row.share)} /></td>`
  return html`<td class="number">${num(row[key], key === 'calls' ? 6 : 4)}</td>`
}

/** @param {string | number | undefined} a @param {string | number | undefined} b */
function order(a, b) {
  if (typeof a === 'string' && typeof b === 'string') return a < b ? -1 : a > b ? 1 : 0
  return (typeof a === 'number' ? a : -Infinity) - (typeof b === 'number' ? b : -Infinity) || 0
}
