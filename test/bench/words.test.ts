/** The scripts of bench/ say how they are used, and measure a model with the kernels that its runs take. */
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { headOf } from '../../bench/words.ts'

const root = join(import.meta.dirname, '../..')
const bench = join(root, 'bench')
const scripts = readdirSync(bench)
  .filter((name) => name.endsWith('.ts') && name !== 'words.ts')
  .filter((name) => readFileSync(join(bench, name), 'utf8').includes('wordsOf('))

test('--help prints how a script is used, and a word that it does not know ends it with a sentence', () => {
  const run = (...words: string[]) => spawnSync(process.execPath, ['bench/matmul.ts', ...words], { cwd: root, encoding: 'utf8' })
  const help = run('--help')
  expect([help.status, help.stderr]).toEqual([0, ''])
  expect(help.stdout).toMatch(/^How fast are the matrix products of a linear layer\?[^]*node bench\/matmul\.ts \[--rows/)
  expect(help.stdout).not.toMatch(/\*\/|^ \*/m)
  const wrong = run('--row', '3')
  expect([wrong.status, wrong.stdout]).toEqual([2, ''])
  expect(wrong.stderr).toMatch(/^matmul\.ts: Unknown option '--row'[^\n]*\(--help says how it is used\)\n$/)
})

test('each has a head that names its command', () => {
  expect(scripts.length).toBeGreaterThan(7)
  for (const name of scripts) expect(headOf(join(bench, name))).toContain(`node bench/${name}`)
})

test('vectors of 512 bits are taken where a run of the model takes them, not for all models', () => {
  for (const name of scripts) expect(readFileSync(join(bench, name), 'utf8'), name).not.toMatch(/wideVectors: true/)
})
