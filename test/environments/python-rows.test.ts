/** What needs no Python; the bridge itself is in test/python. */
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test, vi } from 'vitest'
import { PythonEnv } from '../../src/environments/python/environment.ts'

const about = { version: '0.3.0', group: false, max_turns: 1, message_type: 'chat', system_prompt: null, tools: [], rewards: [], train: 3, held: 2 } // prettier-ignore
const wish = { id: 'x', args: {}, kwargs: {}, python: 'python3', base: '.' }

test('rows of Python that share an example_id are counted; ids that differ stay', () => {
  const rows = [7, 7, 3, 5, 4].map((exampleId) => ({ exampleId, prompt: [], answer: '', info: {}, packed: new Uint8Array(1) }))
  const env = new PythonEnv(wish, { ...about, rows }, {})
  expect(env.dataset.map((row) => row.exampleId)).toEqual([0, 1, 2])
  expect(env.evalDataset.map((row) => row.exampleId)).toEqual([5, 4])
})

test('a folder for logs that cannot be made leaves no folder for sockets', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-python-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  vi.stubEnv('TMPDIR', folder)
  onTestFinished(() => void vi.unstubAllEnvs())
  writeFileSync(join(folder, 'file'), '')
  const env = new PythonEnv(wish, { ...about, rows: [] }, {})
  await expect(env.open({ logs: join(folder, 'file', 'logs') })).rejects.toThrow('ENOTDIR')
  await env.close()
  expect(readdirSync(folder)).toEqual(['file'])
})
