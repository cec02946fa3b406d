import { spawnSync } from 'node:child_process'
import { appendFileSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { readJsonLines } from '../../src/monitor/files.ts'
import { createLogger } from '../../src/monitor/logger.ts'
import { MetricsWriter, readMetrics } from '../../src/monitor/metrics-writer.ts'
import {
  answerPairs,
  readRollouts,
  rolloutRow,
  RolloutWriter,
  tokensRow,
  type TokensRow,
} from '../../src/monitor/rollout-writer.ts'
import { writeTrace } from '../../src/monitor/trace-file.ts'
import fc from '../fast-check.ts'
import { rollout, scored, temporaryFolder } from './helpers.ts'
import { isWindows } from '../windows.ts'

test('of a file of JSON lines whole objects are read and nothing else', () => {
  const path = join(temporaryFolder(), 'rows.jsonl')
  appendFileSync(path, '{"n":1}\nnull\n3\n"x"\n[4]\n\n{"n":5}\n{"n":')
  expect(readJsonLines(path)).toEqual([{ n: 1 }, { n: 5 }])
  expect(readJsonLines(join(path, '..'))).toEqual([])
})

test('a row is one flat object with step and time; what is not finite is null, with one warning a metric', () => {
  const path = join(temporaryFolder(), 'metrics.jsonl')
  const warnings: string[] = []
  const writer = new MetricsWriter({ path, onWarning: (m) => warnings.push(m), now: () => 1_700_000_000_500 })
  writer.write(1, { reward: 0.5, 'loss/mean': NaN, 'optim/grad_norm': null })
  writer.write(2, { reward: 0.6, 'loss/mean': NaN, 'optim/grad_norm': Infinity })
  writer.close()
  writer.close()
  expect(readFileSync(path, 'utf8')).toBe(
    '{"step":1,"time":1700000000.5,"reward":0.5,"loss/mean":null,"optim/grad_norm":null}\n' +
      '{"step":2,"time":1700000000.5,"reward":0.6,"loss/mean":null,"optim/grad_norm":null}\n',
  )
  expect(warnings).toEqual([
    'loss/mean was NaN at step 1 and is written as null (said once for this metric).',
    'optim/grad_norm was Infinity at step 2 and is written as null (said once for this metric).',
  ])
})

test('a line that a killed process left unfinished does not spoil the next one', () => {
  const path = join(temporaryFolder(), 'metrics.jsonl')
  const write = (step: number) => {
    const writer = new MetricsWriter({ path, onWarning: () => {} })
    writer.write(step, { reward: step })
    writer.close()
  }
  write(1)
  // Longer than the chunk in which the end of the file is searched.
  appendFileSync(path, `{"step":2,"long":"${'x'.repeat(200_000)}`)
  expect(readMetrics(path).map((r) => r.step)).toEqual([1])
  write(3)
  expect(readFileSync(path, 'utf8').split('\n')).toHaveLength(3)
  expect(readMetrics(path).map((r) => r.step)).toEqual([1, 3])
})

test('lines without a step and a time are no rows', () => {
  const path = join(temporaryFolder(), 'metrics.jsonl')
  const lines = [
    '{"step":1,"time":5,"reward":1}',
    '{"step":2,"reward":1}',
    '{"time":5}',
    'null',
    '{"step":3,"time":1e300}',
    '{"step":"4","time":5}',
  ]
  appendFileSync(path, `${lines.join('\n')}\n`)
  expect(readMetrics(path)).toEqual([{ step: 1, time: 5, reward: 1 }])
})

test('rows and the log are on disk although the process is killed at once', () => {
  const folder = temporaryFolder()
  const source = (name: string) => JSON.stringify(pathToFileURL(join(import.meta.dirname, '../../src/monitor', name)).href)
  const paths = { metrics: join(folder, 'metrics.jsonl'), log: join(folder, 'logs', 'attempt_1.log') }
  const { signal } = spawnSync(process.execPath, [
    '--input-type=module',
    '-e',
    `import { MetricsWriter } from ${source('metrics-writer.ts')}
     import { createLogger } from ${source('logger.ts')}
     new MetricsWriter({ path: ${JSON.stringify(paths.metrics)}, onWarning() {} }).write(7, { reward: 1 })
     createLogger(${JSON.stringify(paths.log)}).info('last words')
     process.kill(process.pid, 'SIGKILL')`,
  ])
  expect(signal).toBe(isWindows ? null : 'SIGKILL')
  expect(readMetrics(paths.metrics)).toMatchObject([{ step: 7, reward: 1 }])
  expect(readFileSync(paths.log, 'utf8')).toContain('"msg":"last words"')
})

test('the log has its level, its time and no secrets', () => {
  const path = join(temporaryFolder(), 'logs', 'attempt_1.log')
  const logger = createLogger(path, 'info')
  logger.debug('not this')
  logger.info({ step: 3, endpoint: { url: 'http://127.0.0.1', api_key: 'sk-1234' } }, 'calling')
  logger.close()
  logger.close()
  const lines = readFileSync(path, 'utf8').trim().split('\n')
  expect(lines).toHaveLength(1)
  expect(JSON.parse(lines[0])).toEqual({
    level: 'info',
    time: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/),
    step: 3,
    endpoint: { url: 'http://127.0.0.1', api_key: '[redacted]' },
    msg: 'calling',
  })
})

test('a rollout row has the keys of RolloutOutput and ours; tokens are apart', () => {
  const one = rollout({
    metrics: { ends: 1, reward: 9 },
    completion_tokens: { ids: [5, 6, 7], logprobs: [-0.1, -0.2, -0.3], versions: [3, 4, 3] },
  })
  expect(rolloutRow(4, 'train', { rollout: one, advantage: -0.25 })).toEqual({
    // Metrics are at the top level too, but never in the place of a key.
    ends: 1,
    example_id: 0,
    prompt: [{ role: 'user', content: 'What is the capital of France?' }],
    completion: [{ role: 'assistant', content: 'Paris.' }],
    answer: 'Paris',
    info: {},
    reward: 1,
    metrics: { ends: 1, reward: 9 },
    error: null,
    is_completed: true,
    is_truncated: false,
    stop_condition: 'eos',
    timing: { generation_ms: 10, scoring_ms: 1, total_ms: 11 },
    token_usage: { input_tokens: 4, output_tokens: 3, final_input_tokens: 4, final_output_tokens: 3 },
    advantage: -0.25,
    policy_version: { min: 3, max: 4 },
    env: 'short-answers',
    group: 'g0',
    index: 0,
    seed: 1,
    split: 'train',
    step: 4,
  })
  const failed = rollout({
    reward: null,
    error: 'TimeoutError: reward took too long',
    completion_tokens: { ids: [], logprobs: [], versions: [] },
  })
  expect(rolloutRow(4, 'train', { rollout: failed, advantage: null })).toMatchObject({
    reward: null,
    error: { error: 'TimeoutError', message: 'reward took too long' },
    is_completed: false,
    advantage: null,
    policy_version: null,
  })
})

test('token_usage of several turns: all tokens, and those of the last sequence', () => {
  const turn = (branch: boolean, prompt: number, sampled: number) => ({
    branch,
    promptIds: Array.from({ length: prompt }, () => 1),
    sampled,
  })
  const tokens = { ids: [5, 6, 7, 8, 9, 10], logprobs: [0, 0, 0, 0, 0, 0], versions: [0, 0, 0, 0, 0, 0] }
  const usage = (...turns: ReturnType<typeof turn>[]) =>
    rolloutRow(1, 'train', { rollout: rollout({ promptIds: [1, 1], turns, completion_tokens: tokens }), advantage: 1 })
      .token_usage
  expect(usage(turn(true, 2, 1), turn(false, 3, 5))).toEqual({
    input_tokens: 5, output_tokens: 6, final_input_tokens: 5, final_output_tokens: 6,
  }) // prettier-ignore
  expect(usage(turn(true, 2, 1), turn(true, 10, 2), turn(false, 4, 3))).toEqual({
    input_tokens: 16, output_tokens: 6, final_input_tokens: 14, final_output_tokens: 5,
  }) // prettier-ignore
})

test('answers before and after are paired by environment, question and place in the group', () => {
  const of = (env: string, example_id: number, index: number, reward: number | null) => ({ env, example_id, index, reward })
  const before = [of('a', 0, 0, 0.5), of('a', 0, 1, 0), of('b', 0, 0, null), of('b', 1, 0, 1)]
  const after = [of('b', 0, 0, 0.25), of('a', 0, 1, 1), of('a', 0, 0, 0.25)]
  expect(answerPairs(before, after)).toEqual([
    { before: before[0], after: after[2], gain: -0.25 },
    { before: before[1], after: after[1], gain: 1 },
    { before: before[2], after: after[0], gain: 0.25 },
  ])
})

test("the trainer's numbers are rounded, but where they are the sampler's to the bit they stay so", () => {
  const logprobs = [-0.123456789, -0.5, -2].map(Math.fround)
  const trainer = { logprobs: [logprobs[0], -0.12345678, null], entropies: [1.23456789, 0.00004, null] }
  const row = tokensRow(1, 'train', rollout({ completion_tokens: { ids: [5, 6, 7], versions: [0, 0, 0], logprobs } }), trainer)
  expect(row.trainer_logprobs).toEqual([row.logprobs[0], -0.123457, null])
  expect(row.entropies).toEqual([1.2346, 0, null])
})

test('what an environment put into info is written as a text where JSON has no word for it', () => {
  const self: Record<string, unknown> = {}
  self.again = self
  const folder = temporaryFolder()
  const at = (ending: string) => (step: number) => join(folder, `${step}${ending}`)
  const paths = { rolloutsPath: at('.jsonl'), tokensPath: at('.tokens.jsonl') }
  new RolloutWriter(paths).write(1, 'train', scored([rollout({ info: { size: 12n, self, plain: [1] } })]))
  expect(readRollouts(paths, 1).map(({ info }) => info)).toEqual([
    { size: '12n', self: '<ref *1> { again: [Circular *1] }', plain: [1] },
  ])
})

test('train and eval rollouts of a step share a file, row for row with their tokens', () => {
  const base = temporaryFolder()
  const folder = {
    rolloutsPath: (step: number) => join(base, `step_${step}.jsonl`),
    tokensPath: (step: number) => join(base, `step_${step}.tokens.jsonl`),
  }
  const writer = new RolloutWriter(folder)
  writer.write(3, 'train', scored([rollout(), rollout({ index: 1 })], new Float32Array([0.5, 0.5, -1])))
  writer.write(3, 'eval', scored([rollout({ group: 'e0' })]))
  writer.write(4, 'train', [])
  const rows = readRollouts(folder, 3)
  expect(rows.map((r) => [r.split, r.group, r.index, r.advantage])).toEqual([
    ['train', 'g0', 0, [0.5, 0.5, -1]],
    ['train', 'g0', 1, [0.5, 0.5, -1]],
    ['eval', 'e0', 0, null],
  ])
  const tokens = readJsonLines<TokensRow>(folder.tokensPath(3))
  expect(tokens.map((r) => [r.split, r.group, r.index])).toEqual(rows.map((r) => [r.split, r.group, r.index]))
  expect(tokens[0]).toMatchObject({ prompt_ids: [1, 2, 3, 4], completion_ids: [5, 6, 7], versions: [0, 0, 0] })
  expect(readRollouts(folder, 4)).toEqual([])
})

test('a float32 log-probability comes back from the file bit for bit', () => {
  fc.assert(
    fc.property(fc.array(fc.float({ noNaN: true, noDefaultInfinity: true })), (values) => {
      const row = tokensRow(1, 'train', rollout({ completion_tokens: { ids: [], versions: [], logprobs: values } }))
      const back = (JSON.parse(JSON.stringify(row)) as typeof row).logprobs
      expect(back.map(Math.fround)).toEqual(values.map((v) => v + 0 || 0))
    }),
  )
})

test('a trace that cannot be written to its end leaves the one before', async () => {
  const folder = temporaryFolder()
  const path = join(folder, 'trace.json')
  const event = { ph: 'X', name: 'a', pid: 1, tid: 1, ts: 0, dur: 1 } as const
  await writeTrace(path, [event], { steps: 'step 1' })
  const before = readFileSync(path, 'utf8')
  expect(JSON.parse(before)).toMatchObject({ traceEvents: [event] })
  const broken = { ...event, args: { bytes: 1n as unknown as number } }
  await expect(writeTrace(path, [event, broken], { steps: 'step 2' })).rejects.toThrow('BigInt')
  expect(readFileSync(path, 'utf8')).toBe(before)
  expect(readdirSync(folder)).toEqual(['trace.json'])
})
