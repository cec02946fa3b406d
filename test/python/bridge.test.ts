/** The bridge to environments of verifiers: real ones, in a real environment server, played with a policy that says what it is told. */
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { beforeAll, describe, expect, test, vi } from 'vitest'
import type { Rollout } from '../../src/common/types.ts'
import { loadEnvironment, runRollout } from '../../src/environments/index.ts'
import type { PythonEnv } from '../../src/environments/python/environment.ts'
import { trainingBatch } from '../../src/orchestrator/samples.ts'
import { sampling } from '../environments/scripted.ts'
import { fixtures, newFolder, openTasks, saying, withoutVerifiers } from './helpers.ts'

/** Of the fixture's helpers. */
const HELPER_SECONDS = 60

describe.skipIf(withoutVerifiers)('environments in Python', () => {
  let env: PythonEnv
  const mark = join(newFolder(), 'died')
  beforeAll(async () => {
    env = await openTasks({ kind: 'all', mark }, { stuckSeconds: 3, kwargs: { score_rollouts: true } })
  })

  const rowOf = (kind: string, index = 0) => env.dataset.filter((row) => row.info.env_id === kind)[index]
  let group = 0
  const play = async (
    kind: string,
    say: Parameters<typeof saying>[0],
    options: { seconds?: number; index?: number; signal?: AbortSignal; maxSeqTokens?: number; maxPromptTokens?: number } = {},
  ): Promise<Rollout & { asked: number[][] }> => {
    const { client, generator } = await saying(say, {
      maxSeqTokens: options.maxSeqTokens,
      maxPromptTokens: options.maxPromptTokens,
    })
    const rollout = await runRollout(env, rowOf(kind, options.index), {
      client,
      sampling,
      group: `g${group++}`,
      index: 0,
      generationTimeoutSeconds: options.seconds ?? 60,
      signal: options.signal,
    })
    return { ...rollout, asked: generator.requests.map(({ promptIds }) => promptIds) }
  }

  test('tell what they are', () => {
    expect(env.id).toBe('bridge_tasks')
    expect(env.dataset).toHaveLength(42)
    expect(env.evalDataset.map((row) => row.prompt.at(-1)!.content)).toEqual(['held 0', 'held 1'])
    expect(env.maxTurns).toBe(3)
    expect(env.playsGroups).toBe(false)
    expect(env.rubric.weights).toMatchObject({ right: 1, length: 0, kinds: 0.5, not_a_number: 1 })
    // 2^60: as a number it would be another one.
    expect(env.dataset[0].info.seed).toBe('1152921504606846976')
    expect(env.dataset[2]).toMatchObject({ exampleId: 2, answer: '2', prompt: [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'say 2' }] }) // prettier-ignore
  })

  test('are played and scored by Python; what is trained on is what was sampled, with the version of each token', async () => {
    const right = await play('single', () => '1', { index: 1 })
    // 1 for the answer, and 0.5 because the row's numbers came as the kinds that they are in Python.
    expect(right).toMatchObject({ reward: 1.5, error: null, env: 'bridge_tasks', stopCondition: 'max_turns_reached' })
    expect(right.metrics).toMatchObject({ right: 1, length: 1, kinds: 1 })
    const { ids, versions, logprobs } = right.completion_tokens
    expect(ids).toEqual([...Buffer.from('1'), 257])
    expect(versions).toEqual([0, 1])
    expect(logprobs).toEqual(ids.map((id, i) => -(id + 1) / 1000 - i / 1e6))
    expect(right.promptIds).toEqual(right.asked[0])
    expect(await play('single', () => 'no', { index: 1 })).toMatchObject({ reward: 0.5, metrics: { right: 0, length: 2 } })
  })

  test('of many turns go on with the tokens that were sampled: one sample', async () => {
    // As UTF-8 these come in tokens that the same text has not when it is tokenised at once.
    const said = ['a|b', 'été', 'x']
    let turn = 0
    const rollout = await play('turns', () => said[turn++])
    expect(rollout.error).toBe(null)
    expect(rollout.turns!.map(({ branch }) => branch)).toEqual([true, false, false])
    expect(rollout.completion.map(({ role }) => role)).toEqual(['assistant', 'user', 'assistant', 'user', 'assistant'])
    const { samples } = trainingBatch(1, [{ rollout, advantage: 1 }])
    expect(samples).toHaveLength(1)
    const [{ ids, lossMask, inferenceLogprobs }] = samples
    expect([...ids].slice(0, rollout.asked[2].length)).toEqual(rollout.asked[2])
    expect([...ids].filter((_, i) => lossMask[i])).toEqual(rollout.completion_tokens.ids)
    expect([...inferenceLogprobs].filter((_, i) => lossMask[i])).toEqual([
      ...Float32Array.from(rollout.completion_tokens.logprobs),
    ])
  })

  test('that rewrite what was said begin a sample with each turn', async () => {
    let turn = 0
    const rollout = await play('forgetful', () => ['thought|a', 'b', 'c'][turn++])
    expect(rollout.error).toBe(null)
    expect(rollout.turns!.map(({ branch }) => branch)).toEqual([true, true, false])
    expect(rollout.turns!.flatMap(({ branch, promptIds }) => (branch ? [promptIds] : []))).toEqual(rollout.asked.slice(0, 2))
    expect(trainingBatch(1, [{ rollout, advantage: 1 }]).samples).toHaveLength(2)
  })

  test('that ask the policy beside their trajectory do not train on that', async () => {
    const rollout = await play('judging', (prompt) => (prompt.includes('Was that good?') ? 'It was.' : '0'))
    expect(rollout).toMatchObject({ reward: 1.5, error: null })
    expect(rollout.asked).toHaveLength(2)
    expect(rollout.completion_tokens.ids).toEqual([...Buffer.from('0'), 257])
  })

  test('with tools: calls are read from the answer, results come back', async () => {
    const call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    let turn = 0
    const rollout = await play('tools', () => [call, '0'][turn++])
    expect(rollout).toMatchObject({ reward: 1.5, error: null, stopCondition: 'no_tools_called' })
    expect(rollout.metrics).toMatchObject({ total_tool_calls: 1, add_calls: 1 })
    expect(rollout.completion.map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant'])
    expect(rollout.completion[0].tool_calls![0].function).toEqual({ name: 'add', arguments: '{"a": 2, "b": 3}' })
    expect(rollout.completion[1].content).toBe('5')
    expect(rollout.turns!.map(({ branch }) => branch)).toEqual([true, false])
  })

  test('fail alone: an error, an exception, a reward that is no number, a policy that fails, an answer without words', async () => {
    const failed = await Promise.all([
      play('hostile', () => 'raise'),
      play('hostile', () => 'error'),
      play('nan', () => 'x'),
      play('single', () => {
        throw new Error('the sampler is away')
      }),
      play('single', () => ''),
    ])
    const fine = await play('single', () => '0')
    expect(fine).toMatchObject({ reward: 1.5, error: null })
    expect(failed.map(({ reward }) => reward)).toEqual([null, null, null, null, null])
    expect(failed[0].error).toMatch(/RuntimeError.*the board is gone/)
    expect(failed[1].error).toMatch(/a tool was away/)
    expect(failed[2].error).toBe("the environment's reward is NaN, which is not a finite number")
    expect(failed[3].error).toBe('the sampler is away')
    expect(failed[4].error).toMatch(/EmptyModelResponseError/)
  })

  test('end a conversation that has no room left, and score it', async () => {
    const rollout = await play('turns', () => 'x'.repeat(40), { maxSeqTokens: 120 })
    expect(rollout).toMatchObject({ error: null, isTruncated: true, stopCondition: 'prompt_too_long' })
    expect(rollout.turns?.length ?? 1).toBeLessThan(3)
  })

  test('that rewrite what was said end in the same way: a later prompt is no first one, though it continues no answer', async () => {
    const rollout = await play('forgetful', () => `thought|${'x'.repeat(40)}`, { maxSeqTokens: 120, maxPromptTokens: 50 })
    expect(rollout).toMatchObject({ error: null, isTruncated: true, stopCondition: 'prompt_too_long' })
  })

  test('that hang are cancelled in time, and so is what the run ends', async () => {
    const [hung, ended] = await Promise.all([
      play('hostile', () => 'hang', { seconds: 1 }),
      play('single', (_, { signal }) => new Promise((resolve) => signal!.addEventListener('abort', () => resolve('x'))), {
        signal: AbortSignal.timeout(500),
      }),
    ])
    expect(hung.error).toBe('the environment took longer than its limit of 1 s')
    expect(ended.error).toMatch(/aborted/)
    expect(await play('single', () => '0')).toMatchObject({ reward: 1.5 })
  })

  test('whose worker is killed, or stops answering, are played again by another one', async () => {
    const others = [0, 1, 2].map((index) => play('turns', () => 'go on', { index }))
    const died = await play('hostile', () => 'die')
    expect(existsSync(mark)).toBe(true)
    expect(died).toMatchObject({ error: null, reward: 3 })
    // Of the two times that it was played one is trained on.
    expect(died.asked.length).toBeGreaterThan(2)
    expect(died.turns!.map(({ branch }) => branch)).toEqual([true, false])
    for (const other of await Promise.all(others)) expect(other.error).toBe(null)
    const blocked = await play('hostile', () => 'block', { seconds: 2 })
    expect(blocked.error).toMatch(/took longer/)
    // The worker that was blocked is taken away when it gives no sign of life.
    expect(await play('single', () => '0', { seconds: 120 })).toMatchObject({ reward: 1.5, error: null })
  })

  test('whose worker ends each time are given up', async () => {
    const { error, asked } = await play('hostile', () => 'kill', { seconds: 120 })
    expect(error).toBe('the environment raised a crash of its process, 3 times during this rollout')
    expect(asked).toHaveLength(3)
    expect(await play('single', () => '0')).toMatchObject({ reward: 1.5, error: null })
  })

  test('whose server is killed are asked again of a new one, and nothing is left when it closes', async () => {
    const host = await env.server()
    const { pid, restarts } = host
    let killed = false
    const rollout = await play(
      'turns',
      async () => {
        if (!killed) process.kill(pid!, 'SIGKILL')
        killed = true
        return await new Promise<string>((resolve) => setTimeout(() => resolve('x'), 50))
      },
      { seconds: 120 },
    )
    expect(rollout).toMatchObject({ error: null })
    expect(host.restarts).toBe(restarts + 1)
    const now = host.pid!
    await env.close()
    expect(processesOf(pid!)).toEqual([])
    expect(processesOf(now)).toEqual([])
    expect(await play('single', () => '0')).toMatchObject({ reward: null, error: expect.stringMatching(/closed/) })
  })

  test('whose server dies after each answer are given up: a run would spend its time on starts', async () => {
    const dying = (await loadEnvironment('./bridge_tasks.py', { kind: 'single' }, { base: fixtures })) as PythonEnv
    const said: string[] = []
    await dying.open({ logs: newFolder(), warn: (line) => said.push(line) })
    const host = await dying.server()
    const { client } = await saying(() => '0')
    const context = { client, sampling, group: 'g', index: 0, generationTimeoutSeconds: 120 }
    const ask = async () => (await runRollout(dying, dying.dataset[0], context)).error
    for (let life = 1; life <= 4; life++) {
      expect(await ask()).toBe(null)
      const { pid } = host
      process.kill(pid!, 'SIGKILL')
      if (life < 4) await vi.waitFor(() => expect(host.pid).not.toBe(pid), 30_000)
    }
    const given = await ask()
    expect(given).toMatch(/^The environment server of \.\/bridge_tasks\.py was killed by SIGKILL: /)
    expect([said.length, host.restarts]).toEqual([3, 3])
    expect(said[0]).toMatch(
      /was killed by SIGKILL: .* Its log: .* The server is restarted, and runs unfinished rollouts again\.$/,
    )
    await dying.close()
  })
})

describe.skipIf(withoutVerifiers)('an environment server', () => {
  test('ends with the run that started it, even where that is killed', async () => {
    const [logs, temporary] = [newFolder(), newFolder()]
    const env = { ...process.env, TMPDIR: temporary }
    const child = spawn(process.execPath, [join(fixtures, 'holds.ts'), fixtures, logs], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env,
    })
    const sockets = () => readdirSync(temporary).filter((name) => name.startsWith('dawn-rl-env-'))
    let pid = 0
    for await (const line of createInterface({ input: child.stdout })) {
      pid = Number(/^server (\d+)$/.exec(line)?.[1])
      break
    }
    expect(processesOf(pid).length).toBeGreaterThan(1)
    expect(sockets()).toHaveLength(1)
    child.kill('SIGKILL')
    const until = performance.now() + 60_000
    while (processesOf(pid).length > 0 && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 200))
    expect(processesOf(pid)).toEqual([])
    expect(sockets()).toEqual([])
    expect(readFileSync(join(logs, 'env-bridge_tasks.log'), 'utf8')).toContain('ZMQEnvServer')
  })

  test('leaves no folder of its socket where the run exits without closing it, as after a second Ctrl-C', async () => {
    const [logs, temporary] = [newFolder(), newFolder()]
    const env = { ...process.env, TMPDIR: temporary }
    const child = spawn(process.execPath, [join(fixtures, 'holds.ts'), fixtures, logs, 'single', 'exit'], { env })
    let said = ''
    child.stdout.on('data', (data: Buffer) => (said += data.toString()))
    await new Promise((resolve) => child.once('close', resolve))
    const pid = Number(/^server (\d+)$/m.exec(said)?.[1])
    expect(pid).toBeGreaterThan(0)
    // They are killed as the run exits, and take a moment to be gone.
    const until = performance.now() + 10_000
    while (processesOf(pid).length > 0 && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 100))
    expect(processesOf(pid)).toEqual([])
    expect(readdirSync(temporary).filter((name) => name.startsWith('dawn-rl-env-'))).toEqual([])
  })

  test('that is still being loaded ends with the run too', async () => {
    const child = spawn(process.execPath, [join(fixtures, 'holds.ts'), fixtures, newFolder(), 'slow'], { stdio: 'ignore' })
    const until = performance.now() + 60_000
    const wait = async (holds: () => boolean) => {
      while (!holds() && performance.now() < until) await new Promise((resolve) => setTimeout(resolve, 200))
    }
    const children = () => execFileSync('ps', ['-eo', 'ppid=,pid=,args='], { encoding: 'utf8' }).split('\n')
      .map((line) => line.trim().split(/\s+/)).filter(([parent, , ...words]) => Number(parent) === child.pid && words.join(' ').includes('bridge.py')) // prettier-ignore
    await wait(() => children().length > 0)
    const pid = Number(children()[0]?.[1])
    expect(processesOf(pid)).toHaveLength(1)
    child.kill('SIGKILL')
    await wait(() => processesOf(pid).length === 0)
    expect(processesOf(pid)).toEqual([])
  })

  test('starts where its log has more than a text can hold, and where temporary files have a long name', async () => {
    const logs = newFolder()
    const log = join(logs, 'env-tasks.log')
    writeFileSync(log, '')
    truncateSync(log, 2200 * 2 ** 20)
    const temporary = join(logs, 'a'.repeat(100))
    mkdirSync(temporary)
    vi.stubEnv('TMPDIR', temporary)
    const env = (await loadEnvironment('./bridge_tasks.py', {}, { base: fixtures })) as PythonEnv
    try {
      await env.open({ logs, name: 'tasks' })
      expect(statSync(log).size).toBeGreaterThan(2200 * 2 ** 20)
    } finally {
      vi.unstubAllEnvs()
      await env.close()
    }
  })
})

/** Processes of a group that still live. */
function processesOf(group: number): string[] {
  const all = execFileSync('ps', ['-eo', 'pgid=,pid=,stat=,args='], { encoding: 'utf8' }).split('\n')
  return all.filter((line) => Number(line.trim().split(/\s+/)[0]) === group && !/^\s*\d+\s+\d+\s+Z/.test(line))
}

describe.skipIf(withoutVerifiers)('a group of rollouts that Python compares', () => {
  test('is one request, its rollouts wait for each other without a clock, and one that fails is no other’s matter', async () => {
    const env = await openTasks({ kind: 'group', turns: 2 })
    expect(env.playsGroups).toBe(true)
    expect(env.rubric.weights).toMatchObject({ right: 0.5, best_of: 1 })
    const playGroup = async (group: string, says: ((turn: number) => string | Promise<string>)[]) =>
      await Promise.all(
        says.map(async (say, index) => {
          // They come one after the other, as places become free.
          await new Promise((resolve) => setTimeout(resolve, index * 100))
          let turn = 0
          const { client } = await saying(() => say(turn++))
          const options = { client, sampling, group, index, size: says.length, generationTimeoutSeconds: 2.5 }
          return await runRollout(env, env.dataset[0], options)
        }),
      )
    const slow = async () => await new Promise<string>((resolve) => setTimeout(() => resolve('slowly'), 2000))
    const [a, b, c] = await playGroup('g1', [() => 'a', () => 'longest of all', slow])
    // The others were done seconds before the slow one, which took longer than the limit of a step in all.
    expect([a.error, b.error, c.error]).toEqual([null, null, null])
    expect([a.reward, b.reward, c.reward]).toEqual([0, 1, 0])
    expect(a.completion_tokens.ids.length).toBeLessThan(b.completion_tokens.ids.length)
    const fails = () => {
      throw new Error('no answer here')
    }
    const [d, e] = await playGroup('g2', [fails, () => 'well'])
    expect(d.error).toBe('no answer here')
    expect(e).toMatchObject({ error: null, reward: 1 })
  })
})

test.skipIf(withoutVerifiers)('a reward function named reward is a part of the sum', async () => {
  const env = await openTasks({ kind: 'named' })
  const { client } = await saying(() => '1')
  const rollout = await runRollout(env, env.dataset[1], { client, sampling, group: 'g', index: 0, generationTimeoutSeconds: 60 })
  expect(rollout).toMatchObject({ error: null, reward: 1.5, metrics: { reward: 1, length: 1 } })
})

test.skipIf(withoutVerifiers)(
  'a reward function that raises is told of, once: verifiers takes it for a reward of 0',
  async () => {
    const env = (await loadEnvironment('./bridge_tasks.py', { kind: 'raises_rewards' }, { base: fixtures })) as PythonEnv
    const said: string[] = []
    const logs = newFolder()
    await env.open({ logs, warn: (line) => said.push(line) })
    try {
      const { client } = await saying(() => '1')
      const context = { client, sampling, generationTimeoutSeconds: 60 }
      for (const index of [0, 1, 2]) {
        // A log that has grown too large may go: the answers that follow are heard all the same.
        if (index === 2) rmSync(logs, { recursive: true })
        const rollout = await runRollout(env, env.dataset[1], { ...context, group: `g${index}`, index: 0 })
        expect(rollout).toMatchObject({ error: null, reward: 1, metrics: { right: 1, raises: 0, none_at_all: 0 } })
      }
      const sentence = (name: string, what: string) =>
        expect.stringMatching(
          `^Reward function ${name} of \\./bridge_tasks\\.py raised "${what}", which verifiers turns into a reward of 0\\. Fix it; every occurrence is logged in .*\\.log\\.$`,
        )
      expect(said).toEqual([sentence('raises', "'1'"), sentence('none_at_all', 'nothing here')])
    } finally {
      await env.close()
    }
  },
)

test.skipIf(withoutVerifiers)('answers that JSON has no number for are shown as Python writes them', async () => {
  const env = await loadEnvironment('./bridge_tasks.py', { kind: 'unanswered' }, { base: fixtures })
  expect(env.dataset.map((row) => row.answer)).toEqual(['1.5', 'nan', 'inf'])
})

test.skipIf(withoutVerifiers)('processes that an environment begins while it is loaded are not waited for', async () => {
  const begin = performance.now()
  const env = await loadEnvironment('./bridge_tasks.py', { kind: 'helped' }, { base: fixtures })
  expect(env.dataset).toHaveLength(6)
  expect(performance.now() - begin).toBeLessThan(HELPER_SECONDS * 1000)
})

describe('an environment that cannot be had is one sentence', () => {
  const load = (id: string, args = {}, options = {}) => loadEnvironment(id, args, { base: fixtures, ...options })

  test('without verifiers, with the command that installs it', async () => {
    await expect(load('anything', {}, { python: './nowhere/python' })).rejects.toThrow(
      /environment anything is written in Python, but there is no .*nowhere\/python\. Run 'bash scripts\/setup-verifiers\.sh'/,
    )
    await expect(load('short-answers', {}, { python: false, workers: 2 })).rejects.toThrow(
      /num_workers apply only to environments in Python/,
    )
  })

  test('for an id that nothing knows, beside a Python that cannot be started', async () => {
    const base = newFolder()
    mkdirSync(join(base, '.venv-verifiers', 'bin'), { recursive: true })
    writeFileSync(join(base, '.venv-verifiers', 'bin', 'python'), 'no program')
    await expect(load('no-such-environment-here', {}, { base })).rejects.toThrow(/no-such-environment-here.*not found/s)
  })

  test.skipIf(withoutVerifiers)('for an id that is not there, and a Python without verifiers', async () => {
    await expect(load('no-such-environment-here', {}, { python: true })).rejects.toThrow(
      /no-such-environment-here: there is no Python module no_such_environment_here\. Install its package/,
    )
    await expect(load('no-such-environment-here')).rejects.toThrow(/not found/)
    await expect(load('./bridge_tasks.py', {}, { python: 'python3' })).rejects.toThrow(/has no verifiers/)
  })

  test.skipIf(withoutVerifiers)('for one that raises, with the place', async () => {
    await expect(load('./bridge_tasks.py', { kind: 'raises' })).rejects.toThrow(
      /load_environment raised KeyError: 'no data here' \(.*bridge_tasks\.py:\d+\)/,
    )
    await expect(load('./bridge_tasks.py', { colour: 'red' })).rejects.toThrow(/unexpected keyword argument 'colour'/)
    await expect(load('./bridge_tasks.py', { kind: 'killed' })).rejects.toThrow(/Python was killed by SIGKILL\. Its last output/)
  })
})
