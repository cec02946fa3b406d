import { resolve } from 'node:path'
import { expect, test } from 'vitest'
import { dataChanges } from '../../src/cli/train-checkpoints.ts'
import { placeOf } from '../../src/cli/train-folder.ts'

test('a run that goes on with other data is told what follows', () => {
  const data = { seed: 1, environments: [{ name: 'a', weight: 1, rows: 9 }] }
  expect(dataChanges({ ...data, tasks_done: 4 }, data)).toEqual([])
  // A fork of sft's has no environments to compare.
  expect(dataChanges(data, { seed: 1 })).toEqual([])
  // A checkpoint of format 1 says nothing of it.
  expect(dataChanges({ data_position: 4 }, data)).toEqual([])
  expect(dataChanges(data, { ...data, seed: 2 })).toMatchInlineSnapshot(`
    [
      "the seed was 1 and is 2: from here on tasks come in another order, and some of this pass may come twice.",
    ]
  `)
  expect(dataChanges(data, { ...data, environments: [{ name: 'a', weight: 2, rows: 10 }] })).toMatchInlineSnapshot(`
    [
      "the environments were a (9 rows, weight 1) and are a (10 rows, weight 2): the tasks from here on are not those that were to come.",
    ]
  `)
})

test('a run that was moved is named by where it is; one that was not keeps its words', () => {
  const config = { output_dir: 'outputs', run_name: 'first' }
  expect(placeOf(undefined, config)).toEqual(config)
  expect(placeOf({ kind: 'latest' }, config)).toEqual(config)
  expect(placeOf({ kind: 'dir', dir: 'outputs/first/' }, config)).toEqual(config)
  expect(placeOf({ kind: 'dir', dir: 'moved/copy' }, config)).toEqual({ output_dir: resolve('moved'), run_name: 'copy' })
})
