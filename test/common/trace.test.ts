/** The tracer by itself: what it notes, what it closes, where it stops. */
import { afterEach, expect, test } from 'vitest'
import { startTrace, stopTrace, tracer } from '../../src/common/trace.ts'

afterEach(() => void stopTrace())

const start = (maxEvents = 100) => startTrace({ level: 'kernels', maxEvents })

test('there is a tracer between start and stop, and one at a time', () => {
  expect(tracer).toBeUndefined()
  const made = start()
  expect(tracer).toBe(made)
  expect(() => start()).toThrow('a trace is being recorded already')
  expect(stopTrace()).toBe(made)
  expect(tracer).toBeUndefined()
  expect(stopTrace()).toBeUndefined()
})

test('spans nest on their track, and what is open at the end is closed there, the inner one first', async () => {
  const made = start()
  const outer = made.span('steps', 'outer')
  made.span('steps', 'inner', { rows: 2 }).end({ done: true })
  made.span('steps', 'open')
  const late = made.span('JavaScript', 'late')
  stopTrace()
  const events = (await made.finish()).filter((e) => e.ph === 'X')
  outer.end()
  late.end()
  expect(await made.finish()).toHaveLength(events.length + 3)
  const by = (name: string) => events.find((e) => e.name === name)!
  const end = (name: string) => by(name).ts + by(name).dur!
  expect(by('inner').args).toEqual({ rows: 2, done: true })
  expect(by('open').args).toEqual({ unfinished: true })
  expect(by('outer').args).toEqual({ unfinished: true })
  expect(by('inner').tid).toBe(by('outer').tid)
  expect(by('late').tid).not.toBe(by('outer').tid)
  expect(by('inner').ts).toBeGreaterThanOrEqual(by('outer').ts)
  expect(end('inner')).toBeLessThanOrEqual(by('open').ts)
  expect(end('open')).toBeLessThanOrEqual(end('outer'))
})

test('flights overlap, each with an id, and their phases follow each other within', async () => {
  const made = start()
  const [a, b] = [made.flight('rollout', 'a'), made.flight('rollout', 'b')]
  a.phase('generation')
  b.phase('generation')
  a.phase('rewards')
  a.end({ tokens: 3 })
  a.end()
  a.phase('never')
  b.end()
  stopTrace()
  const events = (await made.finish()).filter((e) => e.ph !== 'M')
  const of = (name: string) => {
    const { id } = events.find((e) => e.name === name)!
    return events.filter((e) => e.id === id).map((e) => `${e.ph} ${e.name}`)
  }
  expect(of('a')).toEqual(['b a', 'b generation', 'e generation', 'b rewards', 'e rewards', 'e a'])
  expect(of('b')).toEqual(['b b', 'b generation', 'e generation', 'e b'])
  expect(events.findLast((e) => e.name === 'a')!.args).toEqual({ tokens: 3 })
})

test('at its most events it leaves out what begins, and closes what began', async () => {
  const made = start(6)
  const step = made.span('steps', 'step')
  const flight = made.flight('rollout', 'a')
  flight.phase('generation')
  flight.phase('rewards')
  for (let i = 0; i < 10; i++) made.counter('pool', { i })
  made.span('steps', 'too late').end()
  made.flight('rollout', 'too late').end()
  flight.end()
  step.end()
  expect(made.full).toBe(true)
  stopTrace()
  const events = (await made.finish()).filter((e) => e.ph !== 'M')
  expect(events.length).toBeLessThanOrEqual(6)
  expect(events.some((e) => e.name === 'too late')).toBe(false)
  expect(events.map((e) => `${e.ph} ${e.name}`).toSorted()).toEqual(['X step', 'b a', 'b generation', 'e a', 'e generation'])
})
