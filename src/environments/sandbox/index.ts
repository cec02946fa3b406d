/**
 * Runs JavaScript that a model wrote, for reward functions: with limits on time, memory and output, without access to files, the network or anything
 * else on the machine, and never in the trainer's own isolate.
 * Each run gets a fresh instance of QuickJS compiled to WebAssembly (quickjs-emscripten), in a child process under Node's --permission that is killed
 * if it does not return. This gives three layers of protection: QuickJS can reach nothing outside its memory except one `write` function; the child
 * may open no files but its own code and start no processes; and a crash of the child affects nothing else. A child starts as fast as a thread
 * (docs/environments.md).
 */
import { load } from '../packages.ts'
import { CallEnded, Workers } from './pool.ts'
import type { SandboxJob, SandboxResult } from './protocol.ts'

export type { SandboxCall, SandboxCause, SandboxResult } from './protocol.ts'

export interface SandboxOptions {
  /** Values that the code sees as globals, as JSON data. */
  globals?: Record<string, unknown>
  /** If given, the code must evaluate to a function, which is called with each of these argument lists. Results are in `calls`, not in `value`. */
  calls?: unknown[][]
  /** Limit on the run's processor time, which is used so that a busy machine does not change rewards. Default 2. */
  seconds?: number
  /** Memory limit. Default 32. At least 17, which QuickJS itself needs. */
  memoryMb?: number
  /** Maximum number of characters of the whole output, and of each value. Default 65536. */
  outputBytes?: number
  /** Seed of Math.random. Default 0. */
  seed?: number
  /** Ends the run early. */
  signal?: AbortSignal
}

/** Wall-clock seconds after which a process that has not finished its run is killed. Its start does not count. */
const killAfter = (seconds: number): number => 3 * seconds + 2

const packages = ['quickjs-emscripten']

let pool: Workers | undefined

/**
 * Runs `code` as a script. Never rejects because of what the code does: `error` describes what went wrong, `cause` is its kind. Throws UserError if
 * quickjs-emscripten is not installed, and RangeError for limits that are not above 0.
 *
 *     const { value, error } = await runSandboxed('[1, 2, 3].map(x => x * x)', { seconds: 1 })
 */
export async function runSandboxed(code: string, options: SandboxOptions = {}): Promise<SandboxResult> {
  const { seconds = 2, memoryMb = 32, outputBytes = 65_536, signal } = options
  for (const [name, value] of Object.entries({ seconds, memoryMb: memoryMb - 16, outputBytes })) {
    if (!(value > 0))
      throw new RangeError(
        `sandbox: ${name} is ${name === 'memoryMb' ? `${memoryMb}; it must be above 16` : `${value}; it must be above 0`}`,
      )
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

/** Ends the sandbox's processes. The next run starts new ones. Idle processes do not keep Node running, so only tests need this. */
export function closeSandbox(): void {
  pool?.close()
  pool = undefined
}
