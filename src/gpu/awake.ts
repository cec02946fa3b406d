/**
 * Keeps cores from halting while a software adapter computes in a virtual machine.
 *
 * The driver's threads synchronise after each dispatch, about 300 times per decode step, and sleep until the next. When a core goes idle, a virtual
 * machine halts it and gives it back to the host. It then wakes late, and may have to share time with what the host has scheduled meanwhile. There
 * are two ways to keep cores awake while waiting for the device: asking the system not to halt idle cores (awake-idle.ts), or, where this process may
 * not do that, a spinning thread per core at idle priority (awake-threads.ts). OpenMP's threads, and so PyTorch's, spin for 200 ms for the same
 * reason (KMP_BLOCKTIME).
 *
 * This is done only in a virtual machine under Linux, and threads are used only where no container's CPU limit counts their time. Because it is a
 * loss on some machines, a trial of some seconds decides whether it stays on (awake-trial.ts). The first way is on from the start, since every
 * machine measured so far gained from it, and the second only after the trial. `DAWN_RL_AWAKE=0` lets cores sleep, `=1` keeps them awake on any
 * Linux, and `=threads` does so by threads.
 */
import { cpus } from 'node:os'
import { readOrNothing } from '../common/cpu-time.ts'
import { keptByTheSystem } from './awake-idle.ts'
import { keptByThreads } from './awake-threads.ts'
import { AwakeTrial } from './awake-trial.ts'
import type { Help, Wait } from './cores.ts'

/** A way to keep cores awake. */
export interface Keeper {
  /** Called when a wait for the device begins: cores must be awake from now on. */
  hold(): void
  /** Called when the wait is over. When no wait is left, cores may sleep after a while. */
  release(): void
  /** Sets whether cores stay awake for a while after the last wait. */
  linger(on: boolean): void
  end(): void
}

/** Milliseconds that cores stay awake after a wait: the next work usually comes within that time. */
const lingered = 100

/** Largest number of cores for which they are kept awake: on larger machines a late core matters less, and keeping all awake costs more. */
const most = 8

let keeper: Keeper | undefined
/** The trial while it runs. */
let trial: AwakeTrial | undefined

/** Keeps cores awake during waits for a device that computes on them. */
export const awake: Help = {
  // Short commands do not need it.
  after: 200,
  start(): void {
    const setting = process.env.DAWN_RL_AWAKE
    if (setting !== 'threads' && wanted(setting) && cpus().length <= most) keeper = keptByTheSystem(lingered)
  },
  wait(): Wait {
    const turn = trial?.turn()
    if (turn) keeper?.linger(turn.awake)
    const held = (turn?.awake ?? true) ? keeper : undefined
    held?.hold()
    return {
      rest: () => held?.release(),
      took: (name, ms, work) => {
        const verdict = turn && trial?.took(turn, name, ms, work)
        if (verdict !== undefined) settle(verdict)
      },
    }
  },
}

/** Tests whether keeping cores awake is a gain on this machine; uses threads where the system cannot be asked. */
export const awakeTried: Help = {
  // Only in longer runs: the trial spends some seconds in the slower mode, and each thread takes 10 MB.
  after: 5000,
  start: () => void tryIt(),
}

async function tryIt(): Promise<void> {
  const setting = process.env.DAWN_RL_AWAKE
  const [begun, decided] = [keeper !== undefined, setting === '1' || setting === 'threads']
  if (!begun && wanted(setting) && (decided || !isLimited())) keeper = await keptByThreads(lingered, most)
  if (keeper && !decided) trial = new AwakeTrial(begun)
}

/** Ends the trial, and stops keeping cores awake if it was no gain. */
function settle(on: boolean): void {
  trial = undefined
  keeper?.linger(on)
  if (on) return
  keeper?.end()
  keeper = undefined
}

/** Whether cores may be kept awake on this machine: a virtual machine under Linux, unless `setting` says otherwise. */
export function wanted(setting = '', read = readOrNothing): boolean {
  if (process.platform !== 'linux' || setting === '0') return false
  return setting === '1' || setting === 'threads' || /^flags\s*:.*\bhypervisor\b/m.test(read('/proc/cpuinfo'))
}

/** Whether this process is in a container whose CPU limit also counts the time of spinning threads. */
export function isLimited(read = readOrNothing): boolean {
  const group = /^0::(.*)$/m.exec(read('/proc/self/cgroup'))?.[1] ?? '/'
  const folders = group.split('/').map((_, i, parts) => parts.slice(0, i + 1).join('/'))
  const limited = folders.some((folder) => /^\d/.test(read(`/sys/fs/cgroup${folder}/cpu.max`)))
  return limited || /^[1-9]/.test(read('/sys/fs/cgroup/cpu/cpu.cfs_quota_us'))
}
