/**
 * Cores kept awake by the system itself. A process that writes 0 to /dev/cpu_dma_latency asks to be woken without delay, and as long as it keeps
 * the file open, idle cores poll for work instead of halting (Linux, Documentation/power/pm_qos_interface.rst). A thread on such a core wakes
 * within a microsecond, without an interrupt; on a halted core it takes some 13, on one where a thread spins 7 (bench/LOG.md). Only root may
 * write there, unless the machine's owner allows others; the file closes with the process, however that ends.
 */
import { closeSync, constants, openSync, writeSync } from 'node:fs'
import type { Keeper } from './awake.ts'

/** Latency to ask for, in microseconds: 0 forbids halting; the other value is the system's default, which asks for nothing. */
const atOnce = Int32Array.of(0)
const whenever = Int32Array.of(2_000_000_000)

/** A keeper by this way; undefined where this process may not write to the file. */
export function keptByTheSystem(lingered: number, path = '/dev/cpu_dma_latency'): Keeper | undefined {
  let file: number
  try {
    // Not 'w', which would make the file where it is missing.
    file = openSync(path, constants.O_WRONLY)
  } catch {
    return undefined
  }
  let [holds, lingers, wished, ended] = [0, true, whenever, false]
  let timer: NodeJS.Timeout | undefined
  const wish = (what: typeof atOnce): void => {
    // After `end` the descriptor may be another file's.
    if (ended || what === wished) return
    wished = what
    // A failure changes no result.
    try {
      writeSync(file, what)
    } catch {}
  }
  const stop = (): void => {
    clearTimeout(timer)
    timer = undefined
  }
  return {
    hold(): void {
      holds++
      stop()
      wish(atOnce)
    },
    release(): void {
      if (--holds > 0) return
      if (lingers) timer = setTimeout(() => wish(whenever), lingered).unref()
      else wish(whenever)
    },
    linger(on: boolean): void {
      lingers = on
      if (on || holds > 0) return
      stop()
      wish(whenever)
    },
    end(): void {
      stop()
      if (!ended) closeSync(file)
      ended = true
    },
  }
}
