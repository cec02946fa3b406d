/** Which earlier evaluation `eval --resume` takes for the same one. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { openEvalFolder } from '../../src/cli/eval-play.ts'
import type { EvalSource } from '../../src/cli/eval-plan.ts'
import type { LoadOptions } from '../../src/environments/index.ts'
import { UserError } from '../../src/common/errors.ts'

const outputDir = mkdtempSync(join(tmpdir(), 'dawn-rl-eval-'))
afterAll(() => rmSync(outputDir, { recursive: true }))

function open(model: string, source: EvalSource, folder = outputDir, load?: LoadOptions): string {
  const work = {
    target: { label: 'x', model },
    environment: { name: 'short-answers', args: {}, load, rows: [], k: 1 },
    plan: { sampling: { seed: 1, temperature: 1 }, extra: {}, source, strategy: 'interleaved', toolCallParser: 'auto' },
    options: { outputDir: folder, resume: true, seed: 42, split: 'eval', solvedAt: 0.5 },
  } as unknown as Parameters<typeof openEvalFolder>[0]
  return openEvalFolder(work).path
}

test('a name of any length is a folder of its own, which says its end', () => {
  const deep = `/home/${'a'.repeat(200)}/${'b'.repeat(130)}/qwen`
  expect(basename(dirname(open(deep, { kind: 'model', model: deep })))).toMatch(/^short-answers--b+--qwen$/)
})

test('a folder that cannot be made is told in a sentence', () => {
  const file = join(outputDir, 'file')
  writeFileSync(file, '')
  const make = () => open('models/x', { kind: 'model', model: 'models/x' }, file)
  expect(make).toThrow(UserError)
  expect(make).toThrow(/file.short-answers--models--x.\w{8} cannot be written: (?:ENOTDIR|ENOENT)/)
})

test('an adapter on another model, and a run of the same name in another folder, are not the same evaluation', () => {
  const on = (model: string) => open('adapters/a', { kind: 'model', model, adapter: 'adapters/a' })
  expect(on('models/x')).toBe(on('models/x'))
  expect(on('models/x.Q4_1.gguf')).not.toBe(on('models/x'))

  const rest = { kind: 'run', model: 'models/x', checkpoints: [], lora: true, rank: 8, base: false } as const
  const of = (dir: string) => open('first@step_10', { ...rest, checkpoints: [], dir })
  expect(of('outputs/first')).toBe(of('./outputs/first/'))
  expect(of('elsewhere/first')).not.toBe(of('outputs/first'))
})

test('an environment in Python with other attributes, or of another Python, is not the same one; how many processes play it is no matter', () => {
  const by = (load?: LoadOptions) => open('models/y', { kind: 'model', model: 'models/y' }, outputDir, load)
  const [plain, turns, python] = [by(), by({ python: true, kwargs: { max_turns: 5 } }), by({ python: 'venv/bin/python' })]
  expect(new Set([plain, turns, python]).size).toBe(3)
  expect([by({ python: true }), by({ kwargs: {}, workers: 2 })]).toEqual([plain, plain])
  expect([plain, turns, python]).not.toContain(by({ python: 'other/bin/python' }))
  expect(by({ python: true, kwargs: { max_turns: 5 }, workers: 4 })).toBe(turns)
  expect(by({ python: './venv/bin/python' })).toBe(python)
  expect(by({ python: true, kwargs: { max_turns: 6 } })).not.toBe(turns)
})
