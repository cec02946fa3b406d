/** What the keys do. */
import { useEffect, useRef } from 'preact/hooks'
import { html } from './ui.js'

/** @type {[string, [string, string][]][]} */
const OTHERS = [
  ['Lists', [['j, k', 'next, previous'], ['Enter', 'open'], ['x', 'choose the run, or unchoose it'], ['/', 'search'], ['Esc', 'leave the field, close']]],
  ['Curves', [['\u2190 \u2192', 'move the cursor of the curve that has the focus'], ['Enter', 'the rollouts of that step'], ['s', 'switch the axis: step, time, tokens'], ['l', 'logarithmic axis on or off']]],
  ['Rollouts', [['1 \u2026 5', 'what the colours of the tokens show'], ['\u2190 \u2192', 'next, previous token'], ['h, l', 'other answers of the same group'], ['m', 'messages or tokens']]],
  ['Timeline', [['[ ]', 'previous, next step'], ['+ \u2212 0', 'zoom in, out, all'], ['\u2190 \u2192', 'move left, right']]],
] // prettier-ignore

/** @param {{ views: { title: string, key: string }[], close: () => void }} props */
export function HelpDialog({ views, close }) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null))
  useEffect(() => ref.current?.showModal(), [])
  const parts = [['Go to', [...views.map(({ key, title }) => [`g ${key}`, title]), ['?', 'this list']]], ...OTHERS]
  return html`<dialog
    ref=${ref}
    aria-labelledby="help-title"
    onClose=${close}
    onClick=${(/** @type {any} */ event) => event.target === ref.current && close()}
  >
    <div class="help">
      <h2 id="help-title">Keys</h2>
      <div class="help-parts">
        ${parts.map(
          ([title, keys]) =>
            html`<section key=${title}>
              <h3>${title}</h3>
              <dl>
                ${
                  /** @type {[string, string][]} */ (keys).map(
                    ([key, does]) =>
                      html`<div key=${key}>
                        <dt><kbd>${key}</kbd></dt>
                        <dd>${does}</dd>
                      </div>`,
                  )
                }
              </dl>
            </section>`,
        )}
      </div>
      <button type="button" onClick=${() => ref.current?.close()}>Close</button>
    </div>
  </dialog>`
}
