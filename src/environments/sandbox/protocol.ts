/** The input and output of a sandboxed run, for both the pool's and the worker's side. */

export interface SandboxJob {
  code: string
  /** Values that the code sees as globals: JSON. */
  globals: Record<string, unknown>
  /**
   * Call what the code evaluates to with each of these argument lists; each result is in `calls`. Without: nothing is called.
   */
  calls: unknown[][]
  seconds: number
  memoryMb: number
  outputBytes: number
  seed: number
}

/**
 * What stopped a run: 'code': it threw or is no JavaScript; 'time', 'memory', 'stack', 'output': a limit; 'crash': the engine itself broke;
 * 'abort': the caller ended it.
 */
export type SandboxCause = 'code' | 'time' | 'memory' | 'stack' | 'output' | 'crash' | 'abort'

/** The result of one call. `value` is JSON data; undefined where the result is not. */
export interface SandboxCall {
  value: unknown
  /** The cause in words, null where there was none. */
  error: string | null
}

export interface SandboxResult {
  /** The output of `console.log` and the like, one line for each call, cut at the limit. */
  stdout: string
  /** What the code evaluated to (a promise: what it settled to), as JSON data. */
  value: unknown
  /** Results in the order of the job's calls; fewer where a limit ended the run. */
  calls: SandboxCall[]
  /** The cause in words, null when the code ran to its end. */
  error: string | null
  cause: SandboxCause | null
}
