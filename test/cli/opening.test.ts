/** The order in which what a command opened is closed, also if one of it cannot be closed. */
import { expect, test } from 'vitest'
import { closeAll } from '../../src/cli/opening.ts'

test('everything is closed, the newest first, also after one that throws; the first error is thrown at the end', async () => {
  const closed: string[] = []
  const one = (name: string, error?: string) => ({
    close: async () => {
      closed.push(name)
      if (error !== undefined) throw new Error(error)
    },
  })
  const opened = [one('gpu'), one('lock', 'the second'), one('engine', 'the first'), one('server')]
  await expect(closeAll(opened)).rejects.toThrow('the first')
  expect(closed).toEqual(['server', 'engine', 'lock', 'gpu'])
  await closeAll(opened)
  expect(closed).toHaveLength(4)
})
