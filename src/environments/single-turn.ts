/** The simplest environment: one prompt, one completion, one reward. */
import { readTasks, TaskEnv, taskKeys, type TaskOptions } from './task-env.ts'
import type { RolloutContext, RolloutDraft, Row } from './types.ts'

export type SingleTurnOptions = TaskOptions

export class SingleTurnEnv extends TaskEnv {
  /** Reads the datasets (file, rows or function) and splits them. @throws UserError for invalid data */
  static async create(options: SingleTurnOptions): Promise<SingleTurnEnv> {
    return new SingleTurnEnv(await readTasks(options, taskKeys))
  }

  async rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft> {
    const { text, promptIds, ids, logprobs, versions, finishReason, stopCondition } = await ctx.client.complete(
      row.prompt,
      ctx.sampling,
      ctx.signal,
    )
    return {
      completion: [{ role: 'assistant', content: text }],
      promptIds,
      completion_tokens: { ids, logprobs, versions },
      isTruncated: finishReason === 'length',
      stopCondition: finishReason === 'abort' ? 'abort' : stopCondition,
    }
  }
}
