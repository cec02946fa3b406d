/** What is said of what was thrown. */
import { spawnSync } from 'node:child_process'
import dns from 'node:dns'
import { once } from 'node:events'
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { afterAll, expect, test, vi } from 'vitest'
import { messageOf, placeInCode } from '../../src/common/errors.ts'
import { hubFailure } from '../../src/common/hub.ts'
import { patientFetch } from '../../src/common/patient-fetch.ts'

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
  const url = (file: string) => pathToFileURL(file).href
  const code = `import { placeInCode } from ${JSON.stringify(url(join(common, 'errors.ts')))}
    for (const file of ${JSON.stringify([url(ours), url(theirs)])}) console.log(placeInCode((await import(file)).thrown))`
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '--eval', code], { encoding: 'utf8' })
  expect(stdout).toBe('undefined\nmine.ts:2:23\n')
})

test.each([
  ['file:///C:/my%20envs/mine.ts', 'an ES module'],
  ['file://host/share/mine.ts', 'an ES module of another machine'],
  ['C:\\my envs\\mine.ts', 'CommonJS'],
  ['c:\\my envs\\mine.ts', 'CommonJS below a drive in small letters, as some terminals name it'],
  ['C:/my envs/mine.ts', 'vitest'],
])('a place on Windows: %s, of %s', (path) => {
  const thrown = Object.assign(new Error('no'), { stack: '' })
  for (const line of [`at ${path}:2:23`, `at async Object.setup (${path}:2:23)`]) {
    thrown.stack = `Error: no\n    at node:internal/process:1:2\n    ${line}`
    expect(placeInCode(thrown)?.split(/[\\/]/).at(-1)).toBe('mine.ts:2:23')
  }
})

test('a host with several addresses, none of which can be reached: what is wrong with each of them', async () => {
  const free = createServer().listen(0, '127.0.0.1')
  await once(free, 'listening')
  const { port } = free.address() as AddressInfo
  await new Promise((closed) => free.close(closed))
  const lookup = vi.spyOn(dns, 'lookup').mockImplementation(((
    _host: string,
    _options: object,
    done: (...found: unknown[]) => void,
  ) =>
    done(null, [
      { address: '127.0.0.1', family: 4 },
      { address: '127.0.0.2', family: 4 },
    ])) as never)
  const refused = `connect ECONNREFUSED 127.0.0.1:${port}, connect ECONNREFUSED 127.0.0.2:${port}`
  const asked = async (fetchIt: typeof fetch) => await fetchIt(`http://hub.invalid:${port}`).catch((error: unknown) => error)
  expect(messageOf(await asked(patientFetch))).toBe(refused)
  expect(hubFailure(await asked(fetch), 'model')).toBe(`fetch failed (${refused})`)
  lookup.mockRestore()
})
