import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'

const made: string[] = []
// Registered as the file is loaded: Vitest forgets an afterAll that is called while a test runs.
afterAll(() => {
  for (const dir of made) rmSync(dir, { recursive: true, force: true })
})

/** Creates an empty folder in the system's temporary folder, which is removed after the tests of the file. */
export function newFolder(name: string): string {
  const dir = mkdtempSync(join(tmpdir(), `dawn-rl-${name}-`))
  made.push(dir)
  return dir
}
