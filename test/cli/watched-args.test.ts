/** Arguments that nothing reads. */
import { expect, test } from 'vitest'
import { unreadNotices, watchArgs } from '../../src/cli/watched-args.ts'

test.each<[string, (args: Record<string, unknown>) => unknown, string[]]>([
  ['taken by name', ({ a = 0 }) => a, ['b']],
  ['taken as the rest', ({ a, ...rest }) => [a, rest], []],
  ['cloned', (args) => structuredClone(args), []],
  ['written as JSON', (args) => JSON.stringify(args), []],
  ['written over', (args) => (args.a = 2), ['a', 'b']],
  ['not taken', () => 0, ['a', 'b']],
])('what is %s', (_, use, unread) => {
  const given = { a: 1, b: [2] }
  const watched = watchArgs(given)
  expect({ ...watchArgs(given).args }).toEqual(given)
  use(watched.args)
  expect([...watched.unread]).toEqual(unread)
  expect(unreadNotices(watched, 'trainer.args.loss_args.', './l.ts')).toHaveLength(unread.length)
  expect(given).toEqual({ a: 1, b: [2] })
})
