/**
 * Runs verifiers' environment server as a child process, which exits with this process, however this one ends. If the server dies, it is restarted,
 * and unanswered requests are sent again. Workers that die or stop answering are restarted by the server itself.
 */
import { randomUUID } from 'node:crypto'
import { closeSync, existsSync, fstatSync, mkdirSync, mkdtempSync, openSync, readSync, rmSync, statSync } from 'node:fs'
import type { ChildProcess } from 'node:child_process'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { SCRIPTS } from '../../common/commands.ts'
import { messageOf, UserError } from '../../common/errors.ts'
import { killGroup, startBridge, wakeBridge, type PythonWish } from './bridge.ts'
import { EnvWire, type Reply } from './wire.ts'

export interface HostOptions extends PythonWish {
  /** Number of processes that play rollouts. */
  workers: number
  /** Output of the server and its workers is appended to this file. */
  logFile: string
  /** Additional environment variables. */
  env: Record<string, string>
  /** A process that `describe` left waiting, to become the server. */
  waiting?: ChildProcess
  /** Seconds within which a cancelled rollout must end. Otherwise a worker counts as stuck, and the server is restarted. Default 60. */
  stuckSeconds?: number
  /** Called each time the server dies, and once for each reward function that raises. */
  warn?: (message: string) => void
}

interface Pending {
  payload: Uint8Array
  /** How often the server has died since this request was made. */
  deaths: number
  resolve: (reply: Reply) => void
  reject: (error: Error) => void
}

/**
 * The server is restarted after this many deaths, and given up at the next one, so that a run does not spend its time on restarts. Each
 * ANSWERS_A_DEATH answers in between cancel one death.
 */
const MOST_DEATHS = 3
const ANSWERS_A_DEATH = 8
const STOP_MS = 15_000
/** Time limit for loading the environment. */
const STARTUP_SECONDS = 900
/** Seconds without a heartbeat after which verifiers restarts a worker. The heartbeat comes every 10 seconds. */
const HEARTBEAT = 60
/** How many bytes at the end of the log are read. */
const LOG_BYTES = 4 * 2 ** 20
/** Maximum length of the path of the sockets' folder, as some systems limit a socket's path to 104 bytes. verifiers puts its own sockets in /tmp. */
const MOST_SOCKET_PATH = 75
const PROBE = 'dawn-rl-probe'
/** The line that verifiers logs when a reward function raises. */
const RAISED = /Error calling (?:group )?reward function (\S+): (.*)/gu

/** A running environment server. */
export class EnvHost {
  /** Number of rollouts that have chosen this server and have not ended. */
  rollouts = 0
  readonly #options: HostOptions
  readonly #folder = mkdtempSync(join(tmpdir().length > MOST_SOCKET_PATH ? '/tmp' : tmpdir(), 'dawn-rl-env-'))
  readonly #pending = new Map<string, Pending>()
  #child: ChildProcess | undefined
  #exited: Promise<void> = Promise.resolve()
  #wire: EnvWire | undefined
  /** Whether requests can be sent. Otherwise they wait until the server is running again. */
  #ready = false
  /** Cancelled requests that the server has not yet confirmed. */
  readonly #cancelled = new Map<string, NodeJS.Timeout>()
  #lives = 0
  #deaths = 0
  #closed = false
  #failed: Error | undefined
  #logStart = 0
  /** Offset up to which the log was searched for reward functions that raised, and the functions found. */
  #heard = 0
  readonly #raised = new Set<string>()
  readonly #onExit = () => {
    if (this.#child) killGroup(this.#child)
    // The server removes the folder if this process is killed, but it has just been killed itself.
    rmSync(this.#folder, { recursive: true, force: true })
  }

  /**
   * Starts the server, and waits until it has loaded the environment.
   * @throws UserError with the server's last output if it fails
   */
  static async open(options: HostOptions): Promise<EnvHost> {
    mkdirSync(dirname(options.logFile), { recursive: true })
    const host = new EnvHost(options)
    try {
      await host.#begin()
      return host
    } catch (error) {
      await host.close()
      throw error
    }
  }

  private constructor(options: HostOptions) {
    this.#options = options
    process.on('exit', this.#onExit)
  }

  get pid(): number | undefined {
    return this.#child?.pid
  }

  get restarts(): number {
    return Math.max(0, this.#lives - 1)
  }

  /**
   * Sends one request, and sends it again if the server dies meanwhile. `signal` cancels it.
   * @throws Error if it was cancelled, or the server cannot be kept running
   */
  async request(payload: Uint8Array, signal?: AbortSignal): Promise<Reply> {
    if (this.#failed) throw this.#failed
    if (this.#closed) throw new Error(`the environment server of ${this.#options.id} is closed`)
    const id = randomUUID()
    const { promise, resolve, reject } = Promise.withResolvers<Reply>()
    const cancel = () => {
      if (!this.#pending.delete(id)) return
      if (this.#ready) this.#cancel(id)
      reject(new Error('the rollout was cancelled'))
    }
    if (signal?.aborted) throw new Error('the rollout was cancelled')
    signal?.addEventListener('abort', cancel, { once: true })
    this.#pending.set(id, { payload, deaths: 0, resolve, reject })
    if (this.#ready) this.#wire!.send(id, payload)
    try {
      return await promise
    } finally {
      signal?.removeEventListener('abort', cancel)
    }
  }

  #cancel(id: string): void {
    this.#wire!.cancel(id)
    const { stuckSeconds = 60 } = this.#options
    // verifiers restarts workers whose heartbeat stops, but not workers that never sent one.
    const late = setTimeout(() => {
      this.#cancelled.delete(id)
      if (this.#child && !this.#closed) killGroup(this.#child)
    }, stuckSeconds * 1000)
    this.#cancelled.set(id, late.unref())
  }

  #forgetCancelled(): void {
    for (const late of this.#cancelled.values()) clearTimeout(late)
    this.#cancelled.clear()
  }

  /** Ends the server. Requests that are still waiting fail. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    this.#forgetCancelled()
    this.#fail(new Error('the environment server was closed'))
    await this.#stop()
    process.off('exit', this.#onExit)
    rmSync(this.#folder, { recursive: true, force: true })
  }

  async #begin(): Promise<void> {
    const { logFile, workers, env, waiting, stuckSeconds: _, warn: __, ...wish } = this.#options
    this.#options.waiting = undefined // later servers are new processes
    const address = `ipc://${join(this.#folder, `${++this.#lives}`)}`
    this.#logStart = this.#heard = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0
    const command = { ...wish, do: 'serve' as const, address, workers, heartbeat: HEARTBEAT, env, log: resolve(logFile) }
    const child = waiting && wakeBridge(waiting, command) ? waiting : startServer(command, logFile)
    this.#child = child
    const gone = Promise.withResolvers<string>()
    child.once('error', (error) => gone.resolve(`could not be started (${error.message})`))
    child.once('exit', (code, by) => gone.resolve(by ? `was killed by ${by}` : `ended with exit code ${code}`))
    this.#exited = gone.promise.then(() => killGroup(child))
    const over = gone.promise.then((how): never => {
      throw new UserError(`The environment server of ${this.#options.id} ${how}: ${this.#lastWords()}. Its log: ${logFile}.`)
    })
    over.catch(() => {})
    const probe = `${PROBE}-${this.#lives}`
    const answered = Promise.withResolvers<void>()
    this.#wire = await EnvWire.open(address, (id, reply) => {
      if (id === probe) {
        if (isProbed(reply)) answered.resolve()
        else answered.reject(mismatch(this.#options.id))
      } else this.#take(id, reply)
    })
    // The server answers before its workers have loaded the environment. A request of an unknown type is passed on to a worker.
    this.#wire.send(probe, await EnvWire.pack({ request_type: PROBE }))
    const end = new AbortController()
    try {
      await Promise.race([answered.promise, over, this.#watchStart(end.signal)])
    } finally {
      end.abort()
    }
    this.#ready = true
    for (const [id, { payload }] of this.#pending) this.#wire.send(id, payload)
    over.catch((error: Error) => void this.#revive(error))
  }

  /** Rejects if workers die repeatedly before one is ready, or when the time is up. */
  async #watchStart(signal: AbortSignal): Promise<never> {
    const begin = performance.now()
    for (;;) {
      await sleep(500, undefined, { signal }).catch(() => {})
      if (signal.aborted) return await new Promise<never>(() => {})
      const { id, logFile } = this.#options
      const deaths = this.#log().match(/Worker \d+ .*restarting/gu)?.length ?? 0
      if (deaths >= 2)
        throw new UserError(
          `The workers of ${id} exit during startup: ${this.#lastWords()}. The environment server's log: ${logFile}.`,
        )
      if ((performance.now() - begin) / 1000 > STARTUP_SECONDS)
        throw new UserError(
          `The environment server of ${id} was not ready within ${STARTUP_SECONDS} s: ${this.#lastWords()}. Its log: ${logFile}.`,
        )
    }
  }

  #take(id: string, reply: Reply | undefined): void {
    clearTimeout(this.#cancelled.get(id))
    this.#cancelled.delete(id)
    const pending = this.#pending.get(id)
    // A reply to a cancelled request, or a late one from before a restart.
    if (!pending) return
    this.#pending.delete(id)
    this.#deaths = Math.max(0, this.#deaths - 1 / ANSWERS_A_DEATH)
    this.#tellRaised()
    if (reply) pending.resolve(reply)
    else pending.reject(mismatch(this.#options.id))
  }

  /** Warns about reward functions that raised. verifiers only logs the exception and gives a reward of 0, on which a run would train unnoticed. */
  #tellRaised(): void {
    const { id, logFile, warn } = this.#options
    if (!warn) return
    // The log may have been deleted to free disk space.
    const end = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0
    const said = this.#log(this.#heard)
    this.#heard = end
    for (const [, name, what] of said.matchAll(RAISED)) {
      if (this.#raised.has(name)) continue
      this.#raised.add(name)
      warn(
        `Reward function ${name} of ${id} raised "${what.slice(0, 200)}", which verifiers turns into a reward of 0. Fix it; every occurrence is logged in ${logFile}.`,
      )
    }
  }

  async #revive(error: Error): Promise<void> {
    if (this.#closed) return
    this.#ready = false
    this.#wire?.close()
    this.#forgetCancelled()
    if (++this.#deaths > MOST_DEATHS) {
      this.#fail(error)
      return
    }
    for (const [id, pending] of this.#pending) {
      if (++pending.deaths < MOST_DEATHS) continue
      this.#pending.delete(id)
      pending.reject(new Error(`the environment server ended ${MOST_DEATHS} times while this rollout was running`))
    }
    this.#options.warn?.(`${error.message} The server is restarted, and runs unfinished rollouts again.`)
    try {
      await this.#begin()
      if (this.#closed) await this.#stop()
    } catch (fatal) {
      this.#fail(new UserError(messageOf(fatal)))
    }
  }

  #fail(error: Error): void {
    this.#failed ??= error
    for (const { reject } of this.#pending.values()) reject(error)
    this.#pending.clear()
  }

  async #stop(): Promise<void> {
    const child = this.#child
    this.#wire?.close()
    if (!child) return
    child.stdin!.end()
    const late = setTimeout(() => killGroup(child), STOP_MS)
    await this.#exited
    clearTimeout(late)
  }

  /** Reads the log of the current start from an offset. Of a long log only the end is read, as an environment may log gigabytes. */
  #log(from = this.#logStart): string {
    const { logFile } = this.#options
    if (!existsSync(logFile)) return ''
    const file = openSync(logFile, 'r')
    try {
      const end = fstatSync(file).size
      const begin = Math.max(from, end - LOG_BYTES)
      const bytes = Buffer.alloc(Math.max(0, end - begin))
      return bytes.subarray(0, readSync(file, bytes, 0, bytes.length, begin)).toString()
    } finally {
      closeSync(file)
    }
  }

  /** The errors at the end of the log, or else its last line. */
  #lastWords(): string {
    const lines = this.#log().slice(-100_000).split('\n').map((line) => line.trim()).filter((line) => line !== '') // prettier-ignore
    const errors = lines.filter((line) => /^[\w.]*(?:Error|Exception): /u.test(line))
    return (errors.at(-1) ?? lines.at(-1) ?? 'it printed nothing').slice(0, 400)
  }
}

/** Starts a new process for the server. What it says before it knows of its log goes there too. */
function startServer(command: Parameters<typeof startBridge>[0], logFile: string): ChildProcess {
  const log = openSync(logFile, 'a')
  try {
    return startBridge(command, { stdout: log, stderr: log })
  } finally {
    closeSync(log)
  }
}

const isProbed = (reply: Reply | undefined): boolean =>
  reply !== undefined && !reply.success && (reply.error ?? '').includes(PROBE)

const mismatch = (id: string) =>
  new UserError(
    `The environment server of ${id} does not reply as verifiers 0.1.14 to 0.3.0 does. Run 'bash ${SCRIPTS}/setup-verifiers.sh', which installs 0.3.0.`,
  )
