/** The turns of a rollout as tokens, with the information which of them were sampled. */
import type { ChatCompletion, RolloutTurn, TokenLogprobs } from '../common/types.ts'

/**
 * Collects completions into one rollout. A completion whose prompt begins with all tokens of the completion before continues that sequence (one
 * training sample); any other starts a new sequence.
 */
export class Trajectory {
  readonly turns: RolloutTurn[] = []
  readonly tokens: TokenLogprobs = { ids: [], logprobs: [], versions: [] }
  /** The prompt of the first turn. */
  promptIds: number[] = []
  #last: ChatCompletion | undefined

  get last(): ChatCompletion | undefined {
    return this.#last
  }

  add(completion: ChatCompletion): void {
    const { promptIds, ids } = completion
    const known = this.#last ? this.#last.promptIds.length + this.#last.ids.length : 0
    const goesOn = this.#last !== undefined && startsWith(promptIds, this.#last)
    if (!this.#last) this.promptIds = promptIds
    const turn: RolloutTurn = { branch: !goesOn, promptIds: goesOn ? promptIds.slice(known) : promptIds, sampled: ids.length }
    if (completion.rewritten) turn.rewritten = true
    this.turns.push(turn)
    for (const key of ['ids', 'logprobs', 'versions'] as const) {
      for (const value of completion[key]) this.tokens[key].push(value)
    }
    this.#last = completion
  }
}

/** Whether `ids` begin with all tokens of a completion: its prompt and its answer. */
export function startsWith(ids: readonly number[], { promptIds, ids: sampled }: ChatCompletion): boolean {
  return promptIds.every((id, i) => ids[i] === id) && sampled.every((id, i) => ids[promptIds.length + i] === id)
}
