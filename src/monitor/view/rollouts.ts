/** Rollouts of a run: a list of summaries for each step's file, and a search from the newest step back. */
import { lstatSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import type { Message } from '../../common/types.ts'
import { reaches } from '../aggregate.ts'
import { callsOf, messagesOf, plain } from '../row-messages.ts'
import type { RolloutRow } from '../rollout-writer.ts'
import { Cache } from './cache.ts'
import { GrowingFile, linesOf, openFile, parseRow } from './lines.ts'
import type { Run } from './runs.ts'
import type { RolloutQuery, RolloutsAnswer, RolloutSummary } from './types.ts'

/** How many summaries are kept in memory, of files and again of searches: about 60 MB each. */
const mostSummaries = 100_000
const previewLength = 160

/** rollouts/step_N.jsonl: the offset of each line, and its summary; null for a line that is no row. */
class RolloutFile extends GrowingFile {
  readonly step: number
  /** Whether the file could be read the last time. */
  isRead = false
  starts: number[] = []
  summaries: (RolloutSummary | null)[] = []

  constructor(path: string, step: number) {
    super(path)
    this.step = step
  }

  protected reset(): void {
    this.starts = []
    this.summaries = []
  }

  protected take(line: Buffer | null, start: number): void {
    const row = parseRow<RolloutRow>(line)
    this.summaries.push(row && summaryOf(row, this.step, this.starts.length))
    this.starts.push(start)
  }
}

/** rollouts/step_N.tokens.jsonl: where each line begins. */
class TokensFile extends GrowingFile {
  starts: number[] = []

  protected reset(): void {
    this.starts = []
  }

  protected take(_: Buffer | null, start: number): void {
    this.starts.push(start)
  }
}

/** What one search has found so far, by step, each with the state of the file. */
class Findings {
  readonly steps = new Map<number, { stamp: string; matches: RolloutSummary[] }>()
  rows = 0
}

/** Reads, caches and searches the rollouts of all runs. */
export class Rollouts {
  readonly #most: number
  readonly #files: Cache<RolloutFile>
  readonly #tokens: Cache<TokensFile>
  /** By run and query. A run may have more rollouts than `#files` holds: a search asked again would read the first ones again, and never get further. */
  readonly #findings: Cache<Findings>

  #opened = 0

  /** @param most how many summaries are kept */
  constructor(most = mostSummaries) {
    this.#most = most
    this.#files = new Cache(most, (file) => file.summaries.length)
    this.#tokens = new Cache(most * 10, (file) => file.starts.length)
    this.#findings = new Cache(most, ({ rows, steps }) => rows + steps.size)
  }

  /** The current state of a step's file. */
  async file(run: Run, step: number): Promise<RolloutFile> {
    const path = run.file('rollouts', `step_${step}.jsonl`)
    const file = this.#files.get(path, () => new RolloutFile(path, step))
    file.isRead = await file.refresh()
    // Not on every call, as this visits all entries.
    if (++this.#opened % 100 === 0) this.#files.trim()
    return file
  }

  async tokens(run: Run, step: number): Promise<TokensFile> {
    const path = run.file('rollouts', `step_${step}.tokens.jsonl`)
    const file = this.#tokens.get(path, () => new TokensFile(path))
    await file.refresh()
    this.#tokens.trim()
    return file
  }

  /**
   * Searches the steps from the newest (or, sorted by `step`, the oldest) until all are done or `milliseconds` have passed; the first step is always
   * searched whole. What was found is kept, so the same query asked again gets further.
   */
  async search(run: Run, query: RolloutQuery, milliseconds = 2000): Promise<RolloutsAnswer> {
    const { sort = '-step', limit = 100, offset = 0, ...wanted } = query
    const findings = this.#findings.get(JSON.stringify([run.path, wanted]), () => new Findings())
    this.#findings.trim()
    const from = query.step ?? query.from ?? -Infinity
    const to = query.step ?? query.to ?? Infinity
    const all = (await run.rolloutSteps()).filter((step) => step >= from && step <= to)
    const steps = sort === 'step' ? all : all.toReversed()
    const end = performance.now() + milliseconds
    const matches: RolloutSummary[] = []
    let searched: number | null = null
    let truncated = false
    let breath = performance.now()
    for (const step of steps) {
      // Let other requests have a turn.
      if (performance.now() - breath > 20) {
        await turn()
        breath = performance.now()
      }
      if (searched !== null && performance.now() > end) {
        truncated = true
        break
      }
      // Pushed one by one: an evaluation may have more rollouts than a call can have arguments.
      for (const match of await this.#matches(run, step, query, findings)) matches.push(match)
      searched = Math.min(searched ?? Infinity, step)
    }
    const sorted = sort.endsWith('step') ? matches : matches.toSorted(orderOf(sort))
    return { total: matches.length, truncated, searchedFrom: searched, rows: sorted.slice(offset, offset + limit) }
  }

  async #matches(run: Run, step: number, query: RolloutQuery, findings: Findings): Promise<RolloutSummary[]> {
    const stamp = stampOf(run.file('rollouts', `step_${step}.jsonl`))
    const known = findings.steps.get(step)
    if (known?.stamp === stamp) return known.matches
    const file = await this.file(run, step)
    const found = file.summaries.filter((summary) => summary !== null).filter((summary) => fits(summary, query))
    const matches = query.text ? await withText(file, found, query.text) : found
    const rows = findings.rows - (findings.steps.get(step)?.matches.length ?? 0)
    findings.steps.delete(step)
    const isKept = file.isRead && rows + matches.length <= this.#most
    findings.rows = isKept ? rows + matches.length : rows
    if (isKept) findings.steps.set(step, { stamp, matches })
    return matches
  }
}

/** The state of a file, as text. */
function stampOf(path: string): string {
  const found = lstatSync(path, { throwIfNoEntry: false })
  return found ? `${found.ino}:${found.size}:${found.mtimeMs}` : ''
}

function fits(summary: RolloutSummary, query: RolloutQuery): boolean {
  const { split, env, group, error, min_reward: least, max_reward: most } = query
  const { reward } = summary
  return (
    (split === undefined || summary.split === split) &&
    (env === undefined || summary.env === env || summary.env.startsWith(`${env}/`)) &&
    (group === undefined || summary.group === group) &&
    (error === undefined || (summary.error !== null) === error) &&
    (least === undefined || (reward !== null && reaches(reward, least))) &&
    (most === undefined || (reward !== null && reaches(most, reward)))
  )
}

/** Those that contain the text in prompt, completion or answer. */
async function withText(source: RolloutFile, candidates: RolloutSummary[], text: string): Promise<RolloutSummary[]> {
  await using file = candidates.length > 0 ? await openFile(source.path) : null
  if (!file) return []
  const wanted = text.toLowerCase()
  // Searched in its JSON form first, so that most lines need not be parsed.
  const escaped = JSON.stringify(wanted).slice(1, -1)
  const byStart = new Map(candidates.map((summary) => [source.starts[summary.row], summary]))
  const found: RolloutSummary[] = []
  for await (const { line, start } of linesOf(file, 0, (await file.stat()).size)) {
    const summary = byStart.get(start)
    if (!summary || !line?.toString('utf8').toLowerCase().includes(escaped)) continue
    const row = parseRow<RolloutRow>(line)
    if (row && textOf(row).toLowerCase().includes(wanted)) found.push(summary)
  }
  return found
}

function orderOf(sort: NonNullable<RolloutQuery['sort']>): (a: RolloutSummary, b: RolloutSummary) => number {
  const key = sort.replace('-', '') as 'reward' | 'tokens' | 'advantage'
  const sign = sort.startsWith('-') ? -1 : 1
  // Rows without a value come last in either order.
  const rank = (summary: RolloutSummary): number => (summary[key] === null ? Infinity : sign * summary[key])
  return (a, b) => {
    const [x, y] = [rank(a), rank(b)]
    return x === y ? 0 : x - y
  }
}

const contentOf = ({ content }: Message): string => plain(content)

/** All that a search looks through. */
function textOf(row: RolloutRow): string {
  const messages = [...messagesOf(row.prompt), ...messagesOf(row.completion)]
  return [...messages.flatMap((message) => [contentOf(message), ...callsOf(message).flat()]), plain(row.answer)].join('\n')
}

const numberOr = <T>(value: unknown, other: T): number | T =>
  typeof value === 'number' && Number.isFinite(value) ? value : other

function summaryOf(row: RolloutRow, step: number, line: number): RolloutSummary {
  const completion = messagesOf(row.completion)
  const answers = completion.filter(({ role }) => role === 'assistant')
  const asked = messagesOf(row.prompt).findLast(({ role }) => role === 'user') ?? messagesOf(row.prompt).at(-1)
  return {
    step,
    row: line,
    split: row.split === 'eval' ? 'eval' : 'train',
    env: String(row.env ?? ''),
    group: String(row.group ?? ''),
    index: numberOr(row.index, 0),
    reward: numberOr(row.reward, null),
    advantage: meanOf(row.advantage),
    tokens: numberOr(row.token_usage?.output_tokens, 0),
    turns: Math.max(1, answers.length),
    truncated: row.is_truncated === true,
    error: errorOf(row.error),
    preview: {
      question: short(asked && contentOf(asked)),
      answer: short(answers.at(-1) ? contentOf(answers.at(-1)!) : completion.map(contentOf).join(' ')),
    },
  }
}

function meanOf(advantage: unknown): number | null {
  if (!Array.isArray(advantage)) return numberOr(advantage, null)
  return advantage.length > 0 ? advantage.reduce((sum: number, value) => sum + numberOr(value, 0), 0) / advantage.length : null
}

function errorOf(error: unknown): string | null {
  if (error === null || error === undefined) return null
  if (typeof error === 'string') return error.slice(0, 300)
  const { message, error: name } = error as { message?: unknown; error?: unknown }
  return (typeof message === 'string' ? message : typeof name === 'string' ? name : 'failed').slice(0, 300)
}

/** Cut to one line, not inside a surrogate pair, and copied, since a slice of a string keeps the whole string in memory. */
function short(text = ''): string {
  const line = text
    .slice(0, previewLength * 4)
    .replace(/\s+/g, ' ')
    .trim()
  const cut = line.length <= previewLength ? line : `${line.slice(0, previewLength - 1).replace(/[\ud800-\udbff]$/, '')}…`
  return Buffer.from(cut).toString()
}
