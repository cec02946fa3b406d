/** JavaScript's heap beside a device whose memory is the process's own. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/**
 * Keeps V8's young generation at the size that it starts with. It would grow to tens of megabytes within a few training steps, although nearly no
 * object lives longer than a step. A small one is swept more often and each time faster: runs are no slower, but programs that mostly make
 * and parse JSON are, by 7 to 25% (bench/LOG.md). A size that the user sets by a flag of Node's stays.
 */
export function keepYoungSpace(): void {
  const flags = `${process.execArgv.join(' ')} ${process.env.NODE_OPTIONS ?? ''}`
  if (!flags.includes('semi-space') && !flags.includes('semi_space')) setFlagsFromString('--semi-space-growth-factor=1')
}

type Collect = (options: { type: 'minor' | 'major' }) => void
let collect: Collect | undefined

/** V8's `gc` function, which Node hides unless it is started with --expose-gc. */
function collector(): Collect {
  if (!collect) {
    // The flag counts for contexts that are made after it.
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

/** A full collection, which takes 10 ms or more: for large arrays that are no longer in the young generation. */
export function collectAll(): void {
  collector()({ type: 'major' })
}

/** Bytes of arrays, outside of V8's heap, that were not collected yet. */
export const arrayBytes = (): number => process.memoryUsage().arrayBuffers
