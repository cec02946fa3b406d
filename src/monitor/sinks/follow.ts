/**
 * Sinks follow metrics.jsonl: each reads new rows at its own pace, sends them, and records its position in `sinks/<name>.json` of the run
 * folder. So the run never waits for a sink, an unreachable sink catches up later, and a resumed run goes on from there.
 */
import { existsSync, mkdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { CLI } from '../../common/commands.ts'
import { messageOf } from '../../common/errors.ts'
import { writeFileAtomic } from '../../common/atomic.ts'
import { linesOf } from '../files.ts'
import { shellWord } from '../format.ts'
import type { MetricsRow } from '../metrics-writer.ts'
import { type Cursor, hash, placeIn, rowOf } from './cursor.ts'
import type { OpenSink, RunEnd, Sink, SinkRun } from './types.ts'

export interface FollowOptions {
  warn: (message: string) => void
  /** Milliseconds between two looks at the file. Default 2000. */
  everyMs?: number
  /** Milliseconds that a sink gets to finish when the run has ended. Default 15,000. */
  closeMs?: number
  /** Milliseconds without a row after which a sink is told that the run goes on, and then again. Default 30,000. */
  beatMs?: number
}

/** The most rows of one send. Halved after a failure, which may be due to size or speed, and doubled after a success. */
const ROWS = 200
/** Limit of one send. */
const SEND_MS = 30_000
/** Longest pause after failures. */
const PAUSE_MS = 60_000

/** Sends metrics.jsonl to one sink. */
export class Follower {
  readonly name: string
  readonly #run: SinkRun
  readonly #open: OpenSink
  readonly #options: FollowOptions
  readonly #file: string
  readonly #cursorFile: string
  #cursor: Cursor
  #rewound: boolean
  #sink: Sink | undefined
  #timer: NodeJS.Timeout | undefined
  #working: Promise<boolean> | undefined
  #failures = 0
  /** Whether it took rows since this process began. */
  #reached = false
  #rows = ROWS
  /** Whether the user was told that the sink is unreachable. */
  #away = false
  #closed = false
  /** When the sink was last told something. */
  #heard = 0

  constructor(name: string, run: SinkRun, open: OpenSink, options: FollowOptions) {
    this.name = name
    this.#run = run
    this.#open = open
    this.#options = options
    this.#file = join(run.path, 'metrics.jsonl')
    this.#cursorFile = join(run.path, 'sinks', `${name}.json`)
    ;({ cursor: this.#cursor, rewound: this.#rewound } = placeIn(this.#file, this.#cursorFile))
  }

  /** Begins to follow. */
  start(): void {
    this.#later(0)
  }

  /** Rows that were not sent yet. */
  get behind(): number {
    return rowsFrom(this.#file, this.#cursor.offset, Infinity).rows.length
  }

  /**
   * Sends the rest and tells the sink that the run has ended, unless it knows. Never throws; false where not everything was sent.
   * @param end how it ended; default: as its own process noted it
   */
  async close(end?: RunEnd): Promise<boolean> {
    const failed = end === undefined ? this.#cursor.failed === true : end === 'failed'
    this.#closed = true
    clearTimeout(this.#timer)
    const { closeMs = 15_000 } = this.#options
    const limit = AbortSignal.timeout(closeMs)
    const late = new Promise<false>((resolve) => limit.addEventListener('abort', () => resolve(false), { once: true }))
    const work = async (): Promise<boolean> => {
      await this.#working
      const isSent = await this.#again(limit, async () => {
        while (await this.#sendSome(limit)) if (limit.aborted) return false
        return this.behind === 0
      })
      if (!isSent) return false
      if (end === 'goes on' || this.#cursor.offset === 0 || this.#cursor.ended) return true
      let why: unknown
      const isEnded = await this.#again(limit, async () => {
        try {
          await this.#opened().finish(limit, { failed, time: this.#cursor.time })
          this.#note({ ended: true })
          return true
        } catch (error) {
          why = error
          return false
        }
      })
      if (!isEnded && !limit.aborted) notEnded(messageOf(why))
      return true
    }
    const notEnded = (why: string) =>
      this.#options.warn(`${this.name}: the run could not be marked as ended (${why}); all its metrics were sent.`)
    // Unlike AbortSignal.timeout, this timer keeps the process alive.
    const hold = setTimeout(() => {}, 60_000)
    const done = await Promise.race([work(), late])
    clearTimeout(hold)
    if (failed && !(done && this.#cursor.ended)) this.#note({ failed: true })
    if (done) return true
    const { behind } = this
    if (behind === 0) notEnded(`no answer in ${closeMs / 1000} s`)
    else
      this.#options.warn(
        `${this.name}: ${behind} rows of metrics.jsonl were not sent. \`${CLI} report ${shellWord(this.#run.path)} --sync ${this.name}\` sends them.`,
      )
    return behind === 0
  }

  /** Tries it up to four times, within 7 s, in a sink that took rows before: it may be restarting. */
  async #again(limit: AbortSignal, work: () => Promise<boolean>): Promise<boolean> {
    const { everyMs = 2000 } = this.#options
    for (const pause of [everyMs / 2, everyMs, everyMs * 2]) {
      if (await work()) return true
      if (!this.#reached || limit.aborted) return false
      await sleep(pause, undefined, { signal: limit }).catch(() => {})
    }
    return await work()
  }

  #opened(): Sink {
    const warn = (message: string) => this.#options.warn(`${this.name}: ${message}`)
    return (this.#sink ??= this.#open(this.#run, this.#cursor.state, this.#rewound, warn))
  }

  #save(cursor: Cursor): void {
    this.#cursor = cursor
    mkdirSync(join(this.#run.path, 'sinks'), { recursive: true })
    writeFileAtomic(this.#cursorFile, `${JSON.stringify(cursor)}\n`)
  }

  /** How the run ended, for whoever sends the rest later; not in a folder that has no rows, or is gone. */
  #note(end: Pick<Cursor, 'ended' | 'failed'>): void {
    if (!statSync(this.#file, { throwIfNoEntry: false })?.size) return
    try {
      this.#save({ ...this.#cursor, ...end })
    } catch {
      // The disk is full, which may be why the run failed.
    }
  }

  async #beat(): Promise<void> {
    const { beatMs = 30_000 } = this.#options
    if (!this.#reached || this.#closed || performance.now() - this.#heard < beatMs) return
    this.#heard = performance.now()
    // If it cannot be reached, the next row says so.
    await this.#sink?.beat?.(AbortSignal.timeout(SEND_MS)).catch(() => {})
  }

  #later(ms: number): void {
    this.#timer = setTimeout(() => {
      this.#working = this.#sendSome()
      void this.#working.then((more) => {
        const { everyMs = 2000 } = this.#options
        const pause = this.#failures === 0 ? (more ? 0 : everyMs) : Math.min(PAUSE_MS, everyMs * 2 ** this.#failures)
        if (!this.#closed) this.#later(pause)
      })
    }, ms)
    this.#timer.unref()
  }

  /** Sends the next rows. True where it should be called again at once: for more rows, or for fewer after a failure. Never throws. */
  async #sendSome(end?: AbortSignal): Promise<boolean> {
    let count = 0
    try {
      const { rows, offset, last } = rowsFrom(this.#file, this.#cursor.offset, this.#rows)
      count = rows.length
      if (count === 0) {
        await this.#beat()
        return false
      }
      const limit = AbortSignal.timeout(SEND_MS)
      const state = await this.#opened().send(rows, end ? AbortSignal.any([limit, end]) : limit)
      this.#rewound = false
      this.#reached = true
      this.#heard = performance.now()
      this.#save({ offset, line: last, time: rows.at(-1)!.time, state })
      const more = count === this.#rows
      this.#failures = 0
      this.#rows = Math.min(ROWS, this.#rows * 2)
      if (this.#away && rowsFrom(this.#file, offset, 1).rows.length === 0) {
        this.#away = false
        this.#options.warn(`${this.name}: it can be reached again, and has all metrics.`)
      }
      return more
    } catch (error) {
      this.#failures++
      this.#rows = Math.max(1, Math.floor(count / 2))
      if (!this.#away)
        this.#options.warn(
          `${this.name}: metrics cannot be sent for now (${messageOf(error)}). The run goes on; they are sent later.`,
        )
      this.#away = true
      return count > 1
    }
  }
}

/**
 * Up to `most` complete rows from a byte offset on, the offset after the last of them, and a hash of its line. No more of the file is read than that:
 * a sink that begins late has all of a long run before it.
 */
function rowsFrom(file: string, from: number, most: number): { rows: MetricsRow[]; offset: number; last: string } {
  const rows: MetricsRow[] = []
  let [offset, last] = [from, '']
  if (!existsSync(file)) return { rows, offset, last }
  let line: string | undefined
  for (const next of linesOf(file, from)) {
    // A line is complete if something comes after it.
    if (line !== undefined) {
      offset = next.at
      last = hash(line)
      const row = rowOf(line)
      if (row) rows.push(row)
      if (rows.length === most) break
    }
    line = next.line.toString()
  }
  return { rows, offset, last }
}
