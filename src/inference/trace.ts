/** An engine step in a trace (common/trace.ts): when it was recorded, when its tokens had been read back, and how many requests ran or waited. */
import { tracer } from '../common/trace.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { Scheduler } from './scheduler.ts'
import type { StepRows } from './step-rows.ts'

/**
 * Called before a step is recorded. `sent` of the result is to be called when the step has been sent, with the read-back that it ends with.
 * Undefined if no trace is recorded.
 */
export function traceStep(
  gpu: Gpu,
  { running, waiting }: Pick<Scheduler, 'running' | 'waiting'>,
  { rows, prefillRows, sampled }: StepRows,
): { sent(reading: Promise<unknown> | undefined): void } | undefined {
  if (!tracer) return undefined
  // Commands that others recorded earlier are sent first, under their own name.
  gpu.flush()
  const active = tracer
  active.author = 'engine'
  active.counter('requests', { running: running.size, waiting: waiting.size })
  const flight = active.flight('engine', sampled.length > 0 ? 'decode step' : 'prompt step', {
    rows,
    'prompt rows': prefillRows,
    sampled: sampled.length,
  })
  const span = active.span('JavaScript', 'record engine step', { rows })
  const sent = (reading: Promise<unknown> | undefined): void => {
    span.end()
    active.author = 'trainer'
    const end = (): void => flight.end()
    if (reading) reading.then(end, end)
    else end()
  }
  return { sent }
}
