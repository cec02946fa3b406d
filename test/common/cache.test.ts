import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, expect, onTestFinished, test, vi } from 'vitest'
import { hubAccess, hubCache, hubFailure } from '../../src/common/hub.ts'

const environment = { ...process.env }
afterEach(() => void (process.env = { ...environment }))

test.runIf(process.getuid?.() === 0)('a user whom the system does not know has a cache in the folder for temporary files', () => {
  const source = (path: string) => JSON.stringify(new URL(`../../src/${path}`, import.meta.url).href)
  const script = `
    const [{ cacheFolder }, { hubCache }] = [await import(${source('common/cache.ts')}), await import(${source('common/hub.ts')})]
    process.setuid(54321)
    const { separateDriverCache } = await import(${source('gpu/driver-cache.ts')})
    separateDriverCache()
    await import(${source('monitor/report/png.ts')})
    console.log(JSON.stringify([cacheFolder(), hubCache(), process.env.MESA_SHADER_CACHE_DIR]))`
  const places = ['HOME', 'XDG_CACHE_HOME', 'HF_HOME', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE', 'MESA_SHADER_CACHE_DIR']
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-home-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  execFileSync('chown', ['54321', folder])
  const env = { ...process.env, ...Object.fromEntries(places.map((name) => [name, undefined])), TMPDIR: folder }
  const out = execFileSync(process.execPath, ['--input-type=module', '-e', script], {
    encoding: 'utf8',
    env: { ...env, LP_NATIVE_VECTOR_WIDTH: '512' },
  })
  expect(JSON.parse(out)).toEqual(
    ['.cache/dawn-rl', '.cache/huggingface/hub', '.cache/dawn-rl/lavapipe-512-bit'].map((path) => join(folder, path)),
  )
})

test("the hub's token lies beside its files, wherever the user's cache is", async () => {
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-token-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  for (const name of ['HF_HOME', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE', 'HF_TOKEN', 'HF_TOKEN_PATH']) delete process.env[name]
  process.env.XDG_CACHE_HOME = folder
  mkdirSync(join(folder, 'huggingface'))
  writeFileSync(join(folder, 'huggingface/token'), 'hf_secret\n')
  expect(hubCache()).toBe(join(folder, 'huggingface/hub'))
  const asked = vi.spyOn(globalThis, 'fetch').mockResolvedValue(new Response())
  onTestFinished(() => void vi.restoreAllMocks())
  const access = await hubAccess()
  await access.fetch(`${access.hubUrl}/api`)
  expect((asked.mock.calls[0][1]!.headers as Headers).get('authorization')).toBe('Bearer hf_secret')
})

test('a hub that does not begin to answer is given up after a minute; a body may take longer', async () => {
  let [asked, release] = [() => {}, () => {}]
  const server = createServer((request, response) => {
    if (request.url === '/slow') response.write('a')
    release = () => response.end('b')
    asked()
  })
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready))
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  onTestFinished(() => {
    vi.useRealTimers()
    server.close()
    server.closeAllConnections()
  })
  const access = await hubAccess()
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const arrived = new Promise<void>((resolve) => (asked = resolve))
  const failure = access.fetch(`${url}/silent`).catch((error: unknown) => hubFailure(error, 'model'))
  await arrived
  vi.advanceTimersByTime(60_000)
  expect(await failure).toBe('no answer has come for 60 s')
  const slow = await access.fetch(`${url}/slow`)
  vi.advanceTimersByTime(61_000)
  release()
  expect(await slow.text()).toBe('ab')
})

test('the places of the Python libraries are read as they read them', () => {
  for (const name of ['HF_HOME', 'HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE', 'XDG_CACHE_HOME', 'NOT_SET']) delete process.env[name]
  const where = (change: Record<string, string>) => {
    const before = { ...process.env }
    Object.assign(process.env, { DISK: '/d' }, change)
    const cache = hubCache()
    process.env = before
    return cache
  }
  // huggingface_hub.constants.HF_HUB_CACHE with the same variables
  expect(where({ HF_HOME: '~/hf' })).toBe(join(homedir(), 'hf/hub'))
  expect(where({ HF_HOME: '${DISK}/hf' })).toBe('/d/hf/hub')
  expect(where({ HF_HUB_CACHE: '$DISK/a~b' })).toBe('/d/a~b')
  expect(where({ XDG_CACHE_HOME: '~' })).toBe(join(homedir(), 'huggingface/hub'))
  expect(where({ HF_HUB_CACHE: '$NOT_SET/c' })).toBe('$NOT_SET/c')
})

test.each(['ENOSPC: no space left on device, write', 'EACCES: permission denied, mkdir', 'EROFS: read-only file system, mkdir'])(
  'a cache of the hub that cannot be written says which folder it is and how to name another: %s',
  (message) => {
    process.env.HF_HUB_CACHE = '/full/hub'
    const error = Object.assign(new Error(message), { code: message.split(':')[0] })
    expect(hubFailure(error, 'model')).toBe(
      `it cannot be kept in the cache /full/hub (${message}). Make room there, or name another folder in HF_HUB_CACHE`,
    )
    // The network may refuse with the same codes.
    expect(hubFailure(new TypeError('fetch failed', { cause: error }), 'model')).toBe(`fetch failed (${message})`)
  },
)
