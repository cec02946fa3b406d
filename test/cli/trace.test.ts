/** `--trace` as a user runs it: the file of a real run is held against what the format and the run demand. */
import { existsSync, globSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, test } from 'vitest'
import type { TraceEvent } from '../../src/common/trace.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const runs = new TinyRuns()
const good = (outcome: Outcome) => expect(outcome, outcome.stderr + outcome.stdout).toMatchObject({ code: 0 })

interface TraceFile {
  otherData: Record<string, string>
  traceEvents: TraceEvent[]
}
const read = (file: string): TraceFile => JSON.parse(readFileSync(file, 'utf8')) as TraceFile
const end = ({ ts, dur }: TraceEvent): number => ts + dur!
/** Times are written to the nanosecond. */
const rounding = 0.002
const within = (inner: TraceEvent, outer: TraceEvent) => inner.ts >= outer.ts - rounding && end(inner) <= end(outer) + rounding

/** Spans by the name of their process and track. */
function tracksOf(events: TraceEvent[]): Map<string, TraceEvent[]> {
  const names = (what: string) => events.filter((e) => e.ph === 'M' && e.name === what)
  const processOf = new Map(names('process_name').map((e) => [e.pid, e.args!.name]))
  const tracks = new Map<string, TraceEvent[]>()
  for (const { pid, tid, args } of names('thread_name')) {
    const spans = events.filter((e) => e.ph === 'X' && e.pid === pid && e.tid === tid)
    tracks.set(`${processOf.get(pid)} ${args!.name}`, spans)
  }
  return tracks
}

/** Of a step in turns, everything is known: what is sampled is sampled in it. */
const inTurns = ['max_async_level=0', 'eval_strategy=steps', 'eval_steps=2', 'save_steps=2']

describe('a run of 3 steps', () => {
  let file: TraceFile
  let tracks: Map<string, TraceEvent[]>
  const track = (name: string): TraceEvent[] => {
    expect([...tracks.keys()]).toContain(name)
    return tracks.get(name)!
  }
  const named = (name: string) => track('dawn-rl steps').filter((e) => e.name === name)
  const flights = (category: string, ph: 'b' | 'e' = 'b') => file.traceEvents.filter((e) => e.ph === ph && e.cat === category)

  beforeAll(async () => {
    await runs.prepare()
    const outcome = await runs.run(['run_name=traced', 'max_steps=3', ...inTurns, '--trace', '2-3'])
    good(outcome)
    expect(outcome.stdout).toMatch(/trace {4}outputs\/traced\/trace\.json: steps 2 to 3, \d+ events/)
    file = read(join(runs.outputs, 'traced', 'trace.json'))
    tracks = tracksOf(file.traceEvents)
  }, 400_000)

  test('is in time, on tracks where spans only nest', () => {
    const times = file.traceEvents.filter((e) => e.ph !== 'M').map((e) => e.ts)
    expect(times).toEqual(times.toSorted((a, b) => a - b))
    expect(times[0]).toBeGreaterThanOrEqual(0)
    for (const [name, spans] of tracks) {
      const open: TraceEvent[] = []
      for (const span of spans) {
        while (open.length > 0 && end(open.at(-1)!) <= span.ts + rounding) open.pop()
        if (open.length > 0) expect(within(span, open.at(-1)!), `${name}: ${span.name} and ${open.at(-1)!.name}`).toBe(true)
        open.push(span)
      }
    }
    // What has no thread_name is seen by nobody.
    const spans = file.traceEvents.filter((e) => e.ph === 'X')
    expect([...tracks.values()].flat()).toHaveLength(spans.length)
  })

  test('has the two steps, one behind the other, with their phases', () => {
    const steps = track('dawn-rl steps').filter((e) => e.name.startsWith('step '))
    expect(steps.map((e) => e.name)).toEqual(['step 2', 'step 3'])
    expect(steps[1].ts).toBeGreaterThanOrEqual(end(steps[0]) - rounding)
    for (const name of ['wait_for_batch', 'forward_backward', 'gradients', 'optimizer', 'save_ckpt', 'eval even', 'log']) {
      const spans = named(name)
      expect(
        spans.map((e) => steps.findIndex((step) => within(e, step))),
        name,
      ).toEqual([0, 1])
      expect(spans.every((e) => !e.args?.unfinished)).toBe(true)
    }
    // As the metrics have them.
    const rows = runs.rows('traced', 'metrics.jsonl')
    for (const [i, span] of named('forward_backward').entries()) {
      const seconds = rows.find((row) => row.step === i + 2)!['time/forward_backward'] as number
      expect(span.dur! / 1e6).toBeCloseTo(seconds, 1)
    }
  })

  test('flights are whole: every rollout with its phases, rewards, decode steps, waits', () => {
    const whole = new Map<string, number>()
    for (const { ph, cat, id, name } of file.traceEvents) {
      const key = `${cat} ${id} ${name}`
      if (ph === 'b') whole.set(key, (whole.get(key) ?? 0) + 1)
      if (ph === 'e') whole.set(key, (whole.get(key) ?? 0) - 1)
    }
    expect([...whole].filter(([, count]) => count !== 0)).toEqual([])
    const rollouts = [2, 3].flatMap((step) => runs.rows('traced', `rollouts/step_${step}.jsonl`))
    const ends = flights('rollout', 'e').filter((e) => e.args?.tokens !== undefined)
    expect(ends).toHaveLength(rollouts.length)
    expect(flights('rollout').filter((e) => e.name === 'generation')).toHaveLength(rollouts.length)
    expect(flights('reward').map((e) => e.name)).toEqual(rollouts.map(() => 'even'))
    const tokens = [2, 3].flatMap((step) => runs.rows('traced', `rollouts/step_${step}.tokens.jsonl`))
    const drawn = tokens.reduce((sum, row) => sum + (row.completion_ids as number[]).length, 0)
    const sampled = flights('engine').reduce((sum, e) => sum + (e.args!.sampled as number), 0)
    // A sequence that ends ahead of the host is drawn once more.
    expect(sampled).toBeGreaterThanOrEqual(drawn)
    expect(ends.reduce((sum, e) => sum + (e.args!.tokens as number), 0)).toBe(drawn)
    expect(flights('micro-batch').length).toBeGreaterThanOrEqual(2)
    expect(flights('wait for the device').map((e) => e.name)).toEqual(
      expect.arrayContaining([expect.stringMatching(/^step of \d+$/), 'optimizer step']),
    )
  })

  test('counts requests and memory', () => {
    const counted = (name: string) => file.traceEvents.filter((e) => e.ph === 'C' && e.name === name)
    expect(counted('requests').length).toBe(flights('engine').length)
    expect(Math.max(...counted('requests').map((e) => e.args!.running as number))).toBe(8)
    expect(counted('pool')[0].args!['MiB in use']).toBeGreaterThan(0)
  })

  test('has kernels that there are, each within its submit and its step', () => {
    if (file.otherData.notes.includes('no timestamp queries')) return
    const kernels = new Set(globSync('src/**/*.wgsl', { cwd: root }).map((path) => basename(path, '.wgsl')))
    const [trainer, engine, submits] = ['trainer', 'engine', 'submits'].map((name) => track(`GPU ${name}`))
    for (const { name, args } of [...trainer, ...engine]) {
      expect(kernels).toContain(basename(name))
      expect(args!.workgroups).toMatch(/^\d+ x \d+ x \d+$/)
    }
    const overlap = (spans: TraceEvent[]) => spans.some((e, i) => i > 0 && e.ts < end(spans[i - 1]) - rounding)
    expect([trainer, engine, submits].map((spans) => overlap(spans.filter((e) => e.dur! > 0)))).toEqual([false, false, false])
    // Dawn would round to 2^16 ns.
    expect([...trainer, ...engine].filter(({ dur }) => Math.abs(dur! / 65.536 - Math.round(dur! / 65.536)) > 0.01)).not.toEqual(
      [],
    )
    for (const [author, spans] of [
      ['trainer', trainer],
      ['engine', engine],
    ] as const) {
      const own = submits.filter((e) => e.args!.by === author)
      expect(spans.filter((e) => !own.some((submit) => within(e, submit)))).toEqual([])
    }
    // The device's clock is not ours: the note says by how much it may be off, and it errs to the early side.
    const [, room] = /up to (\d+) us later/.exec(file.otherData.notes) ?? []
    expect(file.otherData.notes).toMatch(/^The GPU's tracks: /)
    if (room === undefined) return
    const outside = (spans: TraceEvent[], phases: TraceEvent[]) => spans.filter((e) => !phases.some((phase) => within(e, phase)))
    expect(
      outside(
        trainer.filter((e) => /cispo|adamw/.test(e.name)),
        named('forward_backward'),
      ),
    ).toEqual([])
    expect(outside(engine, [...named('wait_for_batch'), ...named('eval even')])).toEqual([])
    // The arrow from a submit on the host to that on the device points forward.
    const links = file.traceEvents.filter((e) => e.ph === 's')
    expect(links).toHaveLength(submits.length)
    for (const { id, ts } of links) {
      const arrival = file.traceEvents.find((e) => e.ph === 'f' && e.id === id)!
      expect(arrival.ts).toBeGreaterThanOrEqual(ts - rounding)
      expect(track('dawn-rl JavaScript').some((e) => e.name === 'submit' && e.ts <= ts && ts <= end(e))).toBe(true)
    }
  })

  test('the numbers of the run are those without a trace, which leaves no file', async () => {
    good(await runs.run(['run_name=plain', 'max_steps=3', ...inTurns]))
    expect(runs.numbers('traced')).toEqual(runs.numbers('plain'))
    expect(existsSync(join(runs.outputs, 'plain', 'trace.json'))).toBe(false)
  })
})

test("by passes, one step ahead, into a file of one's own", async () => {
  const path = runs.path('new', 'own.json')
  good(await runs.run(['run_name=passes', 'max_steps=3', '--trace', path, 'passes']))
  const { traceEvents, otherData } = read(path)
  expect(otherData).toMatchObject({ level: 'passes', steps: 'steps 2 to 3' })
  if (otherData.notes.includes('no timestamp queries')) return
  const passes = tracksOf(traceEvents).get('GPU engine')!
  expect(passes.length).toBeGreaterThan(0)
  expect(passes.some((e) => (e.args!.dispatches as number) > 1)).toBe(true)
  expect(existsSync(join(runs.outputs, 'passes', 'trace.json'))).toBe(false)
})

test('steps that the run does not make are a sentence, and leave no folder', async () => {
  const outcome = await runs.run(['run_name=never', 'max_steps=3', '--trace', '4'])
  expect(outcome).toMatchObject({ code: 2 })
  expect(outcome.stderr).toContain('--trace 4: this run does steps 1 to 3')
  expect(runs.runs()).not.toContain('never')
})
