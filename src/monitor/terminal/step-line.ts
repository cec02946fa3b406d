/** The lines of a run, as pure functions of its metrics. The reward comes first: with a group baseline, the loss stays near 0. */
import type { Metrics } from '../../common/types.ts'
import { heldOutEnv, type ScoredRollout } from '../aggregate.ts'
import { formatCount, formatDuration, formatNumber, formatPercent, oneLine, printable, sparkline } from '../format.ts'
import { healthOf, LIMITS } from '../health.ts'
import { textWidth } from './text-width.ts'

export type Style = 'bold' | 'dim' | 'red' | 'yellow' | 'green' | 'cyan'
/** Colours a text, or returns it unchanged. */
export type Paint = (style: Style, text: string) => string
export const plain: Paint = (_style, text) => text

interface StepLine {
  step: number
  maxSteps: number
  metrics: Metrics
  /** `reward` of the steps so far, this one last. */
  rewards: readonly (number | null)[]
  /** Seconds of this step. */
  seconds?: number
  /** Seconds to the end of the run, where that is known. */
  eta?: number
}

/** One line, at the start of a run: which numbers matter, and their healthy ranges. */
export const legend =
  `legend: reward should rise | mixed (groups whose rewards differ) above ${formatPercent(LIMITS.solved_some.low)} | ` +
  `truncated under ${formatPercent(LIMITS['is_truncated/mean'].high)} | entropy not to 0 | ` +
  `kl (trainer against sampler) flat, under ${LIMITS['mismatch_kl/all/mean'].high} | grad without spikes | all of them: docs/metrics.md`

/**
 * `step 3/12 | reward 0.52 ▁▃▅ | mixed 75% | truncated 3% | 17 tokens | entropy 0.81 | kl 0.0012 | grad 0.43 | ... | 12.3s | eta 1m50s`
 * @param width the columns that it may take; without it, all of them
 */
export function stepLine(line: StepLine, paint: Paint = plain, width = Infinity): string {
  const { step, maxSteps, metrics: m } = line
  const parts: { rank: number; text: string }[] = []
  const add = (rank: number, text: string) => void (text && parts.push({ rank, text }))
  add(0, `step ${String(step).padStart(String(maxSteps).length)}/${maxSteps}`)
  const reward = m.reward == null ? 'n/a' : m.reward.toFixed(2)
  add(0, `${paint('bold', `reward ${reward}`)} ${paint('cyan', sparkline(line.rewards))}`.trimEnd())
  for (const [key, value] of Object.entries(m)) {
    const env = heldOutEnv(key)
    if (env !== undefined) add(1, paint('green', `held-out ${env} ${value == null ? 'n/a' : value.toFixed(2)}`))
  }
  const show = (rank: number, key: string, text: (value: number | null) => string) => {
    if (m[key] === undefined) return
    const health = healthOf(key, m[key])
    const said = text(m[key])
    add(rank, said && (health === 'bad' ? paint('red', said) : health === 'watch' ? paint('yellow', said) : said))
  }
  show(5, 'solved_some', (v) => `mixed ${formatPercent(v)}`)
  show(3, 'is_truncated/mean', (v) => `truncated ${formatPercent(v)}`)
  show(6, 'tokens/completion', (v) => `${v === null ? 'n/a' : Math.round(v)} tokens`)
  show(1, 'has_error/mean', (v) => (v ? `failed ${formatPercent(v)}` : ''))
  show(1, 'discarded/mean', (v) => (v === 1 ? paint('yellow', 'none trained on') : ''))
  show(4, 'entropy/all/mean', (v) => `entropy ${formatNumber(v)}`)
  const most = width === Infinity ? m['mismatch_kl/all/max'] : null
  show(4, 'mismatch_kl/all/mean', (v) => `kl ${formatNumber(v)}${v && most != null ? ` (max ${formatNumber(most)})` : ''}`)
  show(7, 'is_masked/mean', (v) => (v ? `clipped ${formatPercent(v)}` : ''))
  const skipped = m['optim/grad_norm'] === null
  show(skipped ? 1 : 6, 'optim/grad_norm', (v) => (v === null ? 'grad n/a: step skipped' : `grad ${formatNumber(v)}`))
  show(8, 'perf/generation_throughput', (v) => `sample ${formatCount(v)} tok/s`)
  show(8, 'perf/throughput', (v) => `train ${formatCount(v)} tok/s`)
  if (line.seconds !== undefined) add(2, formatDuration(line.seconds))
  if (line.eta !== undefined) add(9, `eta ${formatDuration(line.eta)}`)
  return fitted(parts, width)
}

/** The same of supervised training: `step  20/400 | loss 2.31 | entropy 2.1 | grad 0.43 | lr 0.003 | train 12k tok/s | 0.2s | eta 1m20s` */
export function supervisedLine(line: StepLine, paint: Paint = plain, width = Infinity): string {
  const { step, maxSteps, metrics: m } = line
  const norm = m['optim/grad_norm']
  const parts = [
    { rank: 0, text: `step ${String(step).padStart(String(maxSteps).length)}/${maxSteps}` },
    { rank: 0, text: paint('bold', `loss ${formatNumber(m['loss/mean'] ?? null)}`) },
    { rank: 4, text: `entropy ${formatNumber(m['entropy/all/mean'] ?? null)}` },
    { rank: 1, text: norm == null ? paint('red', 'grad n/a: step skipped') : `grad ${formatNumber(norm)}` },
    { rank: 6, text: `lr ${formatNumber(m['optim/lr'] ?? null)}` },
    { rank: 7, text: `train ${formatCount(m['perf/throughput'] ?? null)} tok/s` },
  ]
  if (line.seconds !== undefined) parts.push({ rank: 2, text: formatDuration(line.seconds) })
  if (line.eta !== undefined) parts.push({ rank: 9, text: `eta ${formatDuration(line.eta)}` })
  return fitted(parts, width)
}

/** Joins the parts on one line; where there is no room, parts with the highest rank are left out first. */
function fitted(all: readonly { rank: number; text: string }[], width: number): string {
  const parts = [...all]
  const whole = () => parts.map(({ text }) => text).join(' | ')
  while (textWidth(whole()) > width && parts.length > 2) {
    const least = parts.reduce((a, b) => (b.rank >= a.rank ? b : a))
    parts.splice(parts.indexOf(least), 1)
  }
  return whole()
}

/**
 * The line of an evaluation, with pass@k from k = 2 on: `eval before training | short-answers reward 0.28 | solved 12% | truncated 40% | 17 tokens
 * | 8.1s`
 */
export function evalLine(when: string, metrics: Metrics, seconds?: number, paint: Paint = plain): string {
  const parts = [`eval ${when}`]
  for (const [key, value] of Object.entries(metrics)) {
    const [, env, name] =
      /^eval\/(.+?)\/(avg@\d+|pass@\d+|is_truncated\/mean|tokens\/completion|has_error\/mean)$/.exec(key) ?? []
    if (env === undefined) continue
    if (name.startsWith('avg@')) parts.push(paint('bold', `${env} reward ${value == null ? 'n/a' : value.toFixed(2)}`))
    else if (name === 'pass@1') parts.push(`solved ${formatPercent(value)}`)
    else if (name.startsWith('pass@')) parts.push(`${name} ${value == null ? 'n/a' : value.toFixed(2)}`)
    else if (name === 'is_truncated/mean') parts.push(`truncated ${formatPercent(value)}`)
    else if (name === 'tokens/completion') parts.push(`${value === null ? 'n/a' : Math.round(value)} tokens`)
    else if (value) parts.push(paint('red', `failed ${formatPercent(value)}`))
  }
  if (seconds !== undefined) parts.push(formatDuration(seconds))
  return parts.join(' | ')
}

/**
 * Seconds to the end: the mean of the last ten step times, times the steps that are left. The first step of a process warms up
 * (pipelines compile, the pool fills) and is left out as soon as there is a second one.
 */
export function etaSeconds(stepSeconds: readonly number[], stepsLeft: number): number | undefined {
  const warm = stepSeconds.length > 1 ? stepSeconds.slice(1) : stepSeconds
  const recent = warm.slice(-10)
  if (recent.length === 0) return undefined
  return (recent.reduce((a, b) => a + b, 0) / recent.length) * stepsLeft
}

/** Up to `count` rollouts worth reading: the best, the worst, then those between, each answer text once. Failed ones come last. */
export function pickSamples(rollouts: readonly ScoredRollout[], count: number): ScoredRollout[] {
  const ranked = rollouts.toSorted((a, b) => (b.rollout.reward ?? -Infinity) - (a.rollout.reward ?? -Infinity))
  const scored = ranked.filter((r) => r.rollout.reward !== null)
  const rest = ranked.filter((r) => r.rollout.reward === null)
  const picked: ScoredRollout[] = []
  const seen = new Set<string>()
  while (picked.length < count && scored.length + rest.length > 0) {
    const next = scored.length === 0 ? rest.shift()! : picked.length % 2 === 0 ? scored.shift()! : scored.pop()!
    const text = JSON.stringify(next.rollout.completion)
    if (seen.has(text)) continue
    seen.add(text)
    picked.push(next)
  }
  return picked
}

/** One rollout in full: the end of its prompt, its completion, its rewards. Lines of text, ready to print. */
export function sampleLines(
  sample: ScoredRollout,
  limits: { prompt?: number; completion?: number } = {},
  paint: Paint = plain,
): string[] {
  const { rollout, advantage } = sample
  const prompt = oneLineTail(rollout.prompt.at(-1)?.content ?? '', limits.prompt ?? 200)
  const facts = [`reward ${rollout.reward === null ? 'none (failed)' : rollout.reward.toFixed(2)}`]
  if (typeof advantage === 'number') facts.push(`advantage ${advantage.toFixed(2)}`)
  else if (advantage?.length) {
    const all = Float64Array.from(advantage).toSorted()
    facts.push(`advantages ${all[0].toFixed(2)} to ${all.at(-1)!.toFixed(2)}`)
  }
  for (const [name, value] of Object.entries(rollout.metrics)) facts.push(`${name} ${formatNumber(value)}`)
  facts.push(rollout.isTruncated ? 'truncated' : rollout.stopCondition, `${rollout.completion_tokens.ids.length} tokens`)
  const lines = [`${paint('dim', '  prompt')}  ${prompt}`]
  const max = limits.completion ?? 1200
  for (const message of rollout.completion) {
    const calls = message.tool_calls?.map(({ function: { name, arguments: given } }) => `-> ${name}(${given})`) ?? []
    const text = printable([message.content, ...calls].filter((part) => part !== '').join('\n'))
    const shown = text.length > max ? `${text.slice(0, max)}… (${text.length - max} more characters on disk)` : text
    const head = message.role === 'assistant' ? '  answer' : `  ${message.role}`
    lines.push(`${paint('dim', head.padEnd(8))}  ${shown.replaceAll('\n', `\n${' '.repeat(10)}`)}`)
  }
  if (rollout.error !== null) lines.push(paint('red', `  error   ${oneLine(rollout.error, 300)}`))
  lines.push(paint('dim', `          ${printable(facts.join(', '))}`))
  return lines.flatMap((line) => line.split('\n'))
}

/** The end of a text on one line: the question is at the end of a prompt. */
function oneLineTail(text: string, width: number): string {
  const chars = Array.from(printable(text).replace(/\s+/g, ' ').trim())
  return chars.length <= width ? chars.join('') : `…${chars.slice(-(width - 1)).join('')}`
}
