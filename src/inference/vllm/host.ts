/** The server that the run samples from, across restarts: one started here, which is restarted when it dies, or somebody else's. */
import { messageOf, UserError } from '../../common/errors.ts'
import { VllmApi } from './api.ts'
import { VllmServer, type LaunchOptions } from './server.ts'
import { becomes } from './wait.ts'

/** A server to start, or the address of a running one. */
export type Where = { launch: LaunchOptions } | { url: string }

export interface HostOptions {
  where: Where
  /** Milliseconds within which a starting server must answer. */
  startupMs: number
  /** Number of restarts of a server that died, without a finished request in between, after which the run gives up. */
  maxRestarts: number
  /** Called with messages about what happens, for the console. */
  log: (line: string) => void
}

/** Milliseconds that a server which failed a request has to recover or to exit, before it is stopped. */
const LIMBO_MS = 20_000

export class VllmHost {
  readonly #options: HostOptions
  #server: VllmServer | undefined
  #api: VllmApi
  #closed = false
  /** Restarts in total, and since the last `worked`. */
  restarts = 0
  #inARow = 0
  /** Called when a server that was started here exits although nobody stopped it. */
  onGone: () => void = () => {}

  constructor(options: HostOptions) {
    this.#options = options
    this.#api = new VllmApi('url' in options.where ? options.where.url : 'http://127.0.0.1:0')
  }

  /** The API of the current server. */
  get api(): VllmApi {
    return this.#api
  }

  /** Process group of the server, if it was started here. */
  get pid(): number | undefined {
    return this.#server?.pid
  }

  /**
   * Starts the server, or finds the running one, and waits until it answers.
   * @throws UserError if it does not
   */
  async start(): Promise<void> {
    const { where, startupMs } = this.#options
    if (this.#closed) throw new Error('the run ends')
    if ('url' in where) {
      if (await this.#answers(Math.min(startupMs, 30_000))) return
      // A proxy may refuse, a name be unknown, or the request impossible (an address with a password).
      const { unwell } = this.#api
      const why = unwell.includes('ECONNREFUSED') ? '' : ` (${unwell})`
      throw new UserError(
        `No vLLM server answers at ${where.url}/health${why}. Start one there, or remove base_url under [inference] and let the run start one.`,
      )
    }
    const server = await VllmServer.launch(where.launch)
    this.#server = server
    this.#api = new VllmApi(server.url)
    let gone: string | undefined
    void server.exited.then((how) => {
      gone = how
      if (!this.#closed && this.#server === server) this.onGone()
    })
    if (await this.#answers(startupMs, () => gone === undefined && !this.#closed)) return
    const why = gone === undefined ? `did not answer within startup_timeout (${startupMs / 1000} s)` : gone
    await server.stop()
    if (this.#closed) throw new Error('the run ends')
    throw new UserError(`vLLM ${why}. Its log, ${server.logFile}, ends with: ${server.lastWords()}`)
  }

  /** Called when a request has succeeded: earlier restarts no longer count. */
  worked(): void {
    this.#inARow = 0
  }

  /**
   * Called after a request got no answer; resolves when the server answers again.
   * @returns whether the server may have lost its adapters and weights (it was restarted, or somebody else's was away)
   * @throws UserError after too many restarts, or if somebody else's server stays away
   */
  async revive(): Promise<boolean> {
    const { where, startupMs, maxRestarts, log } = this.#options
    if ('url' in where) {
      if (await this.#api.healthy()) return false
      log(`vLLM at ${where.url} does not answer; waiting for it`)
      if (!(await this.#answers(startupMs)))
        throw new UserError(`vLLM at ${where.url} has not answered for startup_timeout (${startupMs / 1000} s).`)
      this.restarts++
      return true
    }
    const server = this.#server
    if (server) {
      let gone: string | undefined
      void server.exited.then((how) => (gone = how))
      // A dead engine takes its server down within seconds.
      if (await this.#answers(LIMBO_MS, () => gone === undefined)) return false
      await server.stop()
      log(`vLLM ${await server.exited}; starting it again (log: ${server.logFile})`)
    }
    while (true) {
      if (this.#inARow >= maxRestarts) {
        throw new UserError(
          `vLLM died ${this.#inARow + 1} times without finishing a request in between (max_restarts = ${maxRestarts}). Its log, ${where.launch.logFile}, ends with: ${this.#server?.lastWords()}`,
        )
      }
      this.#inARow++
      this.restarts++
      try {
        await this.start()
        return true
      } catch (error) {
        if (this.#closed) throw error
        log(messageOf(error))
      }
    }
  }

  /** Whether the server answers within `ms` milliseconds; asked as long as `given` holds. */
  async #answers(ms: number, given = () => !this.#closed): Promise<boolean> {
    return await becomes(() => this.#api.healthy(), ms, given)
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#server?.stop()
  }
}
