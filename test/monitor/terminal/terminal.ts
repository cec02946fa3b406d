/** A command in a real terminal (a pty), and what a person sees on its screen. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import xterm from '@xterm/headless'
import { onTestFinished } from 'vitest'

/** Why there is no terminal to test in here; '' where there is one. */
export const noTerminal = ((): string => {
  if (process.platform === 'win32') return 'no pty on Windows'
  return spawnSync('python3', ['-c', 'import pty']).status === 0 ? '' : 'no python3, whose pty module makes the terminal'
})()

export interface TerminalOptions {
  columns?: number
  rows?: number
  cwd?: string
  env?: NodeJS.ProcessEnv
}

export class TestTerminal {
  readonly #child: ChildProcess
  readonly #screen: xterm.Terminal
  readonly #exit: Promise<number | null>
  #ended = false
  /** All that was written, with its escape sequences. */
  raw = ''

  constructor(command: string[], { columns = 80, rows = 30, cwd, env }: TerminalOptions = {}) {
    this.#screen = new xterm.Terminal({ cols: columns, rows, scrollback: 2000, allowProposedApi: true })
    const words = [join(import.meta.dirname, 'terminal.py'), String(columns), String(rows), ...command]
    // Of the test's own environment, what would change the colours is left out.
    const { NO_COLOR: _, FORCE_COLOR: __, CI: ___, ...rest } = process.env
    this.#child = spawn('python3', words, {
      cwd,
      env: { ...rest, TERM: 'xterm-256color', ...env },
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    this.#child.stdout!.setEncoding('utf8').on('data', (data: string) => {
      // The window's size changes where terminal.py says so, between what was written before and after.
      // oxlint-disable-next-line no-control-regex
      const [text, ...parts] = data.split(/\x1b\]777;size;(\d+;\d+)\x07/)
      this.#show(text)
      for (let i = 0; i < parts.length; i += 2) {
        const [cols, lines] = parts[i].split(';').map(Number)
        this.#screen.write('', () => this.#screen.resize(cols, lines))
        this.#show(parts[i + 1])
      }
    })
    this.#child.stdin!.on('error', () => {})
    this.#exit = new Promise((resolve) =>
      this.#child.on('close', (code) => {
        this.#ended = true
        resolve(code)
      }),
    )
    onTestFinished(() => {
      if (!this.#ended) this.#child.kill('SIGKILL')
    })
  }

  /** Types. */
  type(keys: string): void {
    this.#tell({ keys })
  }

  /** Changes the size of the window. */
  resize(columns: number, rows: number): void {
    this.#tell({ size: [columns, rows] })
  }

  signal(number: number): void {
    this.#tell({ signal: number })
  }

  /** Closes the window. */
  hangUp(): void {
    this.#tell({ hangup: true })
  }

  /** The lines on the screen, trailing spaces and empty lines at the end left out. */
  lines(): string[] {
    const { active } = this.#screen.buffer
    return this.#from(active.baseY)
  }

  /** The same with all that was scrolled out at the top. */
  all(): string[] {
    return this.#from(0)
  }

  /** Waits until a person sees a text (or what a pattern says); the lines of the screen then. */
  async sees(what: string | RegExp, seconds = 60): Promise<string[]> {
    return await this.until((lines) => lines.some((line) => (typeof what === 'string' ? line.includes(what) : what.test(line))), String(what), seconds) // prettier-ignore
  }

  /** Waits until every pattern is on the screen at once (a panel is drawn line by line); the lines of the screen then. */
  async seesAll(patterns: readonly RegExp[], seconds = 60): Promise<string[]> {
    return await this.until((lines) => patterns.every((p) => p.test(lines.join('\n'))), patterns.join(', '), seconds)
  }

  /** @throws Error with the screen when it has not come to that in time, or the command has ended without it */
  async until(test: (lines: string[]) => boolean, words: string, seconds = 60): Promise<string[]> {
    for (let left = seconds * 20; left > 0; left--) {
      const ended = this.#ended
      await this.#settle()
      const lines = this.lines()
      if (test(lines)) return lines
      if (ended) break
      await sleep(50)
    }
    throw new Error(`${this.#ended ? 'it ended and' : 'in time,'} this was not seen: ${words}\n${this.all().join('\n')}`)
  }

  /** The exit code, when it has ended. */
  async ended(): Promise<number | null> {
    const code = await this.#exit
    await this.#settle()
    return code
  }

  #show(text: string): void {
    this.raw += text
    this.#screen.write(text)
  }

  #from(first: number): string[] {
    const { active } = this.#screen.buffer
    const lines = Array.from(
      { length: active.length - first },
      (_, i) => active.getLine(first + i)?.translateToString(true) ?? '',
    )
    return lines.slice(0, lines.findLastIndex((line) => line !== '') + 1)
  }

  /** What was written is on the screen. */
  async #settle(): Promise<void> {
    await new Promise<void>((resolve) => this.#screen.write('', resolve))
  }

  #tell(wish: object): void {
    this.#child.stdin!.write(`${JSON.stringify(wish)}\n`)
  }
}
