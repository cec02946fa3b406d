/** Environment files run without a type check: a misspelt option is refused, and not ignored. */
import { expect, test } from 'vitest'
import {
  EnvGroup,
  Judge,
  JudgeRubric,
  MathRubric,
  MultiTurnEnv,
  Rubric,
  SingleTurnEnv,
  StatefulToolEnv,
  ToolEnv,
} from '../../src/environments/index.ts'

const rubric = new Rubric({ right: () => 1 })
const task = { id: 'sums', rubric, dataset: [{ prompt: '1 + 1', answer: '2' }], evalSize: 0 }
const turns = { envResponse: () => 'go on', maxTurns: 2, timeoutSeconds: 9, setupState: () => ({}), cleanup: () => {}, stop: {}, counts: [], toolDefinitions: [] } // prettier-ignore
const tools = { tools: [], noToolsCalled: () => '', formatError: () => '', stopsAt: () => false, maxResultChars: 9, maxCalls: 2 }

test('every option of create is taken', async () => {
  const { toolDefinitions: _, envResponse: __, ...shared } = turns
  const all = { ...task, systemPrompt: 'Add.', seed: 3, sftCompletion: () => '2' }
  await SingleTurnEnv.create(all)
  await MultiTurnEnv.create({ ...all, ...turns })
  await ToolEnv.create({ ...all, ...shared, ...tools, mcp: [] })
  await StatefulToolEnv.create({ ...all, ...shared, ...tools, hidden: {}, updateToolArgs: (_, args) => args })
})

test('a misspelt one is refused with the one that was meant', async () => {
  // @ts-expect-error
  await expect(SingleTurnEnv.create({ ...task, evalsize: 4 })).rejects.toThrow(
    'environment sums: evalsize is not one of its options (did you mean evalSize?).',
  )
  // @ts-expect-error
  await expect(MultiTurnEnv.create({ ...task, ...turns, max_turns: 4 })).rejects.toThrow(/max_turns .*did you mean maxTurns\?/)
  // @ts-expect-error
  await expect(ToolEnv.create({ ...task, ...tools, envResponse: () => '' })).rejects.toThrow(/envResponse is not one/)
  const hidden = { hidden: {}, updateToolArgs: () => ({}) }
  // @ts-expect-error
  await expect(StatefulToolEnv.create({ ...task, ...hidden, maxCall: 3 })).rejects.toThrow(/did you mean maxCalls\?/)
})

test('likewise in rubrics, judges and groups', async () => {
  // @ts-expect-error
  expect(() => new Rubric({ right: () => 1, words: { reward: () => 1, wieght: 0 } })).toThrow(
    'rubric: "words": wieght is not one of its options (did you mean weight?).',
  )
  // @ts-expect-error
  expect(() => new Rubric({ right: () => 1 }, { groups: {} })).toThrow(/did you mean group\?/)
  // @ts-expect-error
  expect(() => new MathRubric({ timeoutSeconds: 9 })).toThrow(/math rubric: timeoutSeconds is not one of its options/)
  // @ts-expect-error
  expect(() => new Judge({ model: 'judge', baseUrl: 'http://127.0.0.1:1/v1' })).toThrow(/did you mean baseURL\?/)
  // @ts-expect-error
  expect(() => new JudgeRubric({ judge: { model: 'judge' }, judges: {} })).toThrow(/judge rubric: judges is not/)
  const env = await SingleTurnEnv.create(task)
  // @ts-expect-error
  expect(() => new EnvGroup({ id: 'both', envs: [{ env, wait: 2 }] })).toThrow(/member sums: wait is not one of its options/)
})
