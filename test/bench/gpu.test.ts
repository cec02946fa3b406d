/** `bench/gpu.ts` as it is called, with tiny sizes: parts leave their figures in the file, a wrong part is refused. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, test } from 'vitest'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-gpu-'))
afterAll(() => rmSync(folder, { recursive: true }))
const script = fileURLToPath(new URL('../../bench/gpu.ts', import.meta.url))
const run = (...words: string[]) => spawnSync(process.execPath, [script, ...words], { encoding: 'utf8' })

test('figures beside aims, in the file', () => {
  const out = join(folder, 'gpu.json')
  const { status, stdout, stderr } = run('--quick', '--only', 'dispatch,attention', '--out', out)
  expect(status, stderr).toBe(0)
  const report = JSON.parse(readFileSync(out, 'utf8')) as { aims: { name: string; value: number; aim?: number }[] } & Record<
    string,
    unknown
  >
  expect(Object.keys(report)).toEqual(['date', 'adapter', 'quick', 'aims', 'dispatch', 'attention'])
  const names = report.aims.map(({ name }) => name)
  expect(names).toContain('a dispatch and its read-back')
  expect(names).toContain('attention backward / forward, 64 tokens')
  for (const { name, value } of report.aims) {
    expect(value, name).toBeGreaterThan(0)
    expect(stdout).toContain(name)
  }
})

test('generation is told with its prompts, as transformers tells it, beside the decode steps alone', () => {
  const out = join(folder, 'decode.json')
  const { status, stderr } = run('--quick', '--only', 'decode', '--out', out)
  expect(status, stderr).toBe(0)
  const { aims } = JSON.parse(readFileSync(out, 'utf8')) as { aims: { name: string }[] }
  const names = aims.map(({ name }) => name)
  expect(names).toContain('decode of 4 sequences, register tiles')
  expect(names).toContain('generation of 4 sequences with their prompts, register tiles')
})

test('a part that is none', () => {
  const { status, stderr } = run('--only', 'attentoin')
  expect(status).toBe(2)
  expect(stderr).toContain(
    '--only attentoin: the parts are dispatch, compile, peaks, tune, matmul, attention, decode, step, peers.',
  )
})
