/** Retries of a step whose rollouts all failed: what they depend on (a judge, a tool server) may come back. Without a sampler nothing can. */
import { setTimeout as sleep } from 'node:timers/promises'
import { sentenceOf, UserError } from '../common/errors.ts'
import { pauseMs, type Pauses } from '../common/faults.ts'
import type { Rollout } from '../common/types.ts'
import { limitKey } from '../monitor/warnings.ts'

/** How often to retry, and the pauses in between. */
export interface Again extends Pauses {
  tries: number
  /** Whether it is known that retrying cannot help, as the sampler is gone. */
  hopeless: () => boolean
  /** Whether the run has scored steps already, before it was resumed. Default false. */
  worked?: boolean
}

/** Replays a step until at least one of its rollouts is scored. */
export class Replays {
  readonly #again: Again | undefined
  readonly #warn: ((line: string) => void) | undefined
  /** Whether any step of the run was scored so far. If none was, the failure is likely a mistake rather than an outage, and is reported at once. */
  #worked: boolean
  readonly #stop = new AbortController()

  constructor(again: Again | undefined, warn: ((line: string) => void) | undefined) {
    this.#again = again
    this.#worked = again?.worked ?? false
    this.#warn = warn
  }

  /** Ends all retries, and any pause before one, because the run ends. */
  stop(): void {
    this.#stop.abort()
  }

  /**
   * Returns the rollouts of a step, at least one of which has a reward.
   * @param play plays the step's rollouts anew on each call
   * @throws Error if all of them failed on every try, with the first rollout's reason; UserError if the reason is the environment's code
   */
  async scored(step: number, play: () => Promise<Rollout[]>): Promise<Rollout[]> {
    for (let n = 0; ; n++) {
      const rollouts = await play()
      if (rollouts.some((r) => r.reward !== null)) {
        this.#worked = true
        return rollouts
      }
      const error = allFailed(step, rollouts, n + 1)
      const { signal } = this.#stop
      const inVain = rollouts.every(isPolicys) || this.#again?.hopeless()
      if (!this.#again || n >= this.#again.tries || !this.#worked || signal.aborted || inVain) throw error
      const ms = pauseMs(n, this.#again)
      this.#warn?.(`${error.message} They are tried again in ${ms / 1000} s (try ${n + 2} of ${this.#again.tries + 1}).`)
      await sleep(ms, undefined, { signal }).catch(() => {})
      if (signal.aborted) throw error
    }
  }

  /**
   * Returns the rollouts of an evaluation. Those that failed count in its metrics, unless they failed because the sampler is gone for good.
   * @throws Error in that case: a resumed run makes the evaluation again
   */
  evaluated(name: string, rollouts: Rollout[]): Rollout[] {
    const failed = rollouts.find(({ reward }) => reward === null)
    if (!failed || this.#stop.signal.aborted || !this.#again?.hopeless()) return rollouts
    throw new Error(`The evaluation of ${name} could not be finished: ${sentenceOf(failed.error ?? 'no reward')}`)
  }
}

/** The same weights, tasks and seeds would fail again (engine.ts). */
const isPolicys = ({ error }: Rollout): boolean => /^the model's logits at .* are not finite/u.test(error ?? '')

function allFailed(step: number, rollouts: Rollout[], times: number): Error {
  const often = times > 1 ? `, ${times} times in a row` : ''
  const [{ error, completion_tokens }] = rollouts
  const limit = limitKey(error ?? '')
  const message = `All ${rollouts.length} rollouts of step ${step} failed${often}. The first error: ${sentenceOf(error ?? 'no reward')}${limit ? ` Raise ${limit}.` : ''}`
  // A UserError if a time limit is too short, or the environment is to blame: its code threw, its prompt is too long, its messages do not suit the
  // chat template, or it could not score the answers. Other failures are the sampler's.
  const isTheirs =
    limit !== undefined ||
    completion_tokens.ids.length > 0 ||
    /^(?:the (?:environment(?:'s| threw| raised| ended with)|prompt has)|The chat template of )/u.test(error ?? '')
  return isTheirs ? new UserError(message) : new Error(message)
}
