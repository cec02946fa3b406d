/** Signals and errors that stop a long verb, and errors that must not stop it. */
import { messageWithPlace, strayError, UserError } from '../common/errors.ts'
import { isDeadOutput } from '../common/faults.ts'

/** The last words of a run without a step; its folder, which holds nothing, is removed. */
export const NEVER_BEGAN = 'Stopped before the first step was done: there is nothing to resume.'

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/**
 * The first Ctrl-C (or SIGTERM, or SIGHUP of a terminal that is closed) aborts `signal`; SIGINT or SIGTERM once more ends the process at
 * once, with code 130. A shell may send SIGHUP several times when its terminal closes, so a further SIGHUP has no effect.
 * @param now what happens before the process ends, as the printed line puts it
 */
export function stopOnSignal(now = 'the current step is finished and saved first'): {
  signal: AbortSignal
  stop(): void
  release(): void
} {
  const abort = new AbortController()
  const onSignal = (name: NodeJS.Signals) => {
    if (!abort.signal.aborted) {
      console.error(`\n${name}: ${now}; a second signal ends at once.`)
      abort.abort()
    } else if (name !== 'SIGHUP') process.exit(130)
  }
  for (const name of signals) process.on(name, onSignal)
  return {
    signal: abort.signal,
    stop: () => abort.abort(),
    release: () => signals.forEach((name) => process.off(name, onSignal)),
  }
}

/**
 * Until the returned function is called, a signal ends the process with code 130 through its 'exit' listeners, which remove what is temporary. Node's
 * own way calls none. Not while the user's code may compute without a pause: it would keep the signal from being heard.
 */
export function exitOnSignal(): () => void {
  const end = () => process.exit(130)
  for (const name of signals) process.on(name, end)
  return () => signals.forEach((name) => process.off(name, end))
}

/**
 * From here on, an unhandled rejection or exception (such as that of a promise that a reward does not await) no longer ends the process at once:
 * `stop` is called instead, so that what was learned is saved first.
 * @returns `release` ends this, and returns the first such error
 */
export function stopOnStray(stop: () => void): { release(): { error: unknown } | undefined } {
  let first: { error: unknown } | undefined
  const release = onStrays((error) => {
    if (first) return
    first = { error }
    const stray = strayError(error)
    const told = stray instanceof UserError ? stray.message : `An error in code that nothing awaits: ${messageWithPlace(error)}.`
    console.error(`\n${told} The current step is finished and saved first.`)
    stop()
  })
  return {
    release() {
      release()
      return first
    },
  }
}

/** Gives such errors to `onStray` alone, until the returned function is called. */
export function onStrays(onStray: (error: unknown) => void): () => void {
  const before = process.listeners('uncaughtException')
  process.removeAllListeners('uncaughtException').on('uncaughtException', onStray)
  return () => {
    process.off('uncaughtException', onStray)
    for (const listener of before) process.on('uncaughtException', listener)
  }
}

/** From here on, the process survives a closed output, or one on a full disk: its results are in the run folder. */
export function outliveReaders(): void {
  for (const stream of [process.stdout, process.stderr]) {
    // main.ts ends the verbs that only print (`| head`).
    stream.removeAllListeners('error')
    stream.on('error', (error) => {
      if (!isDeadOutput(error)) throw error
    })
  }
}
