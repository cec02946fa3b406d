/** What is said of what was thrown. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-errors-'))
afterAll(() => rmSync(folder, { recursive: true }))

test("a place is told of a user's code and not of ours, in a folder with a space and brackets in its name too", async () => {
  const common = join(folder, 'a copy (2)/src/common')
  mkdirSync(common, { recursive: true })
  cpSync(join(import.meta.dirname, '../../src/common/errors.ts'), join(common, 'errors.ts'))
  const thrown = 'export const thrown = new Error("no")\n'
  const [ours, theirs] = [join(common, 'ours.ts'), join(folder, 'a copy (2)/mine.ts')]
  writeFileSync(ours, thrown)
  writeFileSync(theirs, `\n${thrown}`)
  const code = `import { placeInCode } from ${JSON.stringify(join(common, 'errors.ts'))}
    for (const file of ${JSON.stringify([ours, theirs])}) console.log(placeInCode((await import(file)).thrown))`
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '--eval', code], { encoding: 'utf8' })
  expect(stdout).toBe('undefined\nmine.ts:2:23\n')
})
