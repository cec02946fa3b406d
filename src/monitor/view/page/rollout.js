/** One rollout: its conversation as tokens or messages, its group, its turns, what it earned and why. */
import { useEffect, useState } from 'preact/hooks'
import { runPath, useApi } from './api.js'
import { count, duration, num, signed } from './format.js'
import { useKeys } from './keys.js'
import { hrefFrom, setParams } from './router.js'
import { ModeSwitch, Tokens, modesOf } from './tokens.js'
import { GroupStrip, GroupTree } from './tree.js'
import { Loading, Problem, html } from './ui.js'

/** @typedef {import('../types.ts').RolloutDetails} RolloutDetails */

/** @param {{ run: import('../types.ts').RunSummary, step: number, row: number, back: (() => void) | null }} props */
export function RolloutDetail({ run, step, row, back }) {
  const { data, error, loading } = /** @type {{ data: RolloutDetails | undefined, error: string | null, loading: boolean }} */ (
    useApi(runPath(run.id, `/rollouts/${step}/${row}`))
  )
  const [mode, setMode] = useState(() => localStorage.getItem('mode') ?? 'logprob')
  const [asMessages, setAsMessages] = useState(false)
  const pick = (/** @type {string} */ name) => {
    setMode(name)
    localStorage.setItem('mode', name)
  }
  const beside = (/** @type {number} */ by) => {
    const list = data?.siblings ?? []
    const at = list.findIndex((one) => one.step === step && one.row === row)
    const next = list[at + by]
    if (next) setParams({ at: `${next.step}.${next.row}` })
  }
  useKeys({ h: () => beside(-1), l: () => beside(1), m: () => setAsMessages((is) => !is) })
  useEffect(() => document.querySelector('.detail-pane')?.scrollTo(0, 0), [step, row])
  const top =
    back &&
    html`<h1 class="hidden">Rollout</h1>
      <button type="button" class="back" onClick=${back}>‹ All rollouts</button>`
  if (error !== null) return html`${top}<${Problem} message=${error} />`
  if (data === undefined) return html`${top}${loading && html`<${Loading} what="the rollout" />`}`
  const { rollout, tokens, turns, siblings, tokenizer } = data
  const modes = modesOf(tokens)
  const shown = modes.some(({ name }) => name === mode) ? mode : modes[0].name
  const messages = asMessages || tokens.length === 0
  return html`${top}
    <article class="rollout">
      <header>
        <h2>Step ${data.step}, <bdi>${rollout.env}</bdi>, example ${rollout.example_id}, answer ${rollout.index + 1}</h2>
        <${Facts} rollout=${rollout} run=${run.id} />
        ${
          rollout.error &&
          html`<div class="problem" role="group" aria-label="Error">
            <p>
              <strong><bdi>${rollout.error.error}</bdi></strong> <bdi>${rollout.error.message}</bdi>
            </p>
          </div>`
        }
      </header>
      <${Rewards} rollout=${rollout} />
      ${(siblings.length > 1 || turns.length > 1) && html`<${Group} siblings=${siblings} turns=${turns} at=${{ step: data.step, row: data.row }} />`}
      <section aria-label="Conversation">
        <div class="title-row">
          <h3>Conversation</h3>
          ${
            tokens.length > 0 &&
            html`<fieldset class="field segments">
              <legend class="hidden">Shown as</legend>
              <label title="key m"
                ><input type="radio" name="as" checked=${!messages} onChange=${() => setAsMessages(false)} /><span
                  >Tokens</span
                ></label
              >
              <label title="key m"
                ><input type="radio" name="as" checked=${messages} onChange=${() => setAsMessages(true)} /><span
                  >Messages</span
                ></label
              >
            </fieldset>`
          }
        </div>
        ${!tokenizer.ok && tokens.length > 0 && html`<p class="muted">Tokens are shown as ids: <bdi>${tokenizer.about}</bdi></p>`}
        ${
          messages
            ? html`<${Messages} list=${[...rollout.prompt, ...rollout.completion]} asked=${rollout.prompt.length} />`
            : html`<${ModeSwitch} modes=${modes} mode=${shown} pick=${pick} /><${Tokens}
                  tokens=${tokens}
                  turns=${turns}
                  mode=${shown}
                />`
        }
      </section>
      <details class="raw">
        <summary>Info and the whole row as JSON</summary>
        <pre tabindex="0" aria-label="Row as JSON"><bdi>${JSON.stringify(rollout, null, 2)}</bdi></pre>
      </details>
    </article>`
}

/** @param {{ siblings: RolloutDetails['siblings'], turns: RolloutDetails['turns'], at: { step: number, row: number } }} props */
function Group({ siblings, turns, at }) {
  return html`<section aria-label="Group">
    <div class="title-row group-title">
      <h3>${siblings.length > 1 ? `Group of ${siblings.length}` : count(turns.length, 'turn')}</h3>
      ${siblings.length > 1 && html`<${GroupStrip} siblings=${siblings} at=${at} />`}
    </div>
    <details open=${turns.length > 1}>
      <summary class="muted">${turns.length > 1 ? 'Answers and turns as a tree' : 'Answers as a tree'}</summary>
      <${GroupTree} siblings=${siblings} turns=${turns} at=${at} />
    </details>
  </section>`
}

/** @param {{ rollout: RolloutDetails['rollout'], run: string }} props */
function Facts({ rollout, run }) {
  const { reward, advantage, token_usage: usage, policy_version: version, timing } = rollout
  const mean = Array.isArray(advantage) ? advantage.reduce((a, b) => a + b, 0) / Math.max(1, advantage.length) : advantage
  /** @type {[string, any][]} */
  const facts = [
    ['reward', reward === null ? 'none' : num(reward)],
    ['advantage', mean === null ? 'not trained on' : signed(mean)],
    ['expected', rollout.answer === '' ? null : html`<bdi>${rollout.answer}</bdi>`],
    ['tokens', usage ? `${num(usage.input_tokens)} in, ${num(usage.output_tokens)} out` : null],
    ['ended by', html`<bdi>${rollout.stop_condition}</bdi>${rollout.is_truncated ? ' (cut off)' : ''}`],
    [
      'weights',
      version ? (version.min === version.max ? `version ${version.min}` : `versions ${version.min} to ${version.max}`) : null,
    ],
    ['time', timing ? `${duration(timing.generation_ms / 1000)} sampling, ${duration(timing.scoring_ms / 1000)} scoring` : null],
    ['split', rollout.split],
    [
      'group',
      html`<a href=${hrefFrom('rollouts', { run, step: rollout.step, group: rollout.group })}><bdi>${rollout.group}</bdi></a>`,
    ],
    ['timeline', html`<a href=${hrefFrom('timeline', { run, step: rollout.step })}>step ${rollout.step}</a>`],
  ]
  return html`<dl class="facts">
    ${facts.map(
      ([name, value]) =>
        value !== null &&
        html`<div key=${name}>
          <dt>${name}</dt>
          <dd>${value}</dd>
        </div>`,
    )}
  </dl>`
}

/** The parts of a reward. @param {{ rollout: RolloutDetails['rollout'] }} props */
function Rewards({ rollout }) {
  const parts = Object.entries(rollout.metrics ?? {})
  if (parts.length === 0) return null
  return html`<section class="measured" aria-label="Reward parts">
    <h3>Rewards and metrics</h3>
    <ul class="parts">
      ${parts.map(([name, value]) => html`<li key=${name}><bdi>${name}</bdi> <span class="number">${num(value)}</span></li>`)}
    </ul>
  </section>`
}

/** @param {{ list: import('../../../common/types.ts').Message[], asked: number }} props */
function Messages({ list, asked }) {
  return html`<ol class="messages">
    ${list.map(
      ({ role, content, tool_calls: calls, name }, i) =>
        html`<li
          key=${i}
          class=${`message role-${['system', 'user', 'assistant', 'tool'].includes(role) ? role : 'user'}${i < asked ? ' asked' : ''}`}
        >
          <h4><bdi>${role}${name ? ` ${name}` : ''}</bdi></h4>
          ${content !== '' && html`<p dir="auto">${textOf(content)}</p>`}
          ${calls?.map((call, k) => html`<pre key=${k} class="call"><bdi>${call.function?.name}(${call.function?.arguments})</bdi></pre>`)}
        </li>`,
    )}
  </ol>`
}

/** A message's content; parts of other makers' rows are shown as JSON. @param {unknown} content */
const textOf = (content) =>
  typeof content === 'string' ? content : content === null || content === undefined ? '' : JSON.stringify(content)
