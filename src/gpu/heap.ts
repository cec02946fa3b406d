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

type Collect = (options: { type: 'minor' | 'major' }) => void
let collect: Collect | undefined

/** V8's own, which Node shows to nobody unless it is told to. */
function collector(): Collect {
  if (!collect) {
    // Contexts that are made from here on have it; those that there are have not.
    setFlagsFromString('--expose-gc')
    collect = runInNewContext('gc') as Collect
    setFlagsFromString('--no-expose-gc')
  }
  return collect
}

/** Collects young objects now, which takes a millisecond: for a few that hold much memory outside of V8's heap, of which V8 knows nothing. */
export function collectYoung(): void {
  collector()({ type: 'minor' })
}

/** Collects all objects that nobody holds, which takes 10 ms and more: for large arrays that are no longer young. */
export function collectAll(): void {
  collector()({ type: 'major' })
}

/** Bytes of arrays, outside of V8's heap, that were not collected yet. */
export const arrayBytes = (): number => process.memoryUsage().arrayBuffers
