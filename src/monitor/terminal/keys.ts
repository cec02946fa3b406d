/**
 * Keys of a run in a terminal, without Enter. The terminal's line editing and echo are switched off, its signals are not: Ctrl-C, Ctrl-Z
 * and Ctrl-\ are sent by the terminal itself, also while JavaScript is busy. On Windows, where this is impossible, Ctrl-C comes as a
 * key and is passed on.
 *
 * A background job must not read or set up its terminal (the system would stop it): keys are read in the foreground only. The terminal is restored by
 * `close` and at every end of the process but SIGKILL; after that the shell restores it itself, or `stty sane` does.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/** The most keys that a person types at once; more are a paste. */
const LONGEST = 3

/** True when this process is in the foreground of its terminal, so that it may read from it and draw on it. */
export function inForeground(): boolean {
  if (process.platform === 'win32') return true
  try {
    if (process.platform === 'linux') {
      // After the name in brackets, which may contain anything: state, parent, group, session, terminal, the terminal's foreground group.
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

/** Reads single keys from a terminal, and restores its settings. */
export class Keys {
  readonly #stream: NodeJS.ReadStream
  readonly #onKey: (key: string) => void
  // The terminal's earlier settings, as printed by `stty -g`.
  #saved: string | undefined
  #listening = false

  /** Changes nothing until `listen`. */
  constructor(stream: NodeJS.ReadStream, onKey: (key: string) => void) {
    this.#stream = stream
    this.#onKey = onKey
  }

  get listening(): boolean {
    return this.#listening
  }

  /** Starts reading keys; to be called again when the process continues after a stop. False where the terminal cannot be set up. */
  listen(): boolean {
    if (!this.#stream.isTTY || !this.#set()) return false
    if (this.#listening) return true
    this.#listening = true
    this.#stream.on('data', this.#hear).on('error', this.#gone)
    this.#stream.resume()
    // Reading keys must not keep the process alive.
    this.#stream.unref()
    process.on('exit', this.#restore)
    return true
  }

  /** Stops reading keys. `restore` false: another program has the terminal now, so its settings are left alone. */
  close(restore = true): void {
    if (!this.#listening) return
    this.#listening = false
    this.#stream.off('data', this.#hear).off('error', this.#gone)
    this.#stream.pause()
    process.off('exit', this.#restore)
    if (restore) this.#restore()
  }

  readonly #hear = (data: Buffer | string): void => {
    // Ignores arrow keys and the like, and pasted text.
    // oxlint-disable-next-line no-control-regex
    const text = String(data).replace(/\x1b(?:\[[\d;?]*.|O.|.)?/g, '')
    if (text.length > LONGEST) return
    for (const key of text) {
      if (key !== '\x03') this.#onKey(key)
      else if (!process.emit('SIGINT', 'SIGINT')) process.exit(130)
    }
  }

  /** The terminal was closed: there are no more keys, and the run goes on. */
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

/** Runs stty on standard input and returns its output; undefined where it fails. */
function stty(words: string[]): string | undefined {
  const { status, stdout } = spawnSync('stty', words, { stdio: ['inherit', 'pipe', 'ignore'], encoding: 'utf8', timeout: 5000 })
  return status === 0 ? stdout : undefined
}
