/**
 * verifiers' environment server through its lives. It starts as a child and ends with this process, however that ends; where it dies it is
 * started again and asked again what it had not answered. Its workers are its own: it starts those anew that die or stop answering.
 */
import { randomUUID } from 'node:crypto'
import { closeSync, existsSync, fstatSync, mkdirSync, mkdtempSync, openSync, readSync, rmSync, statSync } from 'node:fs'
import type { ChildProcess } from 'node:child_process'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { SCRIPTS } from '../../common/commands.ts'
import { messageOf, UserError } from '../../common/errors.ts'
import { killGroup, startBridge, type PythonWish } from './bridge.ts'
import { EnvWire, type Reply } from './wire.ts'

export interface HostOptions extends PythonWish {
  /** Processes that play rollouts. */
  workers: number
  /** What server and workers say, appended. */
  logFile: string
  /** More environment variables for them. */
  env: Record<string, string>
  /** Seconds in which a cancelled rollout must have ended; a server one of whose workers stands still is started anew. Default 60. */
  stuckSeconds?: number
  /** Told each time that the server has died, and once of each reward function that has raised. */
  warn?: (message: string) => void
}

interface Pending {
  payload: Uint8Array
  resolve: (reply: Reply) => void
  reject: (error: Error) => void
}

/** Deaths after which it is given up, and the answers in between that make up for one: with fewer a run would spend its time on starts. */
const MOST_DEATHS = 3
const ANSWERS_A_DEATH = 8
const STOP_MS = 15_000
/** Until the environment is loaded. */
const STARTUP_SECONDS = 900
/** Seconds without a sign of life after which verifiers starts a worker anew; they give one in 10. */
const HEARTBEAT = 60
/** Of the log's end that are read. */
const LOG_BYTES = 4 * 2 ** 20
/** Of a folder whose sockets can be named: a socket's path has 104 bytes at most on some systems. verifiers has its own in /tmp. */
const MOST_SOCKET_PATH = 75
const PROBE = 'dawn-rl-probe'
/** verifiers' line in the log of a reward function that has raised. */
const RAISED = /Error calling (?:group )?reward function (\S+): (.*)/gu

export class EnvHost {
  readonly #options: HostOptions
  readonly #folder = mkdtempSync(join(tmpdir().length > MOST_SOCKET_PATH ? '/tmp' : tmpdir(), 'dawn-rl-env-'))
  readonly #pending = new Map<string, Pending>()
  #child: ChildProcess | undefined
  #exited: Promise<void> = Promise.resolve()
  #wire: EnvWire | undefined
  /** Whether requests go out at once; else they wait for the next life. */
  #ready = false
  /** Requests that were cancelled, until the server says so. */
  readonly #cancelled = new Map<string, NodeJS.Timeout>()
  #lives = 0
  #deaths = 0
  #closed = false
  #failed: Error | undefined
  #logStart = 0
  /** Where the log was last searched for reward functions that raise, and those that were found. */
  #heard = 0
  readonly #raised = new Set<string>()
  readonly #onExit = () => this.#child && killGroup(this.#child)

  /**
   * Starts the server, and waits until it has loaded the environment.
   * @throws UserError where it can't, with the last that it said
   */
  static async open(options: HostOptions): Promise<EnvHost> {
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
    mkdirSync(dirname(options.logFile), { recursive: true })
    process.on('exit', this.#onExit)
  }

  get pid(): number | undefined {
    return this.#child?.pid
  }

  get restarts(): number {
    return Math.max(0, this.#lives - 1)
  }

  /**
   * One request, whatever becomes of the server meanwhile. `signal` cancels it.
   * @throws Error where it was cancelled, or the server can't be kept alive
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
    this.#pending.set(id, { payload, resolve, reject })
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
    // verifiers starts workers anew that stop giving signs of life, but not those that never gave one.
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

  /** Ends the server; what waits for it fails. */
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
    const { logFile, workers, env, stuckSeconds: _, warn: __, ...wish } = this.#options
    const address = `ipc://${join(this.#folder, `${++this.#lives}`)}`
    this.#logStart = this.#heard = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0
    const log = openSync(logFile, 'a')
    let child: ChildProcess
    try {
      const stdio = { stdout: log, stderr: log }
      child = startBridge({ ...wish, do: 'serve', address, workers, heartbeat: HEARTBEAT }, stdio, env)
    } finally {
      closeSync(log)
    }
    this.#child = child
    const gone = Promise.withResolvers<string>()
    child.once('error', (error) => gone.resolve(`could not be started (${error.message})`))
    child.once('exit', (code, by) => gone.resolve(by ? `was ended by ${by}` : `ended with exit code ${code}`))
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
    // The server itself answers before its workers have loaded anything; what it does not know goes to a worker.
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

  /** Rejects where workers die again and again before one is ready, or time is up. */
  async #watchStart(signal: AbortSignal): Promise<never> {
    const begin = performance.now()
    for (;;) {
      await sleep(500, undefined, { signal }).catch(() => {})
      if (signal.aborted) return await new Promise<never>(() => {})
      const { id, logFile } = this.#options
      const deaths = this.#log().match(/Worker \d+ .*restarting/gu)?.length ?? 0
      if (deaths >= 2)
        throw new UserError(
          `The workers of ${id} end while they start: ${this.#lastWords()}. The environment server's log: ${logFile}.`,
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
    // Of one that was cancelled, or that an earlier life answers late.
    if (!pending) return
    this.#pending.delete(id)
    this.#deaths = Math.max(0, this.#deaths - 1 / ANSWERS_A_DEATH)
    this.#tellRaised()
    if (reply) pending.resolve(reply)
    else pending.reject(mismatch(this.#options.id))
  }

  /** verifiers takes what a reward function raises for a reward of 0, and says so in the log alone: a run would train on it unknowing. */
  #tellRaised(): void {
    const { id, logFile, warn } = this.#options
    if (!warn) return
    // It may have been deleted, to get back the room that it took.
    const end = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0
    const said = this.#log(this.#heard)
    this.#heard = end
    for (const [, name, what] of said.matchAll(RAISED)) {
      if (this.#raised.has(name)) continue
      this.#raised.add(name)
      warn(
        `Reward function ${name} of ${id} raised "${what.slice(0, 200)}", which verifiers takes for a reward of 0. Mend it; each time stands in ${logFile}.`,
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
    this.#options.warn?.(`${error.message} It is started again, and plays anew what it had not answered.`)
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

  /** What this life has said, from a place in its log on; the last of it where it is much: an environment may fill gigabytes. */
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

  /** The errors at the log's end, else its last line. */
  #lastWords(): string {
    const lines = this.#log().slice(-100_000).split('\n').map((line) => line.trim()).filter((line) => line !== '') // prettier-ignore
    const errors = lines.filter((line) => /^[\w.]*(?:Error|Exception): /u.test(line))
    return (errors.at(-1) ?? lines.at(-1) ?? 'it said nothing').slice(0, 400)
  }
}

const isProbed = (reply: Reply | undefined): boolean =>
  reply !== undefined && !reply.success && (reply.error ?? '').includes(PROBE)

const mismatch = (id: string) =>
  new UserError(
    `The environment server of ${id} answers otherwise than verifiers 0.1.14 to 0.3.0 do. Run 'bash ${SCRIPTS}/setup-verifiers.sh', which installs 0.3.0.`,
  )
