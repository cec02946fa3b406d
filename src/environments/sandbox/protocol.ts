/** The input and output of a sandboxed run, shared by the pool and the worker. */

/** The input of a sandboxed run. */
export interface SandboxJob {
  code: string
  /** Values that the code sees as globals, as JSON data. */
  globals: Record<string, unknown>
  /** Argument lists with which to call the function that the code evaluates to. Each result goes into `calls`. If there are none, nothing is called. */
  calls: unknown[][]
  seconds: number
  memoryMb: number
  outputBytes: number
  seed: number
}

/**
 * What stopped a run. 'code': the code threw or is not valid JavaScript. 'time', 'memory', 'stack', 'output': a limit. 'crash': the engine itself
 * broke. 'abort': the caller ended it.
 */
export type SandboxCause = 'code' | 'time' | 'memory' | 'stack' | 'output' | 'crash' | 'abort'

/** The result of one call. `value` is JSON data, or undefined if the result is not. */
export interface SandboxCall {
  value: unknown
  /** The error in words, null if there was none. */
  error: string | null
}

/** The output of a sandboxed run. */
export interface SandboxResult {
  /** Output of `console.log` and similar functions, one line per call, cut off at the limit. */
  stdout: string
  /** What the code evaluated to, as JSON data. For a promise, the value that it settled to. */
  value: unknown
  /** Results in the order of the job's calls. Fewer than calls if a limit ended the run. */
  calls: SandboxCall[]
  /** The error in words, null if the code ran to its end. */
  error: string | null
  cause: SandboxCause | null
}
