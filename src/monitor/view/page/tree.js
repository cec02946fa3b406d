/** A group as a tree: the task, its answers, and the turns of the open answer; a turn that does not continue the tokens before it is a branch. */
import { num, signed } from './format.js'
import { hrefFrom, readPlace } from './router.js'
import { placesOf } from './turns.js'
import { html } from './ui.js'

/** @typedef {import('../types.ts').ViewSibling} ViewSibling */
/** @typedef {import('../types.ts').ViewTurn} ViewTurn */

const ROW = 26
const COLUMN = 40
const LEFT = 22

/** The rewards of a group in a row. @param {{ siblings: ViewSibling[], at: { step: number, row: number } }} props */
export function GroupStrip({ siblings, at }) {
  const most = Math.max(1e-9, ...siblings.map(({ reward }) => Math.abs(reward ?? 0)))
  return html`<nav class="strip" aria-label="Answers of the group">
    ${siblings.map(({ step, row, index, reward, error }) => {
      const text = error ? 'failed' : reward === null ? 'no reward' : num(reward, 3)
      return html`<a
        key=${row}
        class=${error ? 'reward-badge failed' : 'reward-badge'}
        style=${{ '--t': String(Math.max(0, reward ?? 0) / most) }}
        href=${hrefFrom('rollouts', { ...filters(), at: `${step}.${row}` })}
        aria-current=${step === at.step && row === at.row ? 'true' : null}
        aria-label=${`Answer ${index + 1}: ${text}`}
        >${reward === null ? '\u2715' : num(reward, 2)}</a
      >`
    })}
  </nav>`
}

/** @param {{ siblings: ViewSibling[], turns: ViewTurn[], at: { step: number, row: number } }} props */
export function GroupTree({ siblings, turns, at }) {
  const places = turns.length > 1 ? placesOf(turns) : []
  const own = Math.max(1, ...places.map(({ line }) => line + 1))
  let y = ROW / 2
  const rows = siblings.map((sibling) => {
    const open = sibling.step === at.step && sibling.row === at.row
    const row = { sibling, open, y }
    y += ROW * (open ? own : 1)
    return row
  })
  const height = y - ROW / 2
  const columns = Math.max(1, ...places.map(({ column }) => column + 1))
  // The open answer's turns are drawn in its row; other rows only say how many turns they have.
  const width = LEFT + 26 + columns * COLUMN
  const most = Math.max(1e-9, ...siblings.map(({ reward }) => Math.abs(reward ?? 0)))
  return html`<div class="group">
    <div class="tree" style=${{ height: `${height}px` }}>
      <svg width=${width} height=${height} aria-hidden="true">
        ${rows.map(({ y: to, sibling }) => html`<path key=${sibling.row} class="edge" d=${`M8 ${ROW / 2} V${to - 5} q0 5 5 5 H${LEFT}`} />`)}
        <circle class="node root" cx="8" cy=${ROW / 2} r="4.5" />
        ${rows.map(({ y: cy, sibling, open }) => html`<circle key=${sibling.row} class=${`node${open ? ' open' : ''}${sibling.error ? ' bad' : ''}`} cx=${LEFT + 6} cy=${cy} r="5" />`)}
        ${rows
          .filter(({ open }) => open)
          .map(({ y: begin }) =>
            places.map(({ turn, column, line }) => {
              const parent = places.find((other) => other.turn.index === turn.parent)
              const [x0, y0] = parent ? [LEFT + 26 + parent.column * COLUMN + 8, begin + parent.line * ROW] : [LEFT + 6, begin]
              const [x1, y1] = [LEFT + 26 + column * COLUMN + 8, begin + line * ROW]
              return html`<path
                key=${turn.index}
                class=${`edge${turn.parent === null ? ' begins' : ''}`}
                d=${`M${x0} ${y0} C${x0 + 18} ${y0} ${x1 - 18} ${y1} ${x1} ${y1}`}
              />`
            }),
          )}
      </svg>
      ${rows.map(
        ({ sibling, open, y: middle }) =>
          html`<div
            key=${sibling.row}
            class=${open ? 'sibling open' : 'sibling'}
            style=${{ top: `${middle - ROW / 2}px`, left: `${LEFT + 16}px` }}
          >
            ${
              open &&
              places.map(
                ({ turn, column, line }) =>
                  html`<button
                    type="button"
                    key=${turn.index}
                    class=${`turn-node${turn.branch ? ' branch' : ''}`}
                    style=${{ left: `${10 + column * COLUMN - 3}px`, top: `${line * ROW + 2}px` }}
                    aria-label=${`Turn ${turn.index + 1}${turn.branch ? ', begins a sequence' : ''}`}
                    title=${`turn ${turn.index + 1}: ${turn.end - turn.sampledFirst} tokens${turn.logprob === null ? '' : `, mean logprob ${num(turn.logprob, 3)}`}`}
                    onClick=${() => document.getElementById(`turn-${turn.index}`)?.scrollIntoView({ block: 'start' })}
                  >
                    ${turn.index + 1}
                  </button>`,
              )
            }
            <a
              class="sibling-link"
              style=${open && places.length > 0 ? { marginLeft: `${columns * COLUMN + 10}px` } : null}
              href=${hrefFrom('rollouts', { ...filters(), at: `${sibling.step}.${sibling.row}` })}
              aria-current=${open ? 'true' : null}
            >
              <span class="index">${sibling.index + 1}</span>
              <span class="bar mini"
                ><span class="bar-fill" style=${{ width: `${(Math.max(0, sibling.reward ?? 0) / most) * 100}%` }}></span
              ></span>
              <span class="number">${sibling.reward === null ? 'failed' : num(sibling.reward, 3)}</span>
              ${sibling.advantage !== null && html`<span class=${`number ${sibling.advantage > 0 ? 'plus' : 'minus'}`}>${signed(sibling.advantage, 2)}</span>`}
              <span class="muted">${sibling.tokens} tok${sibling.turns > 1 ? `, ${sibling.turns} turns` : ''}</span>
              ${sibling.truncated && html`<span class="flag">cut</span>`}
              ${sibling.error && html`<span class="flag bad">error</span>`}
            </a>
          </div>`,
      )}
    </div>
  </div>`
}

/** The filters of the list beside, so that it stays as it is. */
function filters() {
  const { at: _at, ...kept } = readPlace().params
  return kept
}
