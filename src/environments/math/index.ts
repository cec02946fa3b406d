/**
 * Rewards for mathematical answers. `MathRubric` finds the final answer and decides whether it equals the row's answer, regardless of notation.
 * `mathEqual` only compares. Parsing and comparing run in a worker thread with a time limit, because an answer like `9^{9^{9^9}}` would take forever.
 * docs/environments.md says what counts as equal.
 */
import type { Message } from '../../common/types.ts'
import { type KeysOf, refuseUnknown } from '../known-options.ts'
import { MaybeThinkParser, type Parser } from '../parsers.ts'
import { type GroupRewardSpec, type RewardSpec, Rubric } from '../rubric.ts'
import { load } from '../packages.ts'
import { CallEnded, Workers } from '../sandbox/pool.ts'
import type { RewardArgs } from '../types.ts'
import { extractAnswer } from './extract.ts'

export { extractAnswer, lastBoxed } from './extract.ts'

export interface MathEqualOptions {
  /** Time limit of one comparison. Default 5. */
  seconds?: number
  /** Relative difference up to which two numbers count as equal. Default 0: 0.333 does not equal 1/3. */
  tolerance?: number
  signal?: AbortSignal
}

/** `undecided`: why there is no verdict (time, memory, a number too large), in words. `equal` is false in this case. */
export interface MathVerdict {
  equal: boolean
  undecided: string | null
}

let workers: Workers | undefined

/**
 * Whether two final answers are equal: `\frac{1}{2}` and `0.5`, `\{2, 1\}` and `1, 2`, `(x+1)^2` and `x^2+2x+1`. Never rejects because of their
 * content. Throws UserError if @cortex-js/compute-engine is not installed, and CallEnded if aborted.
 */
export async function mathEqual(gold: string, given: string, options: MathEqualOptions = {}): Promise<MathVerdict> {
  const [a, b] = [gold.trim(), given.trim()]
  if (a === '' || b === '') return { equal: false, undecided: null }
  if (a === b) return { equal: true, undecided: null }
  // Most answers of most datasets are numbers, which need no thread. Up to fifteen digits are exact.
  if (/^-?\d{1,15}$/u.test(a) && /^-?\d{1,15}$/u.test(b) && !options.tolerance)
    return { equal: Number(a) === Number(b), undecided: null }
  if (!workers) {
    await load('@cortex-js/compute-engine', () => Promise.resolve(import.meta.resolve('@cortex-js/compute-engine')))
    workers ??= new Workers({ script: new URL('./worker.ts', import.meta.url), as: 'thread', heapMb: 512 })
  }
  const { seconds = 5, tolerance = 0, signal } = options
  try {
    return await workers.call<MathVerdict>('same', [a, b, { tolerance }], { seconds, signal })
  } catch (error) {
    // Only a limit that the answer itself exceeded is a verdict. An abort, or workers that do not start, are errors.
    if (!(error instanceof CallEnded) || error.why === 'abort') throw error
    return { equal: false, undecided: error.message }
  }
}

/** Ends the worker threads. The next comparison starts new ones. Idle threads do not keep Node running, so only tests need this. */
export function closeMath(): void {
  workers?.close()
  workers = undefined
}

export interface MathRubricOptions {
  /** Weight of `correct_answer`. Default 1. */
  weight?: number
  /** Additional reward functions and metrics. */
  functions?: Record<string, RewardSpec>
  /** Group functions. */
  group?: Record<string, GroupRewardSpec>
  /** Extracts the final answer from the assistant's text. Default: extractAnswer, applied to the text after `</think>` if there is one. */
  parser?: Parser
  /** Time limit of one comparison. A comparison that exceeds it counts as wrong. Default 5. */
  seconds?: number
  /** See MathEqualOptions. Default 0. */
  tolerance?: number
}

const keys: KeysOf<MathRubricOptions> = {
  weight: true,
  functions: true,
  group: true,
  parser: true,
  seconds: true,
  tolerance: true,
}

/**
 * Rewards correct final answers. `correct_answer` is 1 if the final answer equals the row's, else 0. The metric `math_undecided` is 1 if a limit
 * ended the comparison. The row's answer may be the answer alone, a solution that ends in `#### 42`, or one with `\boxed{42}`.
 */
export class MathRubric extends Rubric {
  constructor(options: MathRubricOptions = {}) {
    refuseUnknown('math rubric', options, keys)
    const { weight = 1, functions = {}, seconds, tolerance } = options
    const verdicts = new WeakMap<Message[], Promise<MathVerdict>>()
    const verdict = (args: RewardArgs) => {
      let found = verdicts.get(args.completion)
      if (!found) {
        const gold = extractAnswer(args.answer)
        if (gold === '')
          throw new Error(
            `the row's answer (${JSON.stringify(args.answer.slice(0, 60))}) contains no final answer to compare with`,
          )
        found = mathEqual(gold, args.text, { seconds, tolerance, signal: args.signal })
        verdicts.set(args.completion, found)
      }
      return found
    }
    super(
      {
        // Comparisons wait in a queue for two threads. `seconds` limits one comparison, this limit includes the time in the queue.
        correct_answer: { reward: async (args) => ((await verdict(args)).equal ? 1 : 0), weight, timeoutSeconds: 1200 },
        math_undecided: {
          reward: async (args) => ((await verdict(args)).undecided === null ? 0 : 1),
          weight: 0,
          timeoutSeconds: 1200,
        },
        ...functions,
      },
      { parser: options.parser ?? new MaybeThinkParser(extractAnswer), group: options.group },
    )
  }
}
