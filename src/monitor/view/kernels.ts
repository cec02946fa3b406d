/** The GPU's time by kernel: from the run's trace (trace.json, written by `--trace`), or from a bench report in the folder (bench.json). */
import { lstat } from 'node:fs/promises'
import { basename } from 'node:path'
import { AT, TRAIN } from '../../common/commands.ts'
import { gpuProcess, type TraceEvent } from '../../common/trace.ts'
import { shellWord } from '../format.ts'
import { linesOf, openFile, parseRow, readSmall } from './lines.ts'
import type { Run } from './runs.ts'
import type { KernelRow, KernelsAnswer } from './types.ts'

interface Kept {
  stamp: string
  answer: KernelsAnswer
}

/** Answers for the page of kernels; each run's answer is kept until its files change. */
export class Kernels {
  readonly #kept = new Map<string, Kept>()

  async answer(run: Run): Promise<KernelsAnswer> {
    const names = ['trace.json', 'bench.json', 'config.toml']
    const stamp = (await Promise.all(names.map((name) => stampOf(run.file(name))))).join(' ')
    const kept = this.#kept.get(run.id)
    if (kept?.stamp === stamp) return kept.answer
    const name = basename(run.path)
    const command = `${TRAIN} ${AT} ${shellWord(run.file('config.toml'))} --trainer.args.run_name ${shellWord(`${name}-trace`)} --trainer.args.max_steps 3 --trace`
    const answer = (await ofTrace(run, command)) ??
      (await ofBench(run, command)) ?? { source: null, rows: [], command, notes: [] }
    this.#kept.set(run.id, { stamp, answer })
    return answer
  }
}

async function stampOf(path: string): Promise<string> {
  return await lstat(path).then(({ ino, size, mtimeMs }) => `${ino}:${size}:${mtimeMs}`, () => '-') // prettier-ignore
}

/** Sums over the events of the trace's GPU tracks; the file has one event on each line. */
async function ofTrace(run: Run, command: string): Promise<KernelsAnswer | null> {
  await using file = await openFile(run.file('trace.json'))
  if (!file) return null
  const sums = new Map<string, { calls: number; us: number }>()
  const tracks = new Map<number, string>()
  let notes: string[] = []
  for await (const { line, start } of linesOf(file, 0, (await file.stat()).size)) {
    if (!line) continue
    if (start === 0) notes = notesOf(line)
    const event = parseRow<TraceEvent>(line.at(-1) === 44 ? line.subarray(0, -1) : line)
    if (event?.pid !== gpuProcess) continue
    if (event.ph === 'M' && event.name === 'thread_name') tracks.set(event.tid, String(event.args?.name))
    if (event.ph !== 'X' || tracks.get(event.tid) === 'submits' || typeof event.dur !== 'number') continue
    const sum = sums.get(event.name) ?? { calls: 0, us: 0 }
    sum.calls += typeof event.args?.dispatches === 'number' ? event.args.dispatches : 1
    sum.us += event.dur
    sums.set(event.name, sum)
  }
  const total = [...sums.values()].reduce((sum, { us }) => sum + us, 0)
  if (total === 0) return null
  const rows = [...sums].map(([kernel, { calls, us }]): KernelRow => ({ kernel, calls, ms: us / 1000, share: us / total }))
  return { source: 'trace', rows: rows.toSorted((a, b) => b.ms - a.ms), command, notes }
}

/** The trace's own description, from the first line, which begins the object that contains the events. */
function notesOf(line: Buffer): string[] {
  const head = parseRow<{ otherData?: Record<string, unknown> }>(Buffer.concat([line, Buffer.from(']}')]))
  const { steps, level, notes } = head?.otherData ?? {}
  const about = [
    steps,
    level === 'passes'
      ? 'Whole passes are timed, each with all its kernels (--trace without `passes` times every kernel).'
      : undefined,
    notes,
  ]
  return about.filter((text): text is string => typeof text === 'string' && text !== '')
}

interface BenchRow {
  name?: unknown
  shape?: unknown
  of?: unknown
  ms?: unknown
  gflops?: unknown
  gbs?: unknown
}

/** The rows of `node cli.js bench --out bench.json`: each kernel with its shape. */
async function ofBench(run: Run, command: string): Promise<KernelsAnswer | null> {
  const text = await readSmall(run.file('bench.json'))
  const report = text === null ? null : parseRow<{ bench?: unknown; rows?: unknown }>(Buffer.from(text))
  if (report?.bench !== 'dawn-rl' || !Array.isArray(report.rows)) return null
  const timed = (report.rows as BenchRow[]).filter((row) => typeof row?.ms === 'number' && typeof row.gbs === 'number')
  const total = timed.reduce((sum, { ms }) => sum + (ms as number), 0)
  const rows = timed.map((row): KernelRow => {
    const { ms, gflops, gbs } = row as { ms: number; gflops?: number; gbs: number }
    const kernel = [row.name, row.shape].filter((word) => typeof word === 'string').join(' ')
    return { kernel, calls: 1, ms, share: ms / total, ...(gflops && { gflops }), gbs }
  })
  const notes = [
    "From bench.json: each kernel alone, at the shape that stands beside it; 'share' is of this table, not of a step.",
  ]
  return { source: 'bench', rows: rows.toSorted((a, b) => b.ms - a.ms), command, notes }
}
