/** The file of a trace: Chrome's Trace Event format in its object form, an event a line, for ui.perfetto.dev and chrome://tracing. */
import { open, rm } from 'node:fs/promises'
import { moveTo } from '../common/renames.ts'
import type { TraceEvent } from '../common/trace.ts'
import { isReplaceable } from '../common/atomic.ts'

/** How many events are formatted in one turn of the event loop. */
const atOnce = 2000

/**
 * Writes events in order. The file replaces an earlier one only when it is complete.
 * @param about goes into the file's `otherData`, which the viewers show
 * @throws Error of the file system
 */
export async function writeTrace(path: string, events: readonly TraceEvent[], about: Record<string, string>): Promise<void> {
  const replaces = isReplaceable(path)
  const aside = replaces ? `${path}.${process.pid}.tmp` : path
  try {
    await writeEvents(aside, events, about)
    if (replaces) await moveTo(aside, path)
  } catch (error) {
    if (replaces) await rm(aside, { force: true })
    throw error
  }
}

async function writeEvents(path: string, events: readonly TraceEvent[], about: Record<string, string>): Promise<void> {
  await using file = await open(path, 'w')
  await file.write(`{"displayTimeUnit":"ms","otherData":${JSON.stringify(about)},"traceEvents":[\n`)
  for (let first = 0; first < events.length; first += atOnce) {
    const lines = events.slice(first, first + atOnce).map((event) => JSON.stringify(event, rounded))
    await file.write(`${lines.join(',\n')}${first + atOnce < events.length ? ',\n' : '\n'}`)
  }
  await file.write(']}\n')
}

/** Rounded to nanoseconds. */
const rounded = (_: string, value: unknown): unknown => (typeof value === 'number' ? Math.round(value * 1000) / 1000 : value)
