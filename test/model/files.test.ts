import { execFileSync } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'

test('a file that is to be written where the working directory was deleted is an error, not a wait without end', () => {
  const cwd = mkdtempSync(join(tmpdir(), 'dawn-rl-gone-'))
  const files = join(import.meta.dirname, '../../src/model/files.ts')
  const code = `
    const { writeWhole } = await import(${JSON.stringify(files)})
    ;(await import('node:fs')).rmdirSync(process.cwd())
    console.log(await writeWhole('outputs/run/a.txt', ['x']).catch((error) => error.code ?? String(error)))`
  const said = execFileSync(process.execPath, ['--input-type=module', '-e', code], { cwd, encoding: 'utf8', timeout: 60_000 })
  expect(said).toMatch(/ENOENT/)
})
