/** Where a sink is in metrics.jsonl: `sinks/<name>.json` of the run folder. */
import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeFileAtomic } from '../../common/atomic.ts'
import { isMetricsRow, type MetricsRow } from '../metrics-writer.ts'
import type { SinkState } from './types.ts'

/** A sink's position: bytes of metrics.jsonl that were sent, a hash and the time of the last line, and the sink's own state. */
export interface Cursor {
  offset: number
  line: string
  time: number
  state: SinkState
  /** Rows that were sent have been taken back since. */
  rewound?: true
  /** The run has failed; noted as its sink may not take the last rows now. */
  failed?: true
  /** The sink knows that the run has ended. */
  ended?: true
}

export const hash = (line: string): string => createHash('sha256').update(line).digest('hex').slice(0, 16)

function readCursor(file: string): Cursor | undefined {
  if (!existsSync(file)) return undefined
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Cursor
  } catch {
    return undefined
  }
}

/**
 * Reads a cursor and finds its place in the current file. If that is not the one that it was written for (`rewindCursors` was not called), new rows
 * are recognised by their time.
 */
export function placeIn(file: string, cursorFile: string): { cursor: Cursor; rewound: boolean } {
  const cursor = readCursor(cursorFile)
  if (!cursor) return { cursor: { offset: 0, line: '', time: 0, state: {} }, rewound: false }
  const text = existsSync(file) ? readFileSync(file, 'utf8') : ''
  const bytes = Buffer.from(text)
  if (bytes.length >= cursor.offset) {
    const before = bytes.subarray(0, cursor.offset).toString().trimEnd().split('\n').at(-1) ?? ''
    if (cursor.offset === 0 || hash(before) === cursor.line) return { cursor, rewound: cursor.rewound ?? false }
  }
  let offset = 0
  for (const line of text.split('\n').slice(0, -1)) {
    const row = rowOf(line)
    if (row && row.time > cursor.time) break
    offset += Buffer.byteLength(line) + 1
  }
  return { cursor: { ...cursor, offset }, rewound: true }
}

/**
 * After later rows were taken out of a run's metrics.jsonl, and before others are added: cursors beyond its end go there. Later, the new rows could only
 * be told from sent ones by their time, and the clock may have been set back.
 */
export function rewindCursors(runPath: string): void {
  const folder = join(runPath, 'sinks')
  const file = join(runPath, 'metrics.jsonl')
  if (!existsSync(folder) || !existsSync(file)) return
  const text = readFileSync(file, 'utf8')
  const offset = Buffer.byteLength(text)
  const line = hash(text.trimEnd().split('\n').at(-1) ?? '')
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    const cursor = name.endsWith('.json') ? readCursor(path) : undefined
    if (cursor && cursor.offset > offset) writeFileAtomic(path, `${JSON.stringify({ ...cursor, offset, line, rewound: true })}\n`)
  }
}

/** A line parsed as a row; undefined if it is not one: cut off by a kill, or edited. */
export function rowOf(line: string): MetricsRow | undefined {
  try {
    const row: unknown = JSON.parse(line)
    return isMetricsRow(row) ? row : undefined
  } catch {
    return undefined
  }
}
