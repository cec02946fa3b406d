/**
 * Keeps cores from halting while a software adapter computes in a virtual machine.
 *
 * The driver's threads meet after each dispatch, some 300 times a decode step, and sleep until the next. Where a core that sleeps is halted, a virtual
 * machine gives it back to its host: it wakes late, beside whatever ran there meanwhile. So the system is asked not to halt idle cores while the device is waited for (awake-idle.ts), or else a
 * thread a core does nothing there, at the priority of an idle machine (awake-threads.ts). OpenMP's threads, and so PyTorch's, spin for 200 ms for the same reason (KMP_BLOCKTIME).
 *
 * Only in a virtual machine under Linux; threads only where no limit of a container counts their time. On some machines it is a loss, so it is tried for some seconds (awake-trial.ts) and ends
 * where it is: what the system does without threads is on from the start, as all machines so far gain by it, and threads are tried before they are. `DAWN_RL_AWAKE=0` leaves cores to
 * sleep, `=1` keeps them awake on any Linux, `=threads` by threads.
 */
import { cpus } from 'node:os'
import { readOrNothing } from '../common/cpu-time.ts'
import { keptByTheSystem } from './awake-idle.ts'
import { keptByThreads } from './awake-threads.ts'
import { AwakeTrial } from './awake-trial.ts'
import type { Help, Wait } from './cores.ts'

/** A way to keep cores awake. */
export interface Keeper {
  /** A wait begins, in which cores are to be awake. */
  hold(): void
  /** It is over: from the last one on they may sleep, after a while. */
  release(): void
  /** Whether there is such a while. */
  linger(on: boolean): void
  end(): void
}

/** Milliseconds that they stay awake after the device is through: the next work comes soon, or not at all. */
const lingered = 100

/** Cores at most: of a machine of more a thread of the driver's that sleeps is a smaller part, and its owner pays for them all. */
const most = 8

let keeper: Keeper | undefined
/** While it is tried whether it is a gain. */
let trial: AwakeTrial | undefined

/** Keeps cores awake for a device that computes on them, while it is waited for. */
export const awake: Help = {
  // A short command needs none of it.
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

/** Tries whether that is a gain here; by threads where the system does not do it. */
export const awakeTried: Help = {
  // In the trial some seconds go the slower way, and threads are 10 MB each.
  after: 5000,
  start: () => void tryIt(),
}

async function tryIt(): Promise<void> {
  const setting = process.env.DAWN_RL_AWAKE
  const [begun, decided] = [keeper !== undefined, setting === '1' || setting === 'threads']
  if (!begun && wanted(setting) && (decided || !isLimited())) keeper = await keptByThreads(lingered, most)
  if (keeper && !decided) trial = new AwakeTrial(begun)
}

/** Ends the trial, and what keeps cores awake where that is no gain. */
function settle(on: boolean): void {
  trial = undefined
  keeper?.linger(on)
  if (on) return
  keeper?.end()
  keeper = undefined
}

/** Whether cores are worth keeping awake on this machine, by what the system says of it. */
export function wanted(setting = '', read = readOrNothing): boolean {
  if (process.platform !== 'linux' || setting === '0') return false
  return setting === '1' || setting === 'threads' || /^flags\s*:.*\bhypervisor\b/m.test(read('/proc/cpuinfo'))
}

/** Whether this process is in a container whose limit counts time that threads spin away like any other. */
export function isLimited(read = readOrNothing): boolean {
  const group = /^0::(.*)$/m.exec(read('/proc/self/cgroup'))?.[1] ?? '/'
  const folders = group.split('/').map((_, i, parts) => parts.slice(0, i + 1).join('/'))
  const limited = folders.some((folder) => /^\d/.test(read(`/sys/fs/cgroup${folder}/cpu.max`)))
  return limited || /^[1-9]/.test(read('/sys/fs/cgroup/cpu/cpu.cfs_quota_us'))
}
