/**
 * Keys of a run in a terminal, without Enter. The terminal's line editing and echo are switched off, its signals stay as they are: Ctrl-C,
 * Ctrl-Z and Ctrl-\ reach the process from the terminal itself, also while JavaScript is busy. On Windows, where that cannot be had,
 * Ctrl-C comes as a key and is passed on.
 *
 * A job in the background must not touch its terminal (the system would stop it): keys are heard in the foreground only.
 * The terminal is as before after `close` and at every end of the process but SIGKILL, after which the shell mends it itself, or `stty sane` does.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/** Keys that may come at once from a hand. */
const LONGEST = 3

/** True when this process is in the foreground of its terminal, so that it may read from it and draw on it. */
export function inForeground(): boolean {
  if (process.platform === 'win32') return true
  try {
    if (process.platform === 'linux') {
      // Behind the name in brackets, which may hold anything: state, parent, group, session, terminal, the terminal's foreground group.
      const [, , group, , , front] = readFileSync('/proc/self/stat', 'utf8')
        .replace(/^.*\) /s, '')
        .split(' ')
      return group === front
    }
    const { stdout } = spawnSync('ps', ['-o', 'pgid=', '-o', 'tpgid=', '-p', String(process.pid)], { encoding: 'utf8' })
    const [group, front] = stdout.trim().split(/\s+/)
    return group !== undefined && group === front
  } catch {
    return false
  }
}

export class Keys {
  readonly #stream: NodeJS.ReadStream
  readonly #onKey: (key: string) => void
  // The terminal's settings before, as `stty -g` names them.
  #saved: string | undefined
  #listening = false

  /** Nothing is touched before `listen`. */
  constructor(stream: NodeJS.ReadStream, onKey: (key: string) => void) {
    this.#stream = stream
    this.#onKey = onKey
  }

  get listening(): boolean {
    return this.#listening
  }

  /** Begins to hear keys; to be called again when the process comes back from a stop. False where the terminal cannot be set so. */
  listen(): boolean {
    if (!this.#stream.isTTY || !this.#set()) return false
    if (this.#listening) return true
    this.#listening = true
    this.#stream.on('data', this.#hear).on('error', this.#gone)
    this.#stream.resume()
    // Keys keep no process alive.
    this.#stream.unref()
    process.on('exit', this.#restore)
    return true
  }

  /** Hears no keys any more. `restore` false: the terminal belongs to somebody else now, and is left as it is. */
  close(restore = true): void {
    if (!this.#listening) return
    this.#listening = false
    this.#stream.off('data', this.#hear).off('error', this.#gone)
    this.#stream.pause()
    process.off('exit', this.#restore)
    if (restore) this.#restore()
  }

  readonly #hear = (data: Buffer | string): void => {
    // Without arrow keys and the like; what is longer than a hand types at once was pasted.
    // oxlint-disable-next-line no-control-regex
    const text = String(data).replace(/\x1b(?:\[[\d;?]*.|O.|.)?/g, '')
    if (text.length > LONGEST) return
    for (const key of text) {
      if (key !== '\x03') this.#onKey(key)
      else if (!process.emit('SIGINT', 'SIGINT')) process.exit(130)
    }
  }

  /** A terminal that was closed: there are no keys any more, and the run goes on. */
  readonly #gone = (): void => this.close(false)

  #set(): boolean {
    if (process.platform === 'win32') {
      this.#stream.setRawMode(true)
      return true
    }
    this.#saved ??= stty(['-g'])?.trim()
    return this.#saved !== undefined && stty(['-icanon', '-echo', 'min', '1', 'time', '0']) !== undefined
  }

  readonly #restore = (): void => {
    if (process.platform === 'win32') this.#stream.setRawMode(false)
    else if (this.#saved !== undefined && inForeground()) stty([this.#saved])
  }
}

/** Runs stty on standard input: what it prints, or undefined where it fails. */
function stty(words: string[]): string | undefined {
  const { status, stdout } = spawnSync('stty', words, { stdio: ['inherit', 'pipe', 'ignore'], encoding: 'utf8', timeout: 5000 })
  return status === 0 ? stdout : undefined
}
