/** Input and output of a contestant, the same for ours and for peers in Python; and how a child process runs one. */
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder } from '../../src/common/cache.ts'

/** What is measured in one process. */
export type Work =
  | 'check'
  | 'generate'
  | 'score'
  | 'lora step'
  | 'rl smollm2'
  | 'rl tiny lora'
  | 'rl tiny full'
  | 'matmul'
  | 'small step'

export interface Job {
  work: Work
  /** A Hugging Face folder. */
  model: string
  /** The kind of device for our side; a peer uses the same kind if it can. */
  device: 'cpu' | 'gpu'
  /** Questions, for chat templates. */
  prompts: string[]
  /** Prompts as ids, all of one length. */
  windows: number[][]
  /** Training or scoring batch: ids, all of one length. */
  sequences: number[][]
  batches: number[]
  /** New tokens. */
  tokens: number
  /** Timed repeats after a warm-up. */
  repeats: number
  /** Steps of reinforcement learning after a warm-up, with this many rollouts, of which `group` are of one prompt. */
  steps: number
  rollouts: number
  group: number
  lora: boolean
  checkpointing: boolean
  /** Rows of our training micro-batches, and of scoring's. */
  microBatch: number
  /** A checkout of torchlette with its packages. */
  torchlette?: string
}

/** A figure of one process. */
export interface Result {
  name: string
  /** In the unit of the case. */
  value?: number
  /** The peak of memory so far, resident on the host and on the GPU. */
  peakBytes: number
  /** Seconds of `value` that went into generation. */
  generation?: number
  promptTokens?: number
  promptIds?: number[][]
  answers?: number[][]
  logprobs?: number[]
  losses?: number[]
  versions?: Record<string, string>
  threads?: number
  /** The adapter or device, and its kind. */
  on?: string
  device?: Job['device']
}

const MARK = 'RESULT '

/** Writes a figure of this process, with its memory so far; `gpuBytes` is GPU memory beside the host's. */
export function say(result: Omit<Result, 'peakBytes'>, gpuBytes = 0): void {
  console.log(MARK + JSON.stringify({ ...result, peakBytes: hostPeakBytes() + gpuBytes }))
}

/** The figures among the lines that a process wrote. */
export function resultsOf(output: string): Result[] {
  return output
    .split('\n')
    .filter((line) => line.startsWith(MARK))
    .map((line) => JSON.parse(line.slice(MARK.length)) as Result)
}

/** The most memory that was resident: VmHWM where there is one (maxRSS of a child begins with its parent's). */
function hostPeakBytes(): number {
  try {
    const line = /^VmHWM:\s*(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'utf8'))
    if (line) return Number(line[1]) * 1024
  } catch {
    // Not on Linux.
  }
  return process.resourceUsage().maxRSS * 1024
}

/** Why a contestant gave no figure: something that this machine does not have, or an error. */
export class ChildError extends Error {
  override name = 'ChildError'
}

/**
 * Runs a contestant on a job and waits for its figures.
 * @param command the program and its words; the job's file comes after them
 * @throws ChildError with the end of what it wrote, where it fails or needs more than `limitMs`
 */
export async function runJob(command: string[], job: Job, folder: string, limitMs: number): Promise<Result[]> {
  const file = join(folder, 'job.json')
  writeFileSync(file, JSON.stringify(job))
  const [program, ...words] = command
  // As cli.js has it for our commands.
  const env = { ...process.env, NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? join(cacheFolder(), 'modules') }
  const child = spawn(program, [...words, file], { stdio: ['ignore', 'pipe', 'pipe'], detached: true, env })
  let [out, errors] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (out += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (errors += text))
  let late = false
  const end = () => {
    try {
      // The child has its own process group, so that everything it started ends with it.
      process.kill(-child.pid!, 'SIGKILL')
    } catch {
      // It has ended already.
    }
  }
  const timer = setTimeout(() => {
    late = true
    end()
  }, limitMs)
  process.on('exit', end)
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve) => {
    child.on('error', (error) => {
      errors += error.message
      resolve([1, null])
    })
    child.on('close', (...ending) => resolve(ending))
  })
  clearTimeout(timer)
  process.off('exit', end)
  if (late) throw new ChildError(`not done after ${limitMs / 1000} s`)
  const results = resultsOf(out)
  if (code !== 0 || results.length === 0) {
    const last = lastWords(`${errors}\n${out}`)
    throw new ChildError(`ended with ${signal ?? code}: ${last || 'it wrote nothing'}`)
  }
  return results
}

/** The line with the error message, if there is one, else the last line; not a stack frame. */
function lastWords(text: string): string {
  const lines = text.trim().split('\n')
  return (lines.findLast((line) => /^\S*(?:Error|Exception)\b.*:/.test(line)) ?? lines.at(-1)!).trim()
}
