/**
 * One process holds a run folder.
 * - The lock is a file that says who holds it: process id, machine, and when that process started (so that a later process with the
 *   same id is not taken for it).
 * - A lock whose process is gone is taken over; a killed run can always be resumed on its machine.
 * - A lock of another machine cannot be checked from here, and counts as held.
 */
import { linkSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { UserError } from '../common/errors.ts'
import { isAlive } from '../common/processes.ts'

interface Holder {
  pid: number
  host: string
  /** The process's start in clock ticks since boot (Linux), else null. */
  started: string | null
  since: string
}

/** Releases the lock; may be called twice. */
export type ReleaseLock = () => void

/**
 * Takes the lock at `path`, or throws a UserError that names the holder.
 * @param folder what the lock is for, as the user knows it: used in the message
 */
export function acquireLock(path: string, folder: string): ReleaseLock {
  const mine = JSON.stringify({
    pid: process.pid,
    host: hostname(),
    started: startOf(process.pid),
    since: new Date().toISOString(),
  } satisfies Holder)
  for (let attempt = 0; attempt < 10; attempt++) {
    if (writeNew(path, mine)) {
      // A process that was killed in its turn (removeDead) left it. Whoever has it now finds our lock, and removes nothing.
      rmSync(turnOf(path), { force: true })
      return holdUntilExit(path, mine)
    }
    const text = readOrNull(path)
    if (text === null) continue
    const holder = parse(text)
    const problem = holder ? whyHeld(holder) : isRecent(path) ? 'another process that is just starting' : null
    if (problem) {
      // If its start time is unknown, a process of this machine may be another one that was given the same id.
      const unless = !holder ? '' : holder.host !== hostname() ? 'is gone' : holder.started === null ? 'is not dawn-rl' : ''
      throw new UserError(
        `${folder} is in use by ${problem}. Wait for it or stop it, or choose another run_name` +
          `${unless && `; if that process ${unless}, delete ${path}`}.`,
      )
    }
    removeDead(path, { dead: text, mine })
  }
  throw new UserError(`Other processes are opening ${folder} at the same time: try again, or choose another run_name.`)
}

/**
 * Creates the lock file with its text; false where it exists already. The text is written to a temporary file that is then linked to the name, so that
 * a kill in between leaves no empty lock; without links (FAT, some network drives) the file is created first and then filled.
 */
function writeNew(path: string, text: string): boolean {
  const aside = `${path}.${process.pid}.tmp`
  try {
    writeFileSync(aside, text)
    linkSync(aside, path)
    return true
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false
    if (!['EPERM', 'ENOSYS', 'ENOTSUP', 'EOPNOTSUPP', 'EINVAL', 'EACCES'].includes(codeOf(error))) throw error
  } finally {
    rmSync(aside, { force: true })
  }
  try {
    writeFileSync(path, text, { flag: 'wx' })
    return true
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false
    throw error
  }
}

const codeOf = (error: unknown) => (error as NodeJS.ErrnoException).code ?? ''

const turnOf = (path: string): string => `${path}.turn`

/**
 * Removes a dead lock. Only one process at a time may do so: otherwise a slow process that found the lock dead could remove the new lock of a faster
 * one, and two would hold the folder. Does nothing while another process has its turn. The turn of a killed process of this machine ends at once, and
 * any other one after a few seconds.
 */
function removeDead(path: string, { dead, mine }: { dead: string; mine: string }): void {
  const turn = turnOf(path)
  if (!writeNew(turn, mine)) {
    const holder = parse(readOrNull(turn) ?? '')
    if ((holder && whyHeld(holder) === null) || !isRecent(turn, true)) rmSync(turn, { force: true })
    return
  }
  // Several processes may have ended a dead turn, one of them the turn that another had taken meanwhile.
  const isMine = () => readOrNull(turn) === mine
  try {
    if (isMine() && readOrNull(path) === dead) rmSync(path, { force: true })
  } finally {
    if (isMine()) rmSync(turn, { force: true })
  }
}

function holdUntilExit(path: string, mine: string): ReleaseLock {
  const release = () => {
    process.off('exit', release)
    if (readOrNull(path) === mine) rmSync(path, { force: true })
  }
  process.once('exit', release)
  return release
}

/** The state of a lock, for readers: held by a living process (or by another machine's), left behind by a dead one, or absent. */
export function lockState(path: string): 'held' | 'dead' | 'none' {
  const text = readOrNull(path)
  if (text === null) return 'none'
  const holder = parse(text)
  return (holder ? whyHeld(holder) !== null : isRecent(path)) ? 'held' : 'dead'
}

function whyHeld(holder: Holder): string | null {
  if (holder.host !== hostname()) return `process ${holder.pid} on the machine ${holder.host} (since ${holder.since})`
  if (!isAlive(holder.pid)) return null
  const started = startOf(holder.pid)
  if (holder.started !== null && started !== null && holder.started !== started) return null
  return `process ${holder.pid} (since ${holder.since})`
}

/** Field 22 of /proc/PID/stat. The second field, the command in brackets, may itself contain brackets and spaces. */
function startOf(pid: number): string | null {
  const stat = process.platform === 'linux' ? readOrNull(`/proc/${pid}/stat`) : null
  return stat?.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? null
}

function parse(text: string): Holder | null {
  try {
    const value = JSON.parse(text) as Holder
    return Number.isInteger(value.pid) && value.pid > 0 && typeof value.host === 'string' ? value : null
  } catch {
    return null
  }
}

/**
 * Whether an unreadable lock, or a turn, is in use: a file older than a few seconds was left by a kill or a full disk.
 * @param absent the answer where the file is gone
 */
function isRecent(path: string, absent = false): boolean {
  try {
    return Date.now() - statSync(path).mtimeMs < 5000
  } catch {
    return absent
  }
}

function readOrNull(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}
