/**
 * Runs JavaScript that a model wrote, as a reward needs it: with limits of time, memory and output, without files, network or anything
 * else of the machine, and never in the trainer's own isolate.
 * It is QuickJS compiled to WebAssembly (quickjs-emscripten), a fresh instance for each run, in a child process under Node's --permission, which is
 * killed when it does not return. So there are three walls: QuickJS can reach nothing outside its memory but one `write` function; the child
 * may open no file but its own code, and start no process; and a crash of the child affects nothing else. A child starts as fast as a thread
 * (docs/environments.md).
 */
import { load } from '../packages.ts'
import { CallEnded, Workers } from './pool.ts'
import type { SandboxJob, SandboxResult } from './protocol.ts'

export type { SandboxCall, SandboxCause, SandboxResult } from './protocol.ts'

export interface SandboxOptions {
  /** Values that the code sees as globals: JSON data. */
  globals?: Record<string, unknown>
  /** The code must evaluate to a function, which is called with each of these argument lists; results are in `calls`, not in `value`. */
  calls?: unknown[][]
  /** Limit of the run's processor time, so that a busy machine changes no reward. Default 2. */
  seconds?: number
  /** Memory limit. Default 32; at least 17, which QuickJS itself needs. */
  memoryMb?: number
  /** The most characters of all output, and of each value. Default 65536. */
  outputBytes?: number
  /** Seed of Math.random. Default 0. */
  seed?: number
  /** Ends the run early. */
  signal?: AbortSignal
}

/** Wall-clock seconds after which a process that does not end its run is killed; its start is not counted. */
const killAfter = (seconds: number): number => 3 * seconds + 2

const packages = ['quickjs-emscripten']

let pool: Workers | undefined

/**
 * Runs `code` as a script. Never rejects for what the code does: `error` describes the cause, `cause` names its kind.
 * Throws UserError where quickjs-emscripten is not installed, and RangeError for limits that are not above 0.
 *
 *     const { value, error } = await runSandboxed('[1, 2, 3].map(x => x * x)', { seconds: 1 })
 */
export async function runSandboxed(code: string, options: SandboxOptions = {}): Promise<SandboxResult> {
  const { seconds = 2, memoryMb = 32, outputBytes = 65_536, signal } = options
  for (const [name, value] of Object.entries({ seconds, memoryMb: memoryMb - 16, outputBytes })) {
    if (!(value > 0)) throw new RangeError(`sandbox: ${name} is ${name === 'memoryMb' ? memoryMb : value}, too little`)
  }
  if (!pool) {
    await load('quickjs-emscripten', () => import('quickjs-emscripten'))
    pool ??= new Workers({ script: new URL('./worker.ts', import.meta.url), as: 'child', packages })
  }
  const { globals = {}, calls = [], seed = 0 } = options
  const job: SandboxJob = { code, globals, calls, seconds, memoryMb, outputBytes, seed }
  try {
    return await pool.call<SandboxResult>('run', [job], { seconds: killAfter(seconds), signal })
  } catch (error) {
    if (!(error instanceof CallEnded)) throw error
    const words =
      error.why === 'time' ? `it took longer than its limit of ${seconds} s and could not be interrupted` : error.message
    return { stdout: '', value: undefined, calls: [], error: words, cause: error.why }
  }
}

/** Ends the sandbox's processes; the next run starts new ones. Idle ones do not keep a process alive, so only tests need it. */
export function closeSandbox(): void {
  pool?.close()
  pool = undefined
}
