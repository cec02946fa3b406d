/**
 * Keeps cores awake by asking the system. A process that writes 0 to /dev/cpu_dma_latency asks for wake-ups without latency: as long as it keeps the
 * file open, idle cores poll for work instead of halting (Linux, Documentation/power/pm_qos_interface.rst). A thread on such a core wakes within a
 * microsecond, without an interrupt. It takes about 13 microseconds on a halted core, and 7 on one where a thread spins (bench/LOG.md). Only root may
 * write to the file, unless the machine's owner allows others. The file is closed when the process ends, however it ends.
 */
import { closeSync, constants, openSync, writeSync } from 'node:fs'
import type { Keeper } from './awake.ts'

/** Latencies to ask for, in microseconds: 0 forbids halting; the other value is the system's default and has no effect. */
const atOnce = Int32Array.of(0)
const whenever = Int32Array.of(2_000_000_000)

/**
 * A keeper that uses /dev/cpu_dma_latency; undefined if this process may not write to it.
 * @param lingered milliseconds that cores stay awake after the last wait
 */
export function keptByTheSystem(lingered: number, path = '/dev/cpu_dma_latency'): Keeper | undefined {
  let file: number
  try {
    // Not 'w', which would create the file if it does not exist.
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
    // Results do not depend on it, so a failure is ignored.
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
