/** What needs no Python; the bridge itself is in test/python. */
import { expect, test } from 'vitest'
import { PythonEnv } from '../../src/environments/python/environment.ts'

test('rows of Python that share an example_id are counted; ids that differ stay', () => {
  const rows = [7, 7, 3, 5, 4].map((exampleId) => ({ exampleId, prompt: [], answer: '', info: {}, packed: new Uint8Array(1) }))
  const about = { version: '0.3.0', group: false, max_turns: 1, message_type: 'chat', system_prompt: null, tools: [], rewards: [], train: 3, held: 2, rows } // prettier-ignore
  const env = new PythonEnv({ id: 'x', args: {}, kwargs: {}, python: 'python3', base: '.' }, about, {})
  expect(env.dataset.map((row) => row.exampleId)).toEqual([0, 1, 2])
  expect(env.evalDataset.map((row) => row.exampleId)).toEqual([5, 4])
})
