/**
 * Cores kept awake by the system itself, where this process may ask for it: who writes 0 to /dev/cpu_dma_latency wants to be woken without delay, and as long as the file is open an idle core looks for
 * work in place of halting (Linux, Documentation/power/pm_qos_interface.rst). A thread on such a core is woken in a microsecond, without an interrupt, where from a halted core it takes some 13 and from
 * one on which a thread spins 7 (bench/LOG.md). Only root may, unless the machine's owner has given it to others; the file closes with the process, however that ends.
 */
import { closeSync, constants, openSync, writeSync } from 'node:fs'
import type { Keeper } from './awake.ts'

/** Microseconds within which to be woken: no halting, and the system's own word for no wish. */
const atOnce = Int32Array.of(0)
const whenever = Int32Array.of(2_000_000_000)

/** Undefined where this process may not. */
export function keptByTheSystem(lingered: number, path = '/dev/cpu_dma_latency'): Keeper | undefined {
  let file: number
  try {
    // Never made where it is missing, as by 'w'.
    file = openSync(path, constants.O_WRONLY)
  } catch {
    return undefined
  }
  let [holds, lingers, wished, ended] = [0, true, whenever, false]
  let timer: NodeJS.Timeout | undefined
  const wish = (what: typeof atOnce): void => {
    // Its number may be another file's by then.
    if (ended || what === wished) return
    wished = what
    // Nothing depends on it.
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
