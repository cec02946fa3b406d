/** What the viewer reads of run folders: whole ones, broken ones, and those that are being written. */
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { chmodSync, createWriteStream, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { basename, sep } from 'node:path'
import { hostname } from 'node:os'
import { describe, expect, test } from 'vitest'
import { Random } from '../../../src/common/random.ts'
import { acquireLock } from '../../../src/monitor/run-lock.ts'
import { TimelineWriter } from '../../../src/monitor/timeline-writer.ts'
import { MetricsTable } from '../../../src/monitor/view/metrics.ts'
import { Rollouts } from '../../../src/monitor/view/rollouts.ts'
import { Run } from '../../../src/monitor/view/runs.ts'
import { TimelineFile } from '../../../src/monitor/view/timeline.ts'
import type {
  CompareAnswer, GlossaryEntry, KernelsAnswer, MetricsAnswer, RolloutDetails, RolloutsAnswer, RunDetails, RunSummary, TimelineAnswer,
} from '../../../src/monitor/view/types.ts' // prettier-ignore
import { seed, seedWords } from '../../seed.ts'
import { rollout, scored } from '../helpers.ts'
import { Outputs } from './helpers.ts'

describe('runs', () => {
  test('are found at any depth, with what their files say', async () => {
    const outputs = new Outputs()
    outputs.run('one', [{ reward: 0.25 }, { reward: 1 }, { reward: 0.5 }])
    outputs.run(
      'of a day/x/two',
      [{ reward: null }],
      '[model]\nname = "m"\n[[env]]\nid = "a"\nname = "A"\n[[env]]\nid = "b"\n[trainer.args]\nmax_steps = 9\n',
    )
    outputs.write('no run/notes.txt', 'x')
    outputs.write('half/config.toml', 'max_steps = ')
    const server = await outputs.serve()
    const runs = await server.json<RunSummary[]>('/api/runs')
    expect(runs.map(({ id }) => id).toSorted()).toEqual(['half', 'of a day/x/two', 'one'])
    const [one, two] = ['one', 'of a day/x/two'].map((id) => runs.find((run) => run.id === id))
    expect(one).toMatchObject({
      name: 'one', status: 'finished', step: 3, max_steps: 3, model: 'none', envs: ['sums'], started: 1000,
      reward: { first: 0.25, last: 0.5, best: 1, points: [0.25, 1, 0.5] },
      has: { metrics: true, rollouts: false, timeline: false, kernels: false, report: false },
    }) // prettier-ignore
    expect(two).toMatchObject({ name: 'two', status: 'stopped', step: 1, max_steps: 9, envs: ['A', 'b'], reward: null })
    const details = await server.json<RunDetails>(`/api/runs/${encodeURIComponent('of a day/x/two')}`)
    expect(details.flat).toEqual({
      'model.name': 'm',
      'env.0.id': 'a',
      'env.0.name': 'A',
      'env.1.id': 'b',
      'trainer.args.max_steps': 9,
    })
    expect(await server.json<RunDetails>('/api/runs/half')).toMatchObject({ config: 'max_steps = ', flat: {} })
  })

  test.runIf(process.geteuid !== undefined)("are shown where another one's files cannot be read", async () => {
    const outputs = new Outputs()
    for (const id of ['mine', 'theirs']) {
      outputs.run(id, [{ reward: 1 }])
      outputs.rollouts(id, 1, scored([rollout()]))
    }
    const server = await outputs.serve()
    const files = ['metrics.jsonl', 'config.toml', 'rollouts/step_1.jsonl', 'rollouts/step_1.tokens.jsonl']
    const modes = (mode: number) => files.forEach((name) => chmodSync(outputs.file('theirs', name), mode))
    modes(0)
    chmodSync(outputs.path, 0o755)
    const isRoot = process.geteuid!() === 0
    // root may read every file
    if (isRoot) process.seteuid!(65534)
    try {
      const runs = await server.json<RunSummary[]>('/api/runs')
      expect(runs.map(({ id, step }) => `${id} ${step}`).toSorted()).toEqual(['mine 1', 'theirs 0'])
      expect(await server.json<RunDetails>('/api/runs/theirs')).toMatchObject({ config: '', rolloutSteps: [1] })
      expect(await server.json<RolloutsAnswer>('/api/runs/theirs/rollouts')).toMatchObject({ total: 0, rows: [] })
    } finally {
      if (isRoot) process.seteuid!(0)
    }
    modes(0o644)
    expect((await server.json<MetricsAnswer>('/api/runs/theirs/metrics?keys=reward')).series).toEqual({ reward: [1] })
    expect(await server.json<RolloutsAnswer>('/api/runs/theirs/rollouts')).toMatchObject({ total: 1 })
  })

  test('are one where the folder itself is one', async () => {
    const outputs = new Outputs()
    outputs.run('', [{ reward: 1 }])
    const server = await outputs.serve()
    const [run, ...others] = await server.json<RunSummary[]>('/api/runs')
    expect(others).toEqual([])
    expect(outputs.path.endsWith(`${sep}${run.id}`)).toBe(true)
    expect((await server.json<RunDetails>(`/api/runs/${run.id}`)).summary).toEqual(run)
  })

  test('run while their lock is alive, and were killed where it is not', async () => {
    const outputs = new Outputs()
    const config = '[trainer.args]\nmax_steps = 5\n'
    for (const id of ['alive', 'dead', 'other', 'ended']) outputs.run(id, [{ reward: 1 }], config)
    const release = acquireLock(outputs.file('alive', 'run.lock'), 'alive')
    const gone = spawn(process.execPath, ['-e', ''])
    await once(gone, 'exit')
    const lock = (pid: number, host: string) => JSON.stringify({ pid, host, started: null, since: '' })
    outputs.write('dead/run.lock', lock(gone.pid!, hostname()))
    outputs.write('other/run.lock', lock(gone.pid!, 'another machine'))
    const server = await outputs.serve()
    const statuses = async () =>
      Object.fromEntries((await server.json<RunSummary[]>('/api/runs')).map(({ id, status }) => [id, status]))
    expect(await statuses()).toEqual({ alive: 'running', dead: 'killed', other: 'running', ended: 'stopped' })
    release()
    expect((await statuses()).alive).toBe('stopped')
  })

  test('differ where their configs do', async () => {
    const outputs = new Outputs()
    outputs.run('a,b', [], 'x = 1\nsame = [1]\n[t]\ny = "u"\n')
    outputs.run('c', [], 'x = 2\nsame = [1]\n')
    const server = await outputs.serve()
    const answer = await server.json<CompareAnswer>(`/api/compare?runs=${encodeURIComponent('a,b').replace('%', '%25')},c`)
    expect(answer).toEqual({ runs: ['a,b', 'c'], keys: [{ key: 'x', values: [1, 2] }, { key: 't.y', values: ['u', null] }] }) // prettier-ignore
  })
})

describe('metrics', () => {
  test('grow with the file; a line that is broken or half there is none', async () => {
    const outputs = new Outputs()
    outputs.run('a', [{ reward: 1, loss: null }])
    const server = await outputs.serve()
    const ask = (more = '') => server.json<MetricsAnswer>(`/api/runs/a/metrics?keys=reward,only${more}`)
    expect(await ask()).toEqual({ keys: ['time', 'reward', 'loss'], steps: [1], series: { reward: [1], only: [null] }, rows: 1 })
    outputs.append('a/metrics.jsonl', 'no json\n[]\n{"reward":3}\n{"step":"x"}\n{"step":2,"reward":2}\n{"step":3,"rew')
    expect(await ask()).toMatchObject({ steps: [1, 2], series: { reward: [1, 2] }, rows: 2 })
    outputs.append('a/metrics.jsonl', 'ard":3,"only":"text"}\n{"step":3,"only":7}\n')
    expect(await ask('&from=3')).toMatchObject({ steps: [3], series: { reward: [3], only: [7] }, rows: 4 })
    // A resume writes the file anew, or shortens it.
    writeFileSync(outputs.file('a', 'new'), '{"step":1,"reward":9}\n')
    renameSync(outputs.file('a', 'new'), outputs.file('a', 'metrics.jsonl'))
    expect(await ask()).toMatchObject({ steps: [1], series: { reward: [9] } })
    outputs.write('a/metrics.jsonl', '{"step":1,"reward":7,"b":0}\n{"step":2,"reward":8}\n')
    expect(await ask()).toMatchObject({ steps: [1, 2], series: { reward: [7, 8] }, rows: 2 })
    truncateSync(outputs.file('a', 'metrics.jsonl'), 0)
    expect(await ask()).toMatchObject({ steps: [], rows: 0 })
    rmSync(outputs.file('a', 'metrics.jsonl'))
    expect(await ask()).toMatchObject({ steps: [], rows: 0 })
  })

  test(`thinned out keep their extremes (${seedWords})`, async () => {
    const random = new Random(seed)
    const outputs = new Outputs()
    const rows = Array.from({ length: 10_000 }, (_, i) => ({ a: random.next(), b: i % 7 === 0 ? null : random.next() * i }))
    const [spike, hole] = [random.int(10_000), random.int(10_000)]
    rows[spike].a = 1000
    rows[hole].a = -1000
    outputs.run('a', rows)
    const server = await outputs.serve()
    const { steps, series, rows: all } = await server.json<MetricsAnswer>('/api/runs/a/metrics?keys=a,b&points=800')
    expect(all).toBe(10_000)
    expect(steps.length).toBeLessThanOrEqual(810)
    expect(steps).toEqual([...new Set(steps)].toSorted((x, y) => x - y))
    expect([steps[0], steps.at(-1)]).toEqual([1, 10_000])
    for (const [key, values] of Object.entries(series) as ['a' | 'b', number[]][])
      expect(values).toEqual(steps.map((step) => rows[step - 1][key]))
    expect(series.a).toEqual(expect.arrayContaining([1000, -1000]))
    expect(Math.max(...series.b.map(Number))).toBe(Math.max(...rows.map((row) => row.b ?? 0)))
  })

  test('have words, and ranges where the words name one', async () => {
    const server = await new Outputs().serve()
    const keys = [
      'reward',
      'entropy/all/mean',
      'mismatch_kl/all/mean',
      'is_truncated/mean',
      'is_truncated/x/mean',
      'solved_some',
      'my/own',
      'has_error/mean',
    ].map(encodeURIComponent)
    const words = await server.json<Record<string, GlossaryEntry>>(`/api/glossary?keys=${keys.join()}`)
    expect(words['is_truncated/mean'].range).toEqual({ max: 0.1 })
    expect(words['is_truncated/x/mean'].help).toContain('one environment')
    expect(words['entropy/all/mean'].range).toEqual({ min: 0.05 })
    expect(words['mismatch_kl/all/mean'].range).toEqual({ max: 0.01 })
    expect(words.solved_some.range).toEqual({ min: 0.3 })
    expect(words['has_error/mean'].range).toEqual({ max: 0 })
    expect(words.reward).toMatchObject({ unit: 'reward' })
    expect(words.reward.range).toBeUndefined()
    expect(words['my/own']).toMatchObject({ label: 'my/own', group: 'Own' })
    expect(Object.keys(await server.json<object>('/api/glossary')).length).toBeGreaterThan(40)
  })
})

describe('rollouts', () => {
  const rows = (step: number, count: number) =>
    scored(
      Array.from({ length: count }, (_, index) =>
        rollout({
          group: `${step}.${index >> 1}`,
          index: index & 1,
          env: index % 3 === 0 ? 'x' : 'y',
          reward: index % 5 === 4 ? null : index / count,
          error: index % 5 === 4 ? 'TypeError: away' : null,
          prompt: [{ role: 'user', content: `Question ${index} of step ${step}\n\n"quoted" \\ ÄÖ` }],
        }),
      ),
      0.5,
    )

  test('are searched by all that one asks for', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    for (const step of [1, 2, 11]) outputs.rollouts('a', step, rows(step, 10))
    outputs.rollouts('a', 2, rows(2, 3), 'eval')
    const server = await outputs.serve()
    const ask = (words: string) => server.json<RolloutsAnswer>(`/api/runs/a/rollouts?${encodeURI(decodeURI(words))}`)
    const all = await ask('')
    expect(all).toMatchObject({ total: 33, truncated: false, searchedFrom: 1 })
    expect([...new Set(all.rows.map(({ step }) => step))]).toEqual([11, 2, 1])
    expect(all.rows[0]).toEqual({
      step: 11, row: 0, split: 'train', env: 'x', group: '11.0', index: 0, reward: 0, advantage: 0.5, tokens: 3, turns: 1, truncated: false, error: null,
      preview: { question: 'Question 0 of step 11 "quoted" \\ ÄÖ', answer: 'Paris.' },
    }) // prettier-ignore
    const counts = {
      'step=2': 13, 'step=2&split=eval': 3, 'from=2': 23, 'to=2': 23, 'from=2&to=2': 13, 'env=x': 13, 'error=true': 6, 'error=0': 27, 'group=11.4': 2,
      'min_reward=0.7': 6, 'max_reward=0': 4, 'min_reward=0.1&max_reward=0.3': 9, 'text=question 3': 3, 'text=QUESTION 1 OF': 4,
      'text=%22quoted%22 %5C äö': 33, 'text=nowhere': 0, 'text=paris.&step=1': 10, 'text=of step 1%0A': 10, 'env=': 33,
    } // prettier-ignore
    for (const [words, total] of Object.entries(counts)) expect([words, (await ask(words)).total]).toEqual([words, total])
    const sorted = (await ask('step=11&sort=-reward')).rows.map(({ reward }) => reward)
    expect(sorted).toEqual([0.8, 0.7, 0.6, 0.5, 0.3, 0.2, 0.1, 0, null, null])
    expect((await ask('sort=step&limit=1')).rows[0].step).toBe(1)
    const page = await ask('limit=5&offset=8')
    expect(page.rows).toEqual(all.rows.slice(8, 13))
    expect(page.total).toBe(33)

    // What a tool was asked, as the page shows it.
    const call = { id: '1', type: 'function' as const, function: { name: 'look_up', arguments: '{"city": "Paris \\"Nord\\""}' } }
    outputs.rollouts('a', 12, scored([rollout({ completion: [{ role: 'assistant', content: '', tool_calls: [call] }] })], 0.5))
    for (const text of ['look_up', '"city": "paris', call.function.arguments])
      expect((await server.json<RolloutsAnswer>(`/api/runs/a/rollouts?text=${encodeURIComponent(text)}`)).total).toBe(1)

    // Of 0.7 + 0.2 + 0.1, which is 0.9999999999999999, the page writes 1.
    outputs.rollouts('a', 13, scored([rollout({ reward: 0.7 + 0.2 + 0.1 })], 0.5))
    expect((await ask('step=13&min_reward=1')).total).toBe(1)
    expect((await ask('step=13&max_reward=0.9')).total).toBe(0)

    // The page offers the names of config.toml, which has that of a group.
    for (const env of ['mix', 'mix/one', 'mix/more/two', 'mixed']) outputs.rollouts('a', 14, scored([rollout({ env })], 0.5))
    const ofMix = { mix: 3, 'mix/more': 1, 'mix/one': 1, mixed: 1, mi: 0 }
    for (const [env, total] of Object.entries(ofMix)) expect([env, (await ask(`step=14&env=${env}`)).total]).toEqual([env, total])
  })

  test('that are broken are passed over, and keep their line', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    outputs.append(
      'a/rollouts/step_1.jsonl',
      '{"prompt":\n\u0000\n{}\n{"prompt":5,"completion":{"x":1},"reward":"1","advantage":["y"],"error":7,"token_usage":null}\n',
    )
    outputs.rollouts('a', 1, rows(1, 2))
    outputs.append('a/rollouts/step_1.jsonl', '{"half":')
    const server = await outputs.serve()
    const { total, rows: found } = await server.json<RolloutsAnswer>('/api/runs/a/rollouts')
    expect(total).toBe(4)
    expect(found.map(({ row }) => row)).toEqual([2, 3, 4, 5])
    // Their tokens are on other lines; they are found by what they are of.
    const details = await server.json<RolloutDetails>('/api/runs/a/rollouts/1/5')
    expect(details.rollout.index).toBe(1)
    expect(details.tokens.map(({ id }) => id)).toEqual([1, 2, 3, 4, 5, 6, 7])
    expect(details.siblings.map(({ row }) => row)).toEqual([4, 5])
    expect(await server.json<RolloutDetails>('/api/runs/a/rollouts/1/3')).toMatchObject({
      rollout: { prompt: [], completion: [] },
      tokens: [],
      turns: [],
    })
    // A completion as text is what the model said.
    outputs.append('a/rollouts/step_2.jsonl', '{"prompt":"asked","completion":"answered"}\n')
    expect((await server.json<RolloutDetails>('/api/runs/a/rollouts/2/0')).rollout).toMatchObject({
      prompt: [{ role: 'user', content: 'asked' }],
      completion: [{ role: 'assistant', content: 'answered' }],
    })
    expect((await server.json<RolloutsAnswer>('/api/runs/a/rollouts?step=2')).rows).toMatchObject([
      { preview: { answer: 'answered' }, turns: 1 },
    ])
    // Calls as verifiers writes them, and as nobody should: the page, which expects the shape of ours, went on showing the rollout before.
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{"x":1}' } }
    const { id, function: flat } = call
    for (const calls of [[call, null], [JSON.stringify(call), 'no JSON'], [{ id, ...flat }], 'none', null]) {
      const message = { role: 'assistant', content: '', tool_calls: calls }
      outputs.append('a/rollouts/step_2.jsonl', `${JSON.stringify({ completion: [message], error: 'away' })}\n`)
    }
    for (const [row, tool_calls] of [[call], [call], [call], undefined, undefined].entries()) {
      const { rollout: shown } = await server.json<RolloutDetails>(`/api/runs/a/rollouts/2/${row + 1}`)
      const completion = [{ role: 'assistant', content: '', ...(tool_calls && { tool_calls }) }]
      expect(shown).toMatchObject({ index: 0, env: '', error: { error: 'away' } })
      expect(shown.completion).toEqual(completion)
    }
    for (const row of [0, 1, 6, 99]) expect((await server.error(`/api/runs/a/rollouts/1/${row}`)).status).toBe(404)
    expect((await server.error('/api/runs/a/rollouts/3/0')).status).toBe(404)
  })

  test('of one step are searched, however many an evaluation has', { timeout: 60_000 }, async () => {
    const outputs = new Outputs()
    outputs.run('a')
    const line = '{"prompt":[],"completion":[],"reward":1,"split":"eval","group":"0","index":0}\n'
    writeFileSync(outputs.file('a', 'rollouts', 'step_0.jsonl'), line.repeat(150_000))
    const server = await outputs.serve()
    expect(await server.json('/api/runs/a/rollouts?limit=1')).toMatchObject({ total: 150_000, truncated: false })
  })

  test('of many steps are searched for as long as one likes to wait', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    for (let step = 1; step <= 6; step++) outputs.rollouts('a', step, rows(step, 4))
    const server = await outputs.serve({ searchMs: 0 })
    expect(await server.json('/api/runs/a/rollouts')).toMatchObject({ total: 4, truncated: true, searchedFrom: 6 })
    expect(await server.json('/api/runs/a/rollouts?to=5')).toMatchObject({ total: 4, truncated: true, searchedFrom: 5 })
    expect(await server.json('/api/runs/a/rollouts?to=1')).toMatchObject({ total: 4, truncated: false, searchedFrom: 1 })
  })

  test('of more steps than are kept in memory are all searched, by asking again', { timeout: 60_000 }, async () => {
    const outputs = new Outputs()
    outputs.run('a')
    const line = `{"prompt":[],"completion":[{"role":"assistant","content":"${'word '.repeat(400)}"}],"reward":0,"split":"train","group":"0","index":0}\n`
    for (let step = 1; step <= 400; step++)
      outputs.append(`a/rollouts/step_${step}.jsonl`, line.repeat(50) + (step === 1 ? line.replace(':0,', ':1,') : ''))
    const [run, rollouts] = [new Run('a', outputs.file('a')), new Rollouts(2000)]
    const ask = () => rollouts.search(run, { min_reward: 1 }, 40)
    let answer = await ask()
    expect(answer).toMatchObject({ total: 0, truncated: true })
    for (let asked = 1; asked < 200 && answer.truncated; asked++) answer = await ask()
    expect(answer).toMatchObject({ total: 1, truncated: false, searchedFrom: 1 })
    // What was found is read again where the file has changed.
    outputs.append('a/rollouts/step_1.jsonl', line.replace(':0,', ':2,'))
    expect((await rollouts.search(run, { min_reward: 1 })).rows.map(({ reward }) => reward)).toEqual([1, 2])
  })

  test('of several turns have a tree, kinds and characters that take several tokens', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    const bytes = [...new TextEncoder().encode('é🙂')]
    const completion_tokens = {
      ids: [...bytes, 65, 66, 67, 68],
      logprobs: [...bytes.map(() => -1), -2, NaN, -3, -5],
      versions: [...bytes.map(() => 0), 1, 1, 2, 2],
    }
    const turns = [
      { branch: true, promptIds: [72, 73], sampled: bytes.length },
      { branch: false, promptIds: [74], sampled: 2 },
      { branch: false, promptIds: [75], sampled: 1 },
      { branch: true, promptIds: [72, 0xf0], sampled: 1 },
    ]
    const say = (role: 'assistant' | 'user' | 'tool', content: string) => ({ role, content })
    const completion = [say('assistant', 'é🙂'), say('tool', 'J'), say('assistant', 'AB'), say('user', 'K'), say('assistant', 'C'), say('user', 'l'), say('assistant', 'D')] // prettier-ignore
    const played = rollout({ promptIds: [72, 73], completion, completion_tokens, turns })
    outputs.rollouts('a', 1, [{ rollout: played, advantage: completion_tokens.ids.map((_, i) => i / 2) }])
    const bytesOf = (id: number) => (id < 256 ? Uint8Array.of(id) : null)
    const server = await outputs.serve({ tokenizer: async () => ({ about: 'bytes', bytes: bytesOf }) })
    const { tokens, turns: tree, tokenizer } = await server.json<RolloutDetails>('/api/runs/a/rollouts/1/0')
    expect(tokenizer).toEqual({ ok: true, about: 'bytes' })
    expect(tokens.map(({ text }) => text)).toEqual([
      'H',
      'I',
      '',
      'é',
      '',
      '',
      '',
      '🙂',
      'J',
      'A',
      'B',
      'K',
      'C',
      'H',
      '',
      '\ufffdD',
    ])
    expect(tokens.map(({ kind }) => kind[0]).join('')).toBe('ppsssssstsses' + 'pps')
    expect(tree.map(({ parent, branch, first, sampledFirst, end }) => [parent, branch, first, sampledFirst, end])).toEqual([
      [null, true, 0, 2, 8], [0, false, 8, 9, 11], [1, false, 11, 12, 13], [null, true, 13, 15, 16],
    ]) // prettier-ignore
    expect(tree.map(({ logprob }) => logprob)).toEqual([-1, -2, -3, -5])
    const sampled = tokens.filter(({ kind }) => kind === 'sampled')
    expect(sampled.map(({ trained }) => trained)).toEqual([true, true, true, true, true, true, true, false, true, true])
    expect(sampled.map(({ advantage }) => advantage)).toEqual([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5])
    expect(sampled.at(-1)).toMatchObject({ logprob: -5, version: 2 })
  })

  test('without a tokenizer have ids for texts, and say why', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    outputs.rollouts('a', 1, rows(1, 1))
    const server = await outputs.serve({ tokenizer: async (model) => `the model ${model} is not on this machine` })
    const { tokens, tokenizer } = await server.json<RolloutDetails>('/api/runs/a/rollouts/1/0')
    expect(tokenizer).toEqual({ ok: false, about: 'the model none is not on this machine' })
    expect(tokens.map(({ text }) => text)).toEqual(['1', '2', '3', '4', '5', '6', '7'])
  })

  test('are spelled by the tokenizers of the runs that were looked at last: of all runs they would fill the memory', async () => {
    const outputs = new Outputs()
    const runs = ['a', 'b', 'c', 'd', 'e'].map((id) => outputs.run(id))
    for (const id of runs) outputs.rollouts(id, 1, rows(1, 1))
    const opened: string[] = []
    const server = await outputs.serve({
      tokenizer: async (_, folder) => {
        opened.push(basename(folder))
        return { about: 'bytes', bytes: () => null }
      },
    })
    for (const id of [...runs, 'e', 'b', 'a']) await server.json(`/api/runs/${id}/rollouts/1/0`)
    expect(opened).toEqual([...runs, 'a'])
  })
})

describe('long runs', () => {
  const seconds = async (work: () => unknown): Promise<number> => {
    const begin = process.cpuUsage()
    await work()
    return process.cpuUsage(begin).user / 1e6
  }
  test('a timeline of 40,000 steps is read in one go', async () => {
    const outputs = new Outputs()
    const lines = Array.from({ length: 40_000 }, (_, i) => `{"step":${i + 1},"began":1,"length":1,"spans":[],"left_out":0}\n`)
    outputs.write('timeline.jsonl', lines.join(''))
    const timeline = new TimelineFile(outputs.file('timeline.jsonl'))
    // A look at all steps before each one took 20 s.
    expect(await seconds(() => timeline.refresh())).toBeLessThan(2)
    expect(timeline.starts.size).toBe(40_000)
  })
  test('rows without an evaluation cost nothing, however many evaluations there are', async () => {
    const outputs = new Outputs()
    const evals = Object.fromEntries(Array.from({ length: 2000 }, (_, i) => [`eval/e${i}/avg@1`, 0.5]))
    const rows = Array.from({ length: 10_000 }, (_, i) => ({ step: i, time: i, reward: 1, ...(i % 5000 === 0 && evals) }))
    outputs.write('metrics.jsonl', rows.map((row) => `${JSON.stringify(row)}\n`).join(''))
    const table = new MetricsTable(outputs.file('metrics.jsonl'))
    await table.refresh()
    // Each of the 20 million cells by itself took 1 s.
    expect(await seconds(() => table.evalRows())).toBeLessThan(0.5)
    expect(table.evalRows()).toEqual([0, 5000].map((step) => ({ step, time: step, ...evals })))
  })
})

describe('timelines', () => {
  test('are those of a step with what ran beside it', async () => {
    const outputs = new Outputs()
    outputs.run('a')
    const warnings: string[] = []
    const writer = new TimelineWriter({
      path: outputs.file('a', 'logs', 'timeline.jsonl'),
      onWarning: (line) => warnings.push(line),
    })
    const span = (name: string, start: number, end: number, step: number) =>
      ({ track: 'engine', name, start, end, step, detail: { group: `${step}.0`, index: 0 }, fine: true }) as const
    writer.write(1, 0, 1000, [span('first', 100, 900, 1), span('too short', 500, 500.2, 1)])
    writer.write(2, 1000, 3000, [span('ahead', 500, 1500, 3), { track: 'trainer', name: 'optimizer', start: 2500, end: 2500.1 }])
    writer.write(3, 3000, 4000, [span('late', 2900, 3500, 4), span('after', 3600, 3700, 4)])
    writer.write(4, 4000, 5000, [])
    // A resume from step 2.
    writer.write(3, 6000, 7000, [span('again', 6100, 6200, 3)])
    writer.close()
    const server = await outputs.serve()
    const ask = (words = '') => server.json<TimelineAnswer>(`/api/runs/a/timeline${words}`)
    const two = await ask('?step=2')
    expect(two.steps).toEqual([1, 2, 3])
    expect(two.spans.map(({ name, start, end, step }) => [name, start, end, step])).toEqual([['ahead', -0.5, 0.5, 3], ['optimizer', 1.5, 1.5001, 2]]) // prettier-ignore
    const one = await ask('?step=1')
    expect(one.spans.map(({ name }) => name)).toEqual(['first', 'ahead'])
    expect(one.left_out).toBe(1)
    // What was sampled ahead was dropped with the attempt: hours before, it would leave the step a sliver of the page.
    expect((await ask()).spans.map(({ name }) => name)).toEqual(['again'])
    expect(await ask('?step=9')).toMatchObject({ step: 9, spans: [], began: null })
    expect(warnings).toEqual([])
  })

  test('stay small', () => {
    const outputs = new Outputs()
    const path = outputs.file('timeline.jsonl')
    const writer = new TimelineWriter({ path, onWarning: () => {}, spansAtMost: 100, bytesAtMost: 40_000 })
    const spans = Array.from({ length: 300 }, (_, index) => ({
      track: 'engine' as const,
      name: 'generate',
      start: 0,
      end: 10 + index,
      detail: { group: '1.0', index },
      fine: true,
    }))
    const phase = { track: 'trainer' as const, name: 'optimizer', start: 0, end: 1 }
    for (let step = 1; step <= 50; step++) writer.write(step, 0, 1000, [...spans, phase])
    writer.close()
    const lines = outputs.read('timeline.jsonl').trimEnd().split('\n').map((line) => JSON.parse(line) as { spans: unknown[][]; left_out: number }) // prettier-ignore
    expect(lines[0]).toMatchObject({ left_out: 201 })
    expect(lines[0].spans.map(([, name, , end]) => [name, end])).toEqual([
      ...spans.slice(-99).map(({ end }) => ['generate', end / 1000]),
      ['optimizer', 0.001],
    ])
    expect(lines.at(-1)!.spans.length).toBe(64)
    expect(lines.length).toBeLessThan(20)
  })

  test.skipIf(process.platform !== 'linux')('a full disk loses a line, and says nothing: the run tells of it', () => {
    const warnings: string[] = []
    const writer = new TimelineWriter({ path: '/dev/full', onWarning: (line) => warnings.push(line) })
    for (const step of [1, 2]) writer.write(step, 0, 1000, [])
    writer.close()
    expect(warnings).toEqual([])
  })
})

test('kernels come from a bench report where there is no trace, and a command where there is none either', async () => {
  const outputs = new Outputs()
  outputs.run('a')
  const server = await outputs.serve()
  const none = await server.json<KernelsAnswer>('/api/runs/a/kernels')
  expect(none).toMatchObject({
    source: null,
    rows: [],
    command: expect.stringMatching(/^node train\.js (?:@|"@") .*config\.toml"? .* --trace$/),
  })
  const rows = [{ name: 'matmul', shape: '8 x 8', ms: 1, gflops: 2, gbs: 3 }, { name: 'copy', shape: '64', ms: 3, gflops: 0, gbs: 9 }, { group: 'step', seconds: 1 }] // prettier-ignore
  outputs.write('a/bench.json', JSON.stringify({ bench: 'dawn-rl', rows }))
  expect(await server.json<KernelsAnswer>('/api/runs/a/kernels')).toMatchObject({
    source: 'bench',
    rows: [{ kernel: 'copy 64', ms: 3, share: 0.75, gbs: 9 }, { kernel: 'matmul 8 x 8', gflops: 2, share: 0.25 }],
  }) // prettier-ignore
})

test('a file of 60 MB is searched and opened in little memory', { timeout: 60_000 }, async () => {
  const outputs = new Outputs()
  outputs.run('a')
  const file = createWriteStream(outputs.file('a', 'rollouts', 'step_1.jsonl'))
  const filler = 'loremipsum'.repeat(1950)
  for (let i = 0; i < 3000; i++) {
    const row = {
      prompt: [{ role: 'user', content: `q${i}` }],
      completion: [{ role: 'assistant', content: filler }],
      reward: i,
      group: `1.${i >> 3}`,
      index: i & 7,
    }
    if (!file.write(`${JSON.stringify(row)}\n`)) await once(file, 'drain')
  }
  file.end()
  await once(file, 'finish')
  // A process of its own, whose memory is counted from its beginning.
  const script = `
    import { startView } from ${JSON.stringify(new URL('../../../src/monitor/view/server.ts', import.meta.url).href)}
    const view = await startView({ outputs: ${JSON.stringify(outputs.path)}, searchMs: 60000 })
    const ask = async (path) => (await fetch(view.origin + path, { headers: { authorization: 'Bearer ' + view.key } })).json()
    await ask('/api/runs')
    const before = process.resourceUsage().maxRSS
    const found = await ask('/api/runs/a/rollouts?text=q2999')
    const all = await ask('/api/runs/a/rollouts?sort=-reward&limit=3')
    const one = await ask('/api/runs/a/rollouts/1/1500')
    console.log(JSON.stringify({ found: found.rows[0].row, total: all.total, best: all.rows[0].reward, one: one.rollout.reward, siblings: one.siblings.length,
      more: (process.resourceUsage().maxRSS - before) / 1024 }))
    process.exit(0)`
  const child = spawn(process.execPath, ['--max-semi-space-size=2', '--input-type=module', '-e', script])
  let out = ''
  child.stdout.on('data', (part) => (out += part))
  child.stderr.on('data', (part) => (out += part))
  await once(child, 'close')
  const result = JSON.parse(out) as { more: number }
  expect(result).toMatchObject({ found: 2999, total: 3000, best: 2999, one: 1500, siblings: 8 })
  expect(result.more).toBeLessThan(40)
})
