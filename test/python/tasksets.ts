/** What the tests of tasksets share: the small one of taskset_tasks.py, and how its tasks are played. */
import type { Rollout } from '../../src/common/types.ts'
import { runRollout } from '../../src/environments/index.ts'
import type { PythonEnv, PythonOptions } from '../../src/environments/python/environment.ts'
import { sampling } from '../environments/scripted.ts'
import { fixtures, opened, saying, tasksetsPython } from './helpers.ts'

export type Say = Parameters<typeof saying>[0]
export const options = { base: fixtures, python: tasksetsPython }
export const openLetters = async (args: Record<string, unknown>, more: PythonOptions = {}) =>
  await opened('./taskset_tasks.py', args, { ...options, ...more })

let group = 0
/** Plays a row, by default the first; of the rows of a kind where one is given. */
export async function play(
  env: PythonEnv,
  say: Say,
  {
    kind,
    index = 0,
    seconds = 60,
    maxSeqTokens,
  }: { kind?: string; index?: number; seconds?: number; maxSeqTokens?: number } = {},
): Promise<Rollout & { asked: number[][] }> {
  const { client, generator } = await saying(say, { maxSeqTokens })
  const context = { client, sampling, group: `g${group++}`, index: 0, generationTimeoutSeconds: seconds }
  const rows = env.dataset.filter(({ info }) => kind === undefined || info.kind === kind)
  const rollout = await runRollout(env, rows[index], context)
  return { ...rollout, asked: generator.requests.map(({ promptIds }) => promptIds) }
}

/** Says one text after the other. */
export function inTurn(...texts: string[]): Say {
  let turn = 0
  return () => texts[turn++]
}
