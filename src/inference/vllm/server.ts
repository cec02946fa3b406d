/**
 * A vLLM server as a child process. It ends with the run, however the run ends: a small shell in between holds the read end of a pipe and stops the
 * server when the pipe closes, which happens even after kill -9.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { delimiter, dirname, resolve } from 'node:path'
import { packageRoot, SCRIPTS } from '../../common/commands.ts'
import { UserError } from '../../common/errors.ts'
import { serverEnvironment, serverFlags, type ServerNeeds } from './flags.ts'

/** Starts "$@" without our pipe, and ends it when the pipe closes: first with SIGTERM, and after 20 s with SIGKILL to its whole process group. */
const KEEPER =
  'exec 3<&0; "$@" 3<&- </dev/null & server=$!; (cat <&3 >/dev/null; kill -TERM "$server"; sleep 20; kill -KILL 0) 2>/dev/null & wait "$server"'

/** '(Worker pid=7) ERROR 11-21 12:04:32 [core.py:1510] ', and a program's name before its usage error. */
const LOG_PREFIX = /^(\(.*?\) )?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[.*?\] ?)?(\w+\.py: (?=error))?/

export interface LaunchOptions extends ServerNeeds {
  /** A Python with vLLM. */
  python: string
  /** File that the server's output is appended to. */
  logFile: string
}

/** A server process. */
export class VllmServer {
  readonly url: string
  readonly logFile: string
  /** Resolves when the process has ended, with a sentence about how. */
  readonly exited: Promise<string>
  readonly #child: ChildProcess

  /**
   * Starts the server. It answers requests only once it has loaded the model (`VllmHost.start` waits for that).
   * @throws UserError if the Python does not exist, and on Windows, which has no /bin/sh and no vLLM
   */
  static async launch(options: LaunchOptions): Promise<VllmServer> {
    if (process.platform === 'win32')
      throw new UserError(
        'vLLM does not run on Windows. Run dawn-rl in WSL, or remove backend = "vllm": the embedded engine does not need vLLM.',
      )
    const python = findPython(options.python)
    const { logFile } = options
    if (python.includes('/') && !existsSync(python)) {
      throw new UserError(
        `There is no ${python}, the Python interpreter that starts vLLM. Run 'bash ${SCRIPTS}/setup-vllm.sh', or set python under [inference] to one that has vllm.`,
      )
    }
    const port = Number(options.args.port ?? (await freePort()))
    mkdirSync(dirname(logFile), { recursive: true })
    const log = openSync(logFile, 'a')
    try {
      return new VllmServer({ ...options, python }, port, log)
    } finally {
      closeSync(log)
    }
  }

  private constructor(options: LaunchOptions, port: number, log: number) {
    const { python, logFile } = options
    this.url = `http://127.0.0.1:${port}`
    this.logFile = logFile
    const words = [python, '-m', 'vllm.entrypoints.openai.api_server', ...serverFlags(options, port)]
    const bin = python.includes('/') ? dirname(resolve(python)) + delimiter : ''
    this.#child = spawn('/bin/sh', ['-c', KEEPER, 'vllm', ...words], {
      stdio: ['pipe', log, log],
      // Its own process group, so that the server's workers end with it.
      detached: true,
      env: { ...serverEnvironment(isCpuBuild(python)), ...process.env, PATH: bin + (process.env.PATH ?? '') },
    })
    // The keeper may have ended before the pipe is closed.
    this.#child.stdin!.on('error', () => {})
    const { promise, resolve: gone } = Promise.withResolvers<string>()
    this.exited = promise
    this.#child.once('error', (error) => gone(`could not be started (${error.message})`))
    this.#child.once('exit', (code, signal) => {
      this.#kill()
      gone(signal ? `was killed by ${signal}` : `ended with exit code ${code}`)
    })
  }

  /** Id of the process group. */
  get pid(): number | undefined {
    return this.#child.pid
  }

  /** Stops the server; resolves when it has ended. */
  async stop(): Promise<void> {
    this.#child.stdin!.end()
    const late = setTimeout(() => this.#kill(), 25_000)
    await this.exited
    clearTimeout(late)
  }

  /** What the log says about why the server ended, for an error message: errors that are not about other errors, else the last line. */
  lastWords(): string {
    if (!existsSync(this.logFile) || statSync(this.logFile).size === 0) return 'nothing'
    const lines = readFileSync(this.logFile, 'utf8').slice(-200_000).split('\n').map((line) => line.replace(LOG_PREFIX, '').trim()) // prettier-ignore
    const said = lines.filter((line) => line !== '')
    const errors = said.filter(
      (line) => /^[\w.]*(Error|Exception|error): /.test(line) && !/stack trace|root cause|resource_tracker/.test(line),
    )
    const causes = [...new Set(errors)].slice(-2)
    return (causes.length > 0 ? causes : said.slice(-1)).map((line) => line.slice(0, 300)).join(' | ')
  }

  #kill(): void {
    try {
      if (this.#child.pid !== undefined) process.kill(-this.#child.pid, 'SIGKILL')
    } catch {
      // Already gone.
    }
  }
}

/** The path of `inference.python`, relative to the current folder, else to dawn-rl's folder, where scripts/setup-vllm.sh creates its environment. */
export function findPython(python: string): string {
  const ours = resolve(packageRoot, python)
  return existsSync(python) || !existsSync(ours) ? python : ours
}

/**
 * Whether the environment has vLLM's CPU build, which must be told so before it is imported. scripts/setup-vllm.sh notes the build beside the
 * environment's bin/.
 */
function isCpuBuild(python: string): boolean {
  const note = resolve(dirname(python), '..', 'ready')
  return existsSync(note) && /\bcpu\b/.test(readFileSync(note, 'utf8'))
}

async function freePort(): Promise<number> {
  return await new Promise((resolvePort, reject) => {
    const probe = createServer()
    probe.once('error', reject)
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolvePort(port))
    })
  })
}
