/** JavaScript's heap beside a device whose memory is the process's own. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/**
 * Leaves V8's space for young objects as large as it is. It would grow to tens of megabytes within a few training steps, for objects of which nearly none lives
 * longer than a step: small, it is swept more often and each time sooner, and a run is no slower; what mostly makes and parses JSON is, by 7 to 25% (bench/LOG.md). Who sets its size by a flag of node's has it so.
 */
export function keepYoungSpace(): void {
  const flags = `${process.execArgv.join(' ')} ${process.env.NODE_OPTIONS ?? ''}`
  if (!flags.includes('semi-space') && !flags.includes('semi_space')) setFlagsFromString('--semi-space-growth-factor=1')
}

let collect: ((options: { type: 'minor' }) => void) | undefined

/** Collects young objects now, which takes a millisecond: for a few that hold much memory outside of V8's heap, of which V8 knows nothing. */
export function collectYoung(): void {
  if (!collect) {
    // Contexts that are made from here on have it; those that there are have not.
    setFlagsFromString('--expose-gc')
    collect = runInNewContext('gc') as (options: { type: 'minor' }) => void
    setFlagsFromString('--no-expose-gc')
  }
  collect({ type: 'minor' })
}
