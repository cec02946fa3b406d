/**
 * A pool of workers for work that may hang, use too much memory or crash. Each call has a time limit after which its worker is killed, and each
 * worker has its own isolate and heap limit. The next call gets a new worker. Idle workers do not keep Node running. A worker is a thread, or a child
 * process that may read no files but its own code and start no processes.
 *
 * The package workerpool is not used because queued calls are never run when one of its workers dies (seen with 10.0.3), its idle workers keep Node
 * running, and the start of a worker counts towards the time limit of its first call.
 */
import { fork } from 'node:child_process'
import { existsSync, realpathSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Worker } from 'node:worker_threads'
import { messageOf } from '../../common/errors.ts'
import { timerAfter } from '../../common/timers.ts'
import type { WorkerReply } from './serve.ts'

interface WorkersOptions {
  /** The worker's file, which ends with `serve({...})`. In a packed package, a `.ts` URL finds the `.js` file. */
  script: URL
  /** Whether a worker is a thread or a child process. */
  as: 'thread' | 'child'
  /** Packages whose files a child may read. */
  packages?: string[]
  /** More files and folders that a child may read. */
  readable?: string[]
  /** Maximum number of workers. Default 2. */
  size?: number
  /** Heap limit of a worker in MiB. Default 256. */
  heapMb?: number
}

interface CallLimits {
  /** Time limit, counted from when the call starts to run. Waiting for a worker and starting it do not count. */
  seconds: number
  /** Ends the call early. */
  signal?: AbortSignal
}

/** Says why a call gave no result. `message` is the reason in words. */
export class CallEnded extends Error {
  override name = 'CallEnded'
  readonly why: 'time' | 'abort' | 'memory' | 'crash'
  constructor(why: 'time' | 'abort' | 'memory' | 'crash', message: string) {
    super(message)
    this.why = why
  }
}

interface Job {
  method: string
  args: unknown[]
  seconds: number
  resolve(value: unknown): void
  reject(error: Error): void
}

/** Common interface of threads and child processes. */
interface Handle {
  post(message: unknown): void
  kill(): void
  /** Sets whether the worker keeps Node running. */
  hold(yes: boolean): void
  /** The end of its standard error output. */
  lastWords: string
  job: Job | null
  endTimer?: () => void
  ready: boolean
}

/** A worker that is not ready after this time counts as failed. */
const startSeconds = 120

/** A pool of workers of one kind, which are started on demand. */
export class Workers {
  readonly #options: WorkersOptions
  readonly #handles = new Set<Handle>()
  #queue: Job[] = []

  constructor(options: WorkersOptions) {
    this.#options = options
  }

  /**
   * Calls a method of the worker. Arguments and result must be structured-cloneable. Throws CallEnded if the call exceeded its time limit, was
   * aborted, or its worker died; an Error if workers cannot be started; and what the method throws.
   */
  async call<T>(method: string, args: unknown[], { seconds, signal }: CallLimits): Promise<T> {
    if (signal?.aborted) throw new CallEnded('abort', 'it was aborted')
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    const job: Job = { method, args, seconds, resolve, reject }
    const onAbort = () => this.#end(job, new CallEnded('abort', 'it was aborted'))
    signal?.addEventListener('abort', onAbort, { once: true })
    this.#queue.push(job)
    this.#pump()
    try {
      return (await promise) as T
    } finally {
      signal?.removeEventListener('abort', onAbort)
    }
  }

  /** Ends all workers and rejects the waiting calls. A later call starts new workers. */
  close(): void {
    for (const job of this.#queue.splice(0)) job.reject(new CallEnded('abort', 'the workers were closed'))
    for (const handle of this.#handles) {
      handle.job?.reject(new CallEnded('abort', 'the workers were closed'))
      this.#drop(handle)
    }
  }

  /** Assigns waiting calls to idle workers, and starts more workers as long as calls wait. */
  #pump(): void {
    for (const handle of this.#handles) {
      if (!handle.ready || handle.job) continue
      const job = this.#queue.shift()
      handle.hold(job !== undefined)
      if (!job) continue
      handle.job = job
      const words = `it took longer than its limit of ${job.seconds} s`
      handle.endTimer = timerAfter(job.seconds * 1000, () => this.#end(job, new CallEnded('time', words)))
      handle.post({ method: job.method, args: job.args })
    }
    const starting = [...this.#handles].filter(({ ready }) => !ready).length
    if (this.#queue.length > starting && this.#handles.size < (this.#options.size ?? 2)) {
      this.#start()
      this.#pump()
    }
  }

  /** Rejects a call, and ends the worker that runs it, if any. */
  #end(job: Job, error: Error): void {
    job.reject(error)
    this.#queue = this.#queue.filter((other) => other !== job)
    const handle = [...this.#handles].find((one) => one.job === job)
    if (handle) this.#drop(handle)
    this.#pump()
  }

  #drop(handle: Handle): void {
    handle.endTimer?.()
    this.#handles.delete(handle)
    handle.job = null
    handle.kill()
  }

  #received(handle: Handle, reply: WorkerReply): void {
    const { job } = handle
    handle.endTimer?.()
    handle.ready = true
    handle.job = null
    if (job && 'error' in reply) job.reject(new Error(reply.error))
    else if (job && 'result' in reply) job.resolve(reply.result)
    this.#pump()
  }

  #died(handle: Handle, how: string): void {
    if (!this.#handles.has(handle)) return // ended by us
    const { job, ready, lastWords } = handle
    this.#drop(handle)
    if (!ready) {
      const error = new Error(`a worker could not be started (${how}): ${lastWords.trim().slice(-600) || 'it printed nothing'}`)
      for (const waiting of this.#queue.splice(0)) waiting.reject(error)
    } else if (/heap out of memory|OUT_OF_MEMORY/u.test(lastWords + how)) {
      job?.reject(new CallEnded('memory', `it needed more memory than its ${this.#options.heapMb ?? 256} MiB`))
    } else job?.reject(new CallEnded('crash', `its process ended (${how})`))
    this.#pump()
  }

  #start(): void {
    const { script, as, packages = [], readable = [], heapMb = 256 } = this.#options
    const asIs = fileURLToPath(script)
    const file = existsSync(asIs) ? asIs : asIs.replace(/\.ts$/u, '.js')
    const handle =
      as === 'thread' ? startThread(file, heapMb) : startChild(file, heapMb, [...readableFor(file, packages), ...readable])
    const { worker } = handle
    this.#handles.add(handle)
    handle.endTimer = timerAfter(startSeconds * 1000, () => this.#died(handle, `not ready within ${startSeconds} s`))
    worker.on('message', (reply: WorkerReply) => {
      if (this.#handles.has(handle)) this.#received(handle, reply)
    })
    worker.on('error', (error: Error & { code?: string }) => this.#died(handle, `${error.code ?? ''} ${messageOf(error)}`.trim()))
    worker.on('exit', (code: number | null, signal?: string) => this.#died(handle, signal ?? `exit code ${code}`))
  }
}

function startThread(file: string, heapMb: number): Handle & { worker: Worker } {
  // Its output is neither shown nor read: reading a stream would keep Node running. Its errors arrive as events.
  const worker = new Worker(file, {
    resourceLimits: { maxOldGenerationSizeMb: heapMb },
    env: {},
    execArgv: [],
    stderr: true,
    stdout: true,
  })
  return {
    worker,
    post: (message) => worker.postMessage(message),
    kill: () => void worker.terminate(),
    hold: (yes) => (yes ? worker.ref() : worker.unref()),
    lastWords: '',
    job: null,
    ready: false,
  }
}

function startChild(file: string, heapMb: number, readable: readonly string[]) {
  const allowed = readable.map((folder) => `--allow-fs-read=${folder}`)
  const execArgv = ['--permission', ...allowed, `--max-old-space-size=${heapMb}`]
  // The child does not get our environment variables, which may contain keys. SystemRoot is the exception: without it Windows cannot start programs.
  const env = process.env.SystemRoot === undefined ? {} : { SystemRoot: process.env.SystemRoot }
  const worker = fork(file, [], { execArgv, env, serialization: 'advanced', stdio: ['ignore', 'ignore', 'pipe', 'ipc'] })
  // A child that cannot be interrupted does not notice that we are gone, and would compute for ever.
  const end = () => void worker.kill('SIGKILL')
  process.once('exit', end)
  worker.once('exit', () => process.off('exit', end))
  const stderr = worker.stderr as typeof worker.stderr & { ref?(): void; unref?(): void }
  const handle: Handle & { worker: typeof worker } = {
    worker,
    // If the child has just died, its exit event reports that, not this callback.
    post: (message) => void worker.send(message as object, () => {}),
    kill: end,
    hold(yes) {
      const what = yes ? 'ref' : 'unref'
      worker[what]()
      worker.channel?.[what]()
      stderr?.[what]?.()
    },
    lastWords: '',
    job: null,
    ready: false,
  }
  stderr?.on('data', (text) => (handle.lastWords = (handle.lastWords + String(text)).slice(-4000)))
  return handle
}

/**
 * The paths that a child must be able to read to start a script: our code with its package.json (which gives the module type), and the `node_modules`
 * folders that Node searches from there. Missing folders are included, as Node asks for them too, and links both by name and by target.
 */
function readableFor(script: string, packages: readonly string[]): string[] {
  const own = ['../../', '../../../package.json'].map((path) => fileURLToPath(new URL(path, import.meta.url)))
  const folders: string[] = []
  for (let folder = dirname(script); ; folder = dirname(folder)) {
    if (basename(folder) !== 'node_modules') folders.push(join(folder, 'node_modules'))
    if (folder === dirname(folder)) break
  }
  const real = packages.map((name) => realpathSync(fileURLToPath(import.meta.resolve(name))))
  const linked = real.map((file) => file.slice(0, file.lastIndexOf('node_modules') + 'node_modules'.length))
  return [...new Set([...own, ...folders, ...linked])]
}
