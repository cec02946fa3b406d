/** The report at the end of a run: what was learned, where the files are, what to try next. */
import { formatNumber, oneLine, printable, wrap } from '../format.ts'
import { cut, textWidth } from './text-width.ts'

/** An evaluation in a few numbers. */
export interface EvalSummary {
  env: string
  /** Mean reward on held-out questions; null where every answer failed. */
  reward: number | null
  /** Number of answers in that mean. */
  rollouts: number
  /** Mean tokens of an answer. */
  tokens?: number
  /** Share of answers that were cut off. */
  truncated?: number
}

/** One held-out question with an answer from before and one from after training. */
export interface SamplePair {
  question: string
  expected?: string
  before: { text: string; reward: number | null }
  after: { text: string; reward: number | null }
}

export interface FinalReport {
  /** Absent where the run did not evaluate; both have the same environments. */
  before?: readonly EvalSummary[]
  after?: readonly EvalSummary[]
  samples: readonly SamplePair[]
  /** Paths of files, by description. */
  files: Readonly<Record<string, string>>
  /** What to try next, one sentence or command each. */
  next: readonly string[]
}

/** The report as text, at most `width` columns wide except for paths and commands, which users copy. */
export function finalReport(report: FinalReport, width = 100): string {
  const { before = [], after = [], samples, files, next } = report
  const lines: string[] = []
  if (after.length > 0) {
    lines.push('What was learned (held-out questions, which the training never saw)')
    for (const now of after)
      lines.push(
        ...change(
          before.find((e) => e.env === now.env),
          now,
        ),
      )
  }
  if (samples.length > 0) {
    lines.push('', ...sideBySide(samples, width))
  }
  if (Object.keys(files).length > 0) {
    const names = Object.keys(files)
    const pad = Math.max(...names.map((n) => n.length))
    lines.push('', 'Where the files are', ...names.map((n) => `  ${n.padEnd(pad)}  ${files[n]}`))
  }
  if (next.length > 0) lines.push('', 'What to try next', ...next.map((n) => `  - ${n}`))
  return lines.join('\n').trim()
}

function change(then: EvalSummary | undefined, now: EvalSummary): string[] {
  const head = `  ${now.env}: `
  const facts = [`${now.rollouts} answers`]
  if (now.tokens !== undefined) facts.push(`${arrow(then?.tokens, now.tokens, (v) => v.toFixed(0))} tokens an answer`)
  if (now.truncated !== undefined)
    facts.push(`${arrow(then?.truncated, now.truncated, (v) => `${Math.round(v * 100)}%`)} cut off`)
  if (!then) return [`${head}reward ${said(now.reward)} after training (${facts.join(', ')})`]
  const failed = [then.reward === null && 'before', now.reward === null && 'after'].filter(Boolean)
  const gain = now.reward === null || then.reward === null ? null : now.reward - then.reward
  const verdict =
    gain === null
      ? `all answers failed ${failed.join(' and ')}`
      : Math.abs(gain) < 0.005
        ? 'no change'
        : gain > 0
          ? `+${gain.toFixed(2)}`
          : `${gain.toFixed(2)}: it got worse, see "what to try next"`
  return [`${head}reward ${said(then.reward)} before, ${said(now.reward)} after (${verdict}; ${facts.join(', ')})`]
}

const said = (reward: number | null): string => reward?.toFixed(2) ?? 'none'

function arrow(then: number | undefined, now: number, show: (value: number) => string): string {
  return then === undefined ? show(now) : `${show(then)} -> ${show(now)}`
}

/** Two columns, before and after, under each question; one below the other where the terminal is too narrow for two. */
function sideBySide(samples: readonly SamplePair[], width: number): string[] {
  const lines: string[] = []
  const column = Math.floor((width - 7) / 2)
  for (const s of samples) {
    const expected = s.expected === undefined ? '' : `  (expected: ${cut(oneLine(s.expected, 40), 40)})`
    const room = Math.max(20, width - 2 - textWidth(expected))
    lines.push(`  ${cut(oneLine(s.question, room), room)}${expected}`)
    const cell = (name: string, side: SamplePair['before'], size: number) => [
      `${name}, reward ${side.reward === null ? 'none' : formatNumber(Number(side.reward.toFixed(2)))}`,
      ...wrap(printable(side.text).trim() || '(empty)', size).slice(0, 8),
    ]
    if (column < 24) {
      lines.push(
        ...cell('before', s.before, width - 6).map((l) => `    ${l}`),
        ...cell('after', s.after, width - 6).map((l) => `    ${l}`),
      )
    } else {
      const [left, right] = [cell('before', s.before, column), cell('after', s.after, column)]
      for (let i = 0; i < Math.max(left.length, right.length); i++) {
        const padding = ' '.repeat(Math.max(0, column - textWidth(left[i] ?? '')))
        lines.push(`    ${left[i] ?? ''}${padding} | ${right[i] ?? ''}`.trimEnd())
      }
    }
    lines.push('')
  }
  lines.pop()
  return lines
}
