/** Control of JavaScript's heap, for devices whose memory is that of the process. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/**
 * Keeps V8's young generation at its initial size. It would otherwise grow to tens of megabytes within a few training steps, although hardly any
 * object lives longer than a step. A small one is collected more often, but faster each time: runs are no slower, but programs that mostly create and
 * parse JSON are, by 7 to 25% (bench/LOG.md). A size that the user sets by a Node flag stays.
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
    // The flag affects only contexts created after it.
    setFlagsFromString('--expose-gc')
    collect = runInNewContext('gc') as Collect
    setFlagsFromString('--no-expose-gc')
  }
  return collect
}

/** Collects young objects now, which takes a millisecond: for a few objects that hold much memory outside V8's heap, which V8 does not count. */
export function collectYoung(): void {
  collector()({ type: 'minor' })
}

/** Runs a full collection, which takes 10 ms or more: for large arrays that are no longer in the young generation. */
export function collectAll(): void {
  collector()({ type: 'major' })
}

/** Bytes of array buffers, outside V8's heap, that have not been collected yet. */
export const arrayBytes = (): number => process.memoryUsage().arrayBuffers
