/**
 * Work that may hang, swell or crash, in workers that can be ended: each call has a time limit after which its worker is killed, each worker
 * a heap limit and an isolate of its own. The next call starts a fresh one. Idle workers do not keep the process alive.
 * A worker is a thread, or a child process that may read the code it runs and else no file, and may start nothing.
 */
import type { ChildProcess } from 'node:child_process'
import { existsSync, realpathSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Worker } from 'node:worker_threads'
import type { Pool } from 'workerpool'
import { messageOf, UserError } from '../../common/errors.ts'

export interface WorkersOptions {
  /** The worker's file: it registers its methods with `workerpool.worker({...})`. A `.ts` URL finds the `.js` of a packed package too. */
  script: URL
  /** Where the work runs. */
  as: 'thread' | 'child'
  /** Packages whose files a child may read. */
  packages?: string[]
  /** Workers at most. Default 2. */
  size?: number
  /** Heap of a worker in MiB. Default 256. */
  heapMb?: number
}

export interface CallLimits {
  /** Counted from when the call starts to run, not while it queues. */
  seconds: number
  /** Ends the call early. */
  signal?: AbortSignal
}

/** Why a call gave nothing. `message` is the cause in words. */
export class CallEnded extends Error {
  override name = 'CallEnded'
  readonly why: 'time' | 'abort' | 'crash'
  constructor(cause: 'time' | 'abort' | 'crash', message: string) {
    super(message)
    this.why = cause
  }
}

/** What workerpool keeps to itself: nothing else lets an idle worker go. */
interface Handle {
  worker?: Worker | ChildProcess
}

export class Workers {
  readonly #options: WorkersOptions
  #pool: Promise<Pool> | undefined
  #running = 0

  constructor(options: WorkersOptions) {
    this.#options = options
  }

  /**
   * Runs a method of the worker. Arguments and result must be structured-cloneable.
   * Throws CallEnded when it was late, aborted, or its worker crashed (out of heap), and what the method threw.
   */
  async call<T>(method: string, args: unknown[], limits: CallLimits): Promise<T> {
    const { seconds, signal } = limits
    if (signal?.aborted) throw new CallEnded('abort', 'it was aborted')
    const pool = await (this.#pool ??= this.#start())
    this.#running++
    let onAbort: (() => void) | undefined
    try {
      const call = pool.exec(method, args)
      this.#hold(pool, true)
      onAbort = () => void call.cancel()
      signal?.addEventListener('abort', onAbort, { once: true })
      return (await call.timeout(seconds * 1000)) as T
    } catch (error) {
      const { name, message } = error instanceof Error ? error : { name: '', message: String(error) }
      if (signal?.aborted) throw new CallEnded('abort', 'it was aborted')
      if (name === 'TimeoutError' || message === 'timeout exceeded') {
        throw new CallEnded('time', `it took longer than its limit of ${seconds} s`)
      }
      if (/Worker error|terminated/iu.test(message)) {
        const memory = /memory/iu.test(message)
        throw new CallEnded(
          'crash',
          memory ? `it needed more memory than its ${this.#heapMb} MiB` : `its process ended: ${firstLine(message)}`,
        )
      }
      throw error
    } finally {
      if (onAbort) signal?.removeEventListener('abort', onAbort)
      if (--this.#running === 0) this.#hold(pool, false)
    }
  }

  /** Ends all workers. A later call starts new ones. */
  async close(): Promise<void> {
    const pool = this.#pool
    this.#pool = undefined
    await (await pool)?.terminate(true)
  }

  get #heapMb(): number {
    return this.#options.heapMb ?? 256
  }

  async #start(): Promise<Pool> {
    const { pool } = await load('workerpool', () => import('workerpool'))
    const asIs = fileURLToPath(this.#options.script)
    const script = existsSync(asIs) ? asIs : asIs.replace(/\.ts$/u, '.js')
    const common = { maxWorkers: this.#options.size ?? 2, workerTerminateTimeout: 100 }
    if (this.#options.as === 'thread') {
      const resourceLimits = { maxOldGenerationSizeMb: this.#heapMb }
      return pool(script, { ...common, workerType: 'thread', workerThreadOpts: { resourceLimits, env: {}, execArgv: [] } })
    }
    const readable = [...new Set([...packageFolders(script), ...(this.#options.packages ?? []).flatMap(foldersOf)])]
    const execArgv = [
      '--permission',
      ...readable.map((folder) => `--allow-fs-read=${folder}`),
      `--max-old-space-size=${this.#heapMb}`,
    ]
    // Windows starts no program without SystemRoot; else the child knows nothing of our environment, keys and tokens in it.
    const env = process.env.SystemRoot === undefined ? {} : { SystemRoot: process.env.SystemRoot }
    return pool(script, { ...common, workerType: 'process', forkOpts: { execArgv, env, serialization: 'advanced' } })
  }

  #hold(pool: Pool, hold: boolean): void {
    for (const { worker } of (pool as unknown as { workers: Handle[] }).workers) {
      const what = hold ? 'ref' : 'unref'
      worker?.[what]()
      if (worker && 'channel' in worker) worker.channel?.[what]()
    }
  }
}

/** What a child has to read of a file's package: the `node_modules` that it is under; in a checkout, our code and package.json (for its type). */
function packageFolders(file: string): string[] {
  const real = realpathSync(file)
  const under = real.lastIndexOf('node_modules')
  if (under >= 0) return [real.slice(0, under + 'node_modules'.length)]
  return ['../../', '../../../package.json'].map((path) => fileURLToPath(new URL(path, import.meta.url)))
}

const foldersOf = (name: string) => packageFolders(fileURLToPath(import.meta.resolve(name)))

/** Imports an optional package. Throws UserError that says how to get it. */
export async function load<T>(name: string, importIt: () => Promise<T>): Promise<T> {
  try {
    return await importIt()
  } catch (error) {
    throw new UserError(
      `The package ${name} is needed here and could not be loaded (${firstLine(messageOf(error))}). Run: npm install ${name}`,
    )
  }
}

const firstLine = (text: string) => text.split('\n')[0]
