/** Tokens, coloured by log-probability, ratio of trainer to sampler, advantage, loss mask or entropy. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { count, num, percent, signed } from './format.js'
import { useKeys } from './keys.js'
import { visible } from './text.js'
import { html } from './ui.js'

/** @typedef {import('../types.ts').ViewToken} ViewToken */
/** @typedef {import('../types.ts').ViewTurn} ViewTurn */
/** A token's colour: hue and strength, 0 to 1. @typedef {{ hue: 'warm' | 'cool' | 'plain', t: number } | null} Tint */

/** How many tokens are drawn at first; a button shows more. */
const MANY = 6000

/** @type {{ name: string, title: string, about: string, ends: [string, string, string?], tint: (token: ViewToken, scale: number) => Tint }[]} */
const MODES = [
  {
    name: 'logprob', title: 'Log-probability', about: 'how unlikely the token was for the sampler', ends: ['certain', 'unlikely'],
    tint: ({ logprob }) => (logprob === undefined ? null : { hue: 'warm', t: Math.min(1, -logprob / 5) }),
  },
  {
    name: 'ratio', title: 'Ratio', about: 'trainer probability / sampler probability', ends: ['\u00bd: less likely now', '1', '2: likelier now'],
    tint: ({ ratio }) => (ratio === undefined || !(ratio > 0) ? null : diverging(Math.log2(ratio))),
  },
  {
    name: 'advantage', title: 'Advantage', about: 'compared with the mean of the group', ends: ['below', '0', 'above'],
    tint: ({ advantage }, scale) => (advantage === undefined ? null : diverging(advantage / scale)),
  },
  {
    name: 'mask', title: 'Mask', about: 'which tokens count in the loss', ends: ['not trained on', 'trained on'],
    tint: ({ trained }) => (trained ? { hue: 'cool', t: 0.6 } : { hue: 'plain', t: 0 }),
  },
  {
    name: 'entropy', title: 'Entropy', about: 'how many other choices there were', ends: ['none', 'many'],
    tint: ({ entropy }) => (entropy === undefined ? null : { hue: 'warm', t: Math.min(1, entropy / 4) }),
  },
] // prettier-ignore

/** Below 0 warm, above it cool, full at 1. @param {number} x @returns {Tint} */
function diverging(x) {
  return { hue: x < 0 ? 'warm' : 'cool', t: Math.min(1, Math.abs(x)) }
}

/** Modes for which the tokens have numbers. @param {ViewToken[]} tokens */
export function modesOf(tokens) {
  const has = (/** @type {string} */ name) =>
    name === 'mask' || tokens.some((token) => /** @type {any} */ (token)[name] !== undefined)
  return MODES.filter(({ name }) => has(name))
}

/** The switch between the modes, and the legend of the current one. @param {{ modes: typeof MODES, mode: string, pick: (name: string) => void }} props */
export function ModeSwitch({ modes, mode, pick }) {
  const now = modes.find(({ name }) => name === mode) ?? modes[0]
  useKeys(Object.fromEntries(modes.map(({ name }, i) => [String(i + 1), () => pick(name)])))
  const diverges = now.ends.length === 3
  return html`<div class="mode-row">
    <fieldset class="field segments">
      <legend>Colour</legend>
      ${modes.map(
        ({ name, title }, i) =>
          html`<label key=${name} title=${`key ${i + 1}`}
            ><input type="radio" name="mode" checked=${name === now.name} onChange=${() => pick(name)} /><span
              >${title}</span
            ></label
          >`,
      )}
    </fieldset>
    <p class="mode-legend">
      <span>${now.ends[0]}</span
      ><span class=${`ramp ${now.name === 'mask' ? 'mask' : diverges ? 'diverging' : 'warm'}`} aria-hidden="true"></span>
      ${diverges && html`<span class="hidden">${now.ends[1]}, </span>`}<span>${now.ends[diverges ? 2 : 1]}</span>
      <span class="muted">${now.about}</span>
    </p>
  </div>`
}

/**
 * The conversation as tokens, turn by turn.
 * @param {{ tokens: ViewToken[], turns: ViewTurn[], mode: string }} props
 */
export function Tokens({ tokens, turns, mode }) {
  const [at, setAt] = useState(-1)
  const [most, setMost] = useState(MANY)
  const box = useRef(/** @type {HTMLDivElement | null} */ (null))
  const now = MODES.find(({ name }) => name === mode) ?? MODES[0]
  useEffect(() => setAt(-1), [tokens])
  // There may be thousands of tokens: they are rendered again when their colours change, not when the cursor moves.
  const pieces = useMemo(() => piecesOf(tokens, turns, now, most), [tokens, turns, now, most])
  useEffect(() => {
    const on = box.current?.querySelector(`[data-t="${at}"]`)
    on?.classList.add('on')
    return () => on?.classList.remove('on')
  }, [at, pieces])
  const show = (/** @type {EventTarget | null} */ target) => {
    const element = target instanceof Element ? target.closest('[data-t]') : null
    if (element) setAt(Number(element.getAttribute('data-t')))
  }
  const go = (/** @type {number} */ next) => {
    setAt(next)
    box.current?.querySelector(`[data-t="${next}"]`)?.scrollIntoView({ block: 'nearest' })
  }
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key]
    let next = at
    if (by !== undefined) next = at < 0 ? (turns[0]?.sampledFirst ?? 0) : at + by
    else if (event.key === 'Home') next = 0
    else if (event.key === 'End') next = tokens.length - 1
    else return
    event.preventDefault()
    event.stopPropagation()
    go(Math.min(Math.min(most, tokens.length) - 1, Math.max(0, next)))
  }
  return html`<div class="tokens-box">
    <div
      class=${`tokens mode-${now.name}`}
      ref=${box}
      tabindex="0"
      role="group"
      aria-label="Tokens; arrow keys move from one to the next"
      onKeyDown=${onKey}
      onFocus=${() => box.current?.matches(':focus-visible') && go(at < 0 ? (turns[0]?.sampledFirst ?? 0) : at)}
      onMouseOver=${(/** @type {MouseEvent} */ event) => show(event.target)}
      onClick=${(/** @type {MouseEvent} */ event) => show(event.target)}
    >
      ${pieces}
    </div>
    ${tokens.length > most && html`<button type="button" onClick=${() => setMost(most + MANY)}>Show ${Math.min(MANY, tokens.length - most)} more of ${tokens.length} tokens</button>`}
    <${TokenFacts} token=${tokens[at]} i=${at} />
  </div>`
}

/**
 * Each part of a turn that is of one kind, with its tokens.
 * @param {ViewToken[]} tokens @param {ViewTurn[]} turns @param {typeof MODES[number]} now @param {number} most
 */
function piecesOf(tokens, turns, now, most) {
  const scale = tokens.reduce((top, { advantage }) => Math.max(top, Math.abs(advantage ?? 0)), 1e-9)
  const whole = { index: 0, parent: null, branch: true, first: 0, sampledFirst: tokens.length, end: tokens.length, logprob: null }
  const parts = (turns.length > 0 ? turns : [whole]).flatMap((turn) => [
    ...runsOf(tokens, turn.first, turn.sampledFirst, turn),
    ...runsOf(tokens, turn.sampledFirst, turn.end, turn),
  ])
  return parts
    .filter(({ first }) => first < most)
    .map(
      ({ kind, first, end, turn }) =>
        html`<section key=${first} class=${`piece kind-${kind}`} id=${kind === 'sampled' ? `turn-${turn.index}` : null}>
          <h3>
            <span
              >${{ prompt: 'prompt', sampled: 'answer', env: 'environment', tool: 'tool' }[kind]}${turns.length > 1 ? ` \u00b7 turn ${turn.index + 1}` : ''}${turn.branch && turn.index > 0 && kind !== 'sampled' ? ' \u00b7 a new sequence' : ''}</span
            >
            <span class="muted"
              >${count(end - first, 'token')}${kind === 'sampled' && turn.logprob !== null ? `, mean logprob ${num(turn.logprob, 3)}` : ''}</span
            >
          </h3>
          <p class="token-text">
            ${tokens.slice(first, Math.min(end, most)).map((token, k) => html`<${Token} key=${first + k} token=${token} i=${first + k} tint=${now.tint(token, scale)} />`)}
          </p>
        </section>`,
    )
}

/** @param {{ token: ViewToken, i: number, tint: Tint }} props */
function Token({ token, i, tint }) {
  const classes = `tok${tint ? ` ${tint.hue}` : ''}${token.trained ? ' trained' : ''}`
  return html`<bdi class=${classes} data-t=${i} style=${tint ? { '--t': tint.t.toFixed(3) } : null}
    >${token.text === '' ? '\u2205' : visible(token.text)}</bdi
  >`
}

/** Parts of a range that are of one kind. @param {ViewToken[]} tokens @param {number} first @param {number} end @param {ViewTurn} turn */
function runsOf(tokens, first, end, turn) {
  /** @type {{ kind: import('../types.ts').TokenKind, first: number, end: number, turn: ViewTurn }[]} */
  const parts = []
  for (let i = first; i < Math.min(end, tokens.length); i++) {
    const last = parts.at(-1)
    if (last?.kind === tokens[i].kind) last.end = i + 1
    else parts.push({ kind: tokens[i].kind, first: i, end: i + 1, turn })
  }
  return parts
}

/** All that is known of one token. @param {{ token: ViewToken | undefined, i: number }} props */
function TokenFacts({ token, i }) {
  /** @type {[string, string][]} */
  const facts = token
    ? /** @type {[string, string | undefined][]} */ ([
        ['token', `${i}`],
        ['id', String(token.id)],
        ['text', JSON.stringify(token.text)],
        ['kind', token.trained ? 'trained on' : `${token.kind}, not trained on`],
        ['logprob', token.logprob === undefined ? undefined : `${num(token.logprob)} (${percent(Math.exp(token.logprob))})`],
        ['trainer logprob', token.trainer_logprob === undefined ? undefined : num(token.trainer_logprob)],
        ['ratio', token.ratio === undefined ? undefined : num(token.ratio, 5)],
        ['advantage', token.advantage === undefined ? undefined : signed(token.advantage, 4)],
        ['entropy', token.entropy === undefined ? undefined : num(token.entropy, 4)],
        ['version', token.version === undefined ? undefined : String(token.version)],
      ]).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]]))
    : []
  return html`<div class="token-facts" role="status" aria-live="polite" aria-label="Token">
    ${
      token
        ? html`<dl>
            ${facts.map(
              ([name, value]) =>
                html`<div key=${name}>
                  <dt>${name}</dt>
                  <dd><bdi>${visible(value)}</bdi></dd>
                </div>`,
            )}
          </dl>`
        : html`<p class="muted">Point at a token, or Tab to the text and use the arrow keys.</p>`
    }
  </div>`
}
