/** The viewer over a run as `train` leaves it: what it shows against the run's own files, and the command itself. */
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, cpSync, mkdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { tokenBytes } from '../../../src/cli/view.ts'
import type { RolloutRow, TokensRow } from '../../../src/monitor/rollout-writer.ts'
import { startView } from '../../../src/monitor/view/server.ts'
import type {
  KernelsAnswer, MetricsAnswer, RolloutDetails, RolloutsAnswer, RunDetails, RunSummary, TimelineAnswer, ViewEvent,
} from '../../../src/monitor/view/types.ts' // prettier-ignore
import { TinyRuns } from '../../cli/tiny-run.ts'
import { temporaryFolder } from '../helpers.ts'
import { Viewer } from './helpers.ts'
import { isWindows } from '../../windows.ts'

const runs = new TinyRuns()
const cli = fileURLToPath(new URL('../../../cli.js', import.meta.url))

const hasGit = spawnSync('git', ['--version']).status === 0

beforeAll(async () => {
  await runs.prepare()
  // Started in a checkout of the user's, with a change that is not committed.
  const git = (...words: string[]) => execFileSync('git', ['-c', 'user.name=n', '-c', 'user.email=e', ...words], { cwd: runs.dir, encoding: 'utf8' }) // prettier-ignore
  runs.write('notes.txt', 'as it was\n')
  for (const words of hasGit
    ? [
        ['init', '-q'],
        ['add', 'notes.txt'],
        ['commit', '-q', '-m', 'first'],
      ]
    : [])
    git(...words)
  runs.write('notes.txt', 'changed\n')
  const { code, stderr } = await runs.run(['run_name=one', 'max_steps=3', 'eval_strategy=steps', 'eval_steps=3', '--trace', '3'])
  expect(code, stderr).toBe(0)
})

async function serve(): Promise<Viewer> {
  const view = await startView({ outputs: runs.outputs, everyMs: 30, tokenizer: tokenBytes })
  onTestFinished(() => view.close())
  return new Viewer(view)
}

/** Relative, as metrics in float64 of float32 numbers that went through text. */
const near = (a: number, b: number, to = 1e-4): boolean => Math.abs(a - b) <= to * Math.max(1e-6, Math.abs(b))

describe('a run', () => {
  test('is summed up as its files say', async () => {
    const server = await serve()
    const rows = runs.rows('one', 'metrics.jsonl')
    const [summary] = await server.json<RunSummary[]>('/api/runs')
    expect(summary).toMatchObject({
      id: 'one', status: 'finished', step: 3, max_steps: 3, model: 'tiny', envs: ['even'], started: rows[0].time,
      reward: { first: rows[1].reward, last: rows[3].reward },
      has: { metrics: true, rollouts: true, timeline: true, kernels: true, report: true },
    }) // prettier-ignore
    const details = await server.json<RunDetails>('/api/runs/one')
    expect(details.config).toBe(readFileSync(join(runs.outputs, 'one', 'config.toml'), 'utf8'))
    expect(details.flat).toMatchObject({ 'trainer.args.max_steps': 3, 'trainer.args.lora_rank': 4, 'env.0.name': 'even' })
    expect(details).toMatchObject({ rolloutSteps: [0, 1, 2, 3], timelineSteps: [0, 1, 2, 3] })
    expect(details.versions).toMatchObject({
      'dawn-rl': expect.stringMatching(/^\d/),
      node: process.version,
      command: expect.stringContaining('--trace 3'),
    })
    if (hasGit) expect(details.gitDiff).toContain('+changed')
    expect(details.evalRows[0]).toMatchObject({ step: 0, 'eval/even/avg@1': rows[0]['eval/even/avg@1'] })
    const { keys } = await server.json<MetricsAnswer>('/api/runs/one/metrics')
    const words = keys.map(encodeURIComponent).join()
    const { steps, series } = await server.json<MetricsAnswer>(`/api/runs/one/metrics?keys=${encodeURIComponent(words)}`)
    expect(steps).toEqual([0, 1, 2, 3])
    for (const key of keys) expect(series[key]).toEqual(rows.map((row) => row[key] ?? null))
    expect((await server.ask('/report/one')).text).toBe(readFileSync(join(runs.outputs, 'one', 'report.html'), 'utf8'))
  })

  test('shows its tokens with what sampler and trainer said of them', async () => {
    const server = await serve()
    const metrics = runs.rows('one', 'metrics.jsonl')
    for (const step of [1, 2, 3]) {
      const { total, rows } = await server.json<RolloutsAnswer>(`/api/runs/one/rollouts?step=${step}&split=train`)
      expect(total).toBe(8)
      const written = runs.rows('one', `rollouts/step_${step}.jsonl`) as unknown as RolloutRow[]
      const ids = runs.rows('one', `rollouts/step_${step}.tokens.jsonl`) as unknown as TokensRow[]
      let [kl, entropy, count] = [0, 0, 0]
      for (const { row } of rows) {
        const { rollout, tokens, siblings, turns, tokenizer } = await server.json<RolloutDetails>(
          `/api/runs/one/rollouts/${step}/${row}`,
        )
        expect(tokenizer.ok).toBe(true)
        expect(rollout).toEqual(written[row])
        expect(tokens.map(({ id }) => id)).toEqual([...ids[row].prompt_ids, ...ids[row].completion_ids])
        expect(siblings.map(({ index }) => index)).toEqual([0, 1, 2, 3])
        expect(turns).toMatchObject([{ parent: null, first: 0, sampledFirst: ids[row].prompt_ids.length, end: tokens.length }])
        const sampled = tokens.filter(({ kind }) => kind === 'sampled')
        const text = sampled.map((token) => token.text).join('')
        expect(text.startsWith(rollout.completion[0].content.replace(/\ufffd+$/, ''))).toBe(true)
        expect(sampled.map(({ trained }) => trained)).toEqual(sampled.map(() => rollout.advantage !== null))
        for (const token of sampled.filter(({ trained }) => trained)) {
          expect(token.advantage).toBe(rollout.advantage)
          expect(token.ratio).toBe(Math.exp(token.trainer_logprob! - token.logprob!))
          kl += token.ratio! - (token.trainer_logprob! - token.logprob!) - 1
          entropy += token.entropy!
          count++
        }
      }
      expect(count).toBeGreaterThan(0)
      // What the step's row says of all its tokens together.
      expect(near(entropy / count, metrics[step]['entropy/all/mean'] as number, 1e-3)).toBe(true)
      const expected = metrics[step]['mismatch_kl/all/mean'] as number
      if (expected === 0) expect(kl).toBe(0)
      else expect(Math.abs(kl / count - expected)).toBeLessThan(1e-6 + 1e-3 * expected)
    }
  })

  test('shows who ran when', async () => {
    const server = await serve()
    const metrics = runs.rows('one', 'metrics.jsonl')
    for (const step of [1, 2, 3]) {
      const { spans, began, steps } = await server.json<TimelineAnswer>(`/api/runs/one/timeline?step=${step}`)
      expect(steps).toEqual([0, 1, 2, 3])
      expect(Math.abs(began! - ((metrics[step].time as number) - (metrics[step]['time/step'] as number)))).toBeLessThan(2)
      for (const { start, end } of spans) expect(end).toBeGreaterThanOrEqual(start)
      const own = (name: string) =>
        spans.filter((span) => span.name === name && span.step === step && !String(span.detail?.group).startsWith('eval'))
      const generated = own('generate').map(({ track, detail }) => `${track} ${detail?.group} ${detail?.index}`)
      expect(generated.toSorted()).toEqual(
        [0, 1].flatMap((group) => [0, 1, 2, 3].map((index) => `engine ${step}.${group} ${index}`)),
      )
      const [gradients, optimizer, publish] = ['gradients', 'optimizer', 'publish'].map((name) => own(name))
      expect([gradients.length, optimizer.length, publish.length]).toEqual([1, 1, 1])
      expect(gradients[0]).toMatchObject({ track: 'trainer' })
      expect(optimizer[0].start).toBeGreaterThanOrEqual(gradients[0].end - 1e-4)
      for (const { end } of own('generate')) expect(end).toBeLessThanOrEqual(gradients[0].start + 1e-4)
    }
  })

  test('shows its kernels', async () => {
    const server = await serve()
    const { source, rows, notes } = await server.json<KernelsAnswer>('/api/runs/one/kernels')
    expect(source).toBe('trace')
    expect(notes.join(' ')).toContain('step 3')
    expect(rows.map(({ kernel }) => kernel)).toEqual(expect.arrayContaining([expect.stringContaining('attention'), expect.stringContaining('matmul')])) // prettier-ignore
    expect(rows.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1)
    expect(rows.map(({ ms }) => ms)).toEqual(rows.map(({ ms }) => ms).toSorted((a, b) => b - a))
  })
})

test('what is written is told to who listens', async () => {
  cpSync(join(runs.outputs, 'one'), join(runs.outputs, 'two'), { recursive: true })
  const server = await serve()
  const listen = async (query = '', headers: Record<string, string> = {}) => {
    const control = new AbortController()
    const response = await fetch(`${server.view.origin}/api/events${query}`, {
      headers: { authorization: `Bearer ${server.view.key}`, ...headers },
      signal: control.signal,
    })
    expect(response.headers.get('content-type')).toBe('text/event-stream')
    const [told, ids]: [ViewEvent[], string[]] = [[], []]
    const reading = (async () => {
      for await (const part of response.body!.pipeThrough(new TextDecoderStream())) {
        for (const [, data] of part.matchAll(/^data: (.*)$/gm)) told.push(JSON.parse(data) as ViewEvent)
        for (const [, id] of part.matchAll(/^id: (.*)$/gm)) ids.push(id)
      }
    })().catch(() => {})
    const leave = async () => {
      control.abort()
      await reading
    }
    return { told, ids, leave }
  }
  // It changed between a page's first question and its listening.
  const begin = Date.now()
  for (const name of ['one', 'two']) utimesSync(join(runs.outputs, name, 'metrics.jsonl'), 1e9, 1e9)
  appendFileSync(join(runs.outputs, 'two', 'metrics.jsonl'), '{"step":4,"reward":1}\n')
  // A second more: on a busy machine the request itself takes its time, and the age counts from when it arrives.
  const { told, ids, leave } = await listen(`?age=${Date.now() - begin + 1000}`)
  await expect.poll(() => told, { timeout: 20_000, interval: 20 }).toContainEqual({ run: null, kind: 'runs' })
  expect(told).toContainEqual({ run: 'two', kind: 'metrics' })
  expect(told).not.toContainEqual({ run: 'one', kind: 'metrics' })
  const hears = async (event: ViewEvent, cause: () => void) => {
    cause()
    await expect.poll(() => told, { timeout: 20_000, interval: 20 }).toContainEqual(event)
  }
  const path = (name: string) => join(runs.outputs, 'two', name)
  await hears({ run: 'two', kind: 'metrics' }, () => appendFileSync(path('metrics.jsonl'), '{"step":5,"reward":1}\n'))
  await hears({ run: 'two', kind: 'rollouts' }, () => writeFileSync(path('rollouts/step_4.jsonl'), '{}\n'))
  told.length = 0
  await hears({ run: null, kind: 'runs' }, () =>
    cpSync(join(runs.outputs, 'one'), join(runs.outputs, 'three'), { recursive: true }),
  )
  expect(told.filter(({ run, kind }) => run === 'one' && kind === 'metrics')).toEqual([])
  await leave()
  // Cut off, a page comes back with the last event that it heard.
  for (const name of ['two', 'three']) utimesSync(join(runs.outputs, name, 'metrics.jsonl'), 1e9, 1e9)
  appendFileSync(join(runs.outputs, 'one', 'metrics.jsonl'), '\n')
  const again = await listen('?age=0', { 'last-event-id': ids.at(-1)! })
  await expect.poll(() => again.told, { timeout: 20_000, interval: 20 }).toContainEqual({ run: null, kind: 'runs' })
  expect(again.told).toContainEqual({ run: 'one', kind: 'metrics' })
  expect(again.told).not.toContainEqual({ run: 'two', kind: 'metrics' })
  await again.leave()
})

test("the tokenizer of a run without a checkpoint is found from any folder, also from the run's own", async () => {
  const project = temporaryFolder()
  cpSync(fileURLToPath(new URL('../../../models/tiny', import.meta.url)), join(project, 'models', 'tiny'), { recursive: true })
  const run = join(project, 'outputs', 'run')
  mkdirSync(run, { recursive: true })
  const here = process.cwd()
  onTestFinished(() => process.chdir(here))
  for (const folder of [here, project, join(project, 'outputs'), run]) {
    process.chdir(folder)
    expect(await tokenBytes('models/tiny', run)).toHaveProperty('about')
  }
})

test('node cli.js view prints an address that works, says how many runs there are, and ends at once', async () => {
  // An empty variable is none: the key is random.
  const env = { ...process.env, DAWN_RL_VIEW_KEY: '' }
  const child = spawn(process.execPath, [cli, 'view', 'outputs'], { cwd: runs.dir, stdio: ['ignore', 'pipe', 'inherit'], env })
  onTestFinished(() => void child.kill('SIGKILL'))
  let out = ''
  child.stdout.on('data', (part) => (out += part))
  await expect.poll(() => out, { timeout: 60_000 }).toContain('ends\n')
  const [url, words] = out.split('\n')
  expect(words).toMatch(/^\d runs? in outputs; Ctrl-C ends$/)
  const page = await fetch(url)
  expect([page.status, page.headers.get('set-cookie')?.includes('HttpOnly')]).toEqual([200, true])
  // A page that listens does not hold it back.
  const cookie = page.headers.get('set-cookie')!.split(';')[0]
  const events = await fetch(new URL('/api/events', url), { headers: { cookie } })
  expect(events.status).toBe(200)
  if (isWindows) return // No process can send that to another one there.
  const begin = performance.now()
  child.kill('SIGINT')
  const [code] = (await once(child, 'close')) as [number]
  expect(code).toBe(0)
  expect(performance.now() - begin).toBeLessThan(3000)
})
