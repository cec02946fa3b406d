/** Waiting with a limit: which error is told, that the work hears of it, and that nothing stays behind. */
import { getEventListeners } from 'node:events'
import { expect, test, vi } from 'vitest'
import { TimeLimitError, withLimit } from '../../src/environments/limit.ts'

/** Never ends by itself; what its signal said in the end. */
function endless() {
  const heard: unknown[] = []
  const work = (signal: AbortSignal) =>
    new Promise<never>(() => signal.addEventListener('abort', () => heard.push(signal.reason)))
  return { heard, work }
}

test.each([
  ['the run was stopped', /^a reward was aborted: the run was stopped$/],
  [undefined, /^a reward was aborted$/],
  [{ odd: true }, /^a reward was aborted$/],
])('work whose run has been stopped is not begun: %o', async (reason, message) => {
  const work = vi.fn()
  const signal = AbortSignal.abort(reason)
  await expect(withLimit({ what: 'a reward', seconds: 9, signal }, work)).rejects.toThrow(message)
  expect(work).not.toHaveBeenCalled()
})

test('at the limit, and when the run stops, the work and its caller are told the same', async () => {
  const late = endless()
  const limited: unknown = await withLimit({ what: 'a tool', seconds: 0.01 }, late.work).catch((error: unknown) => error)
  expect(limited).toBeInstanceOf(TimeLimitError)
  expect(limited).toMatchObject({ what: 'a tool', message: 'a tool took longer than its limit of 0.01 s' })
  expect(late.heard).toEqual([limited])

  const [stopped, run] = [endless(), new AbortController()]
  const waiting = withLimit({ what: 'a tool', seconds: 9, signal: run.signal }, stopped.work)
  setTimeout(() => run.abort(new Error('another rollout failed')), 5)
  const error: unknown = await waiting.catch((reason: unknown) => reason)
  expect(error).toMatchObject({ message: 'a tool was aborted: another rollout failed' })
  expect(stopped.heard).toEqual([error])
  expect(getEventListeners(run.signal, 'abort')).toEqual([])
})

test('work that ends in time leaves no timer and no listener; a limit of a month is none', async () => {
  vi.useFakeTimers()
  try {
    const { signal } = new AbortController()
    expect(await withLimit({ what: 'a tool', seconds: 9, signal }, () => 3)).toBe(3)
    expect([vi.getTimerCount(), getEventListeners(signal, 'abort')]).toEqual([0, []])
    void withLimit({ what: 'a tool', seconds: 30 * 24 * 3600 }, () => new Promise(() => {}))
    expect(vi.getTimerCount()).toBe(0)
  } finally {
    vi.useRealTimers()
  }
})
