/** Who may look, and at what: keys, cookies, names, methods, paths. */
import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { startView } from '../../../src/monitor/view/server.ts'
import { temporaryFolder } from '../helpers.ts'
import { Outputs } from './helpers.ts'
import { canLink } from '../../windows.ts'

async function viewer() {
  const outputs = new Outputs()
  outputs.run('a', [{ reward: 1 }])
  return { outputs, viewer: await outputs.serve() }
}

describe('the key', () => {
  test('nothing is answered without it', async () => {
    const { viewer: server } = await viewer()
    for (const path of ['/', '/api/runs', '/api/events', '/vendor/preact.js', '/report/a', '/nothing'])
      expect(await server.raw(path)).toMatchObject({ status: 401, text: expect.stringContaining('A key is needed') })
    for (const given of ['', 'x', `${server.view.key}x`, server.view.key.slice(1)])
      expect((await server.raw('/api/runs', { authorization: `Bearer ${given}` })).status).toBe(401)
    expect((await server.ask('/api/runs')).status).toBe(200)
  })

  test('becomes a cookie that scripts do not see and other sites do not send', async () => {
    const { viewer: server } = await viewer()
    const first = await server.raw(server.view.url.slice(server.view.origin.length))
    expect(first.status).toBe(200)
    expect(first.text).not.toContain(server.view.key)
    const [cookie] = first.headers['set-cookie'] as string[]
    expect(cookie).toMatch(/; HttpOnly; SameSite=Strict; Path=\/$/)
    expect(cookie).not.toContain(server.view.key)
    const pair = cookie.split(';')[0]
    expect((await server.raw('/api/runs', { cookie: `other=1; ${pair}` })).status).toBe(200)
    expect((await server.raw('/', { cookie: pair })).text).toContain('<title>')
    expect((await server.raw('/api/runs', { cookie: pair.slice(0, -1) })).status).toBe(401)
    const other = await new Outputs().serve()
    expect((await other.raw('/api/runs', { cookie: pair })).status).toBe(401)
    expect(await server.raw('/?key=wrong')).toMatchObject({ status: 401, text: expect.stringContaining('wrong') })
    // Where programs ask, an address ends in logs.
    expect((await server.raw(`/api/runs?key=${server.view.key}`)).status).toBe(401)
  })

  test('is another one each time, and one of the own where other machines reach the server', async () => {
    const outputs = new Outputs()
    const [one, two] = [await outputs.serve(), await outputs.serve()]
    expect(one.view.key).not.toBe(two.view.key)
    expect(one.view.key.length).toBeGreaterThanOrEqual(24)
    await expect(startView({ outputs: outputs.path, host: '0.0.0.0' })).rejects.toThrow('so it needs a key of your own')
    const open = await outputs.serve({ host: '0.0.0.0', key: 'ours' })
    expect((await open.ask('/api/runs')).status).toBe(200)
    expect((await open.ask('/api/runs', { host: 'training.example' })).status).toBe(200)
  })
})

test('a name that was made to point here is refused, and so are other pages and everything but GET', async () => {
  const { viewer: server } = await viewer()
  for (const host of ['evil.example', 'evil.example:80', '127.0.0.1.evil.example', '10.0.0.1'])
    expect(await server.ask('/api/runs', { host })).toMatchObject({ status: 403, text: expect.stringContaining('Host') })
  for (const host of ['localhost:1', '127.0.0.2', '[::1]:9']) expect((await server.ask('/api/runs', { host })).status).toBe(200)
  expect((await server.ask('/api/runs', { origin: 'http://evil.example' })).status).toBe(403)
  expect((await server.ask('/api/runs', { origin: server.view.origin })).status).toBe(200)
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
    const answer = await server.raw('/api/runs', { authorization: `Bearer ${server.view.key}` }, method)
    expect(answer).toMatchObject({ status: 405, headers: { allow: 'GET' } })
  }
})

test('answers say what a browser may do with them', async () => {
  const { viewer: server } = await viewer()
  const page = await server.ask('/')
  const policy = String(page.headers['content-security-policy'])
  expect(policy).toMatch(/^default-src 'none'; script-src 'self' 'sha256-[\w+/=]+'; style-src 'self';/)
  expect(policy).not.toMatch(/unsafe|https?:|\*/)
  for (const { headers } of [page, await server.ask('/api/runs'), await server.raw('/api/runs')])
    expect(headers).toMatchObject({ 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' })
})

test('the page and its libraries are there, and load nothing from elsewhere', async () => {
  const { viewer: server } = await viewer()
  const names = [
    'preact.js',
    'preact-hooks.js',
    'htm.js',
    'htm-preact.js',
    'signals.js',
    'signals-core.js',
    'uplot.js',
    'uplot.css',
  ]
  for (const name of names) {
    const { status, headers } = await server.ask(`/vendor/${name}`)
    expect([name, status]).toEqual([name, 200])
    expect(headers['content-type']).toBe(name.endsWith('css') ? 'text/css; charset=utf-8' : 'text/javascript; charset=utf-8')
  }
  const { text } = await server.ask('/')
  for (const [, path] of text.matchAll(/(?:src|href)="([^"]+)"/g))
    expect([path, (await server.ask(new URL(path, server.view.origin).pathname)).status]).toEqual([path, 200])
})

test('no path leaves the folder', async () => {
  const outside = temporaryFolder()
  for (const name of ['config.toml', 'metrics.jsonl', 'secret']) writeFileSync(join(outside, name), '{"step":1,"secret":1}\n')
  const { outputs, viewer: server } = await viewer()
  const link = (to: string, at: string) => canLink && symlinkSync(to, at)
  link(outside, outputs.file('linked'))
  outputs.run('b')
  link(join(outside, 'secret'), outputs.file('b', 'report.html'))
  link(join(outside, 'metrics.jsonl'), outputs.file('b', 'rollouts', 'step_1.jsonl'))
  expect((await server.json<{ id: string }[]>('/api/runs')).map((run) => run.id).toSorted()).toEqual(['a', 'b'])
  const paths = [
    '/../secret', '/%2e%2e/secret', '/..%2fsecret', '/vendor/../../package.json', '/vendor/%2e%2e%2fpackage.json', '/api/runs/..', '/api/runs/..%2F..%2Fetc',
    '/api/runs/linked', '/api/runs/%2Fetc', '/api/runs/a%00', '/api/runs/a/rollouts/..%2f/0', '/report/..%2Fa', '/report/b', '/report/linked', '//etc/passwd',
    '/api/runs/a/../../../secret', '/api/runs/%', '/index.html%00.js', '/page/index.html', '/static.ts', '/types.ts',
    // As Windows names files: with backslashes, drives, other machines, devices, streams, and with what it leaves out at the end of a name.
    '/..%5csecret', '/vendor/..%5c..%5cpackage.json', '/api/runs/..%5ca', '/api/runs/b%5c..%5ca', '/report/..%5ca', '/C:/Windows/win.ini', '/api/runs/C:', '/api/runs/C:%5cWindows',
    '/%5c%5chost%5cshare', '/api/runs/%5c%5c%3f%5cC:', '/api/runs/NUL', '/report/a:stream', '/api/runs/a::$INDEX_ALLOCATION', '/app.js::$DATA', '/APP.JS', '/app.js.', '/app.js%20', '/api/runs/A',
  ] // prettier-ignore
  for (const path of paths) {
    const { status, text } = await server.ask(path)
    expect([path, status >= 400 && status < 500, text.includes('secret":1')]).toEqual([path, true, false])
    expect(JSON.parse(text)).toEqual({ error: { message: expect.stringMatching(/\w.*\.$/) } })
  }
  expect(await server.json('/api/runs/b/rollouts')).toMatchObject({ total: 0, rows: [] })
  // Nor by a folder of a run that is a link.
  outputs.run('d')
  outputs.write(
    join('a', 'rollouts', 'step_1.jsonl'),
    '{"step":1,"split":"train","env":"x","group":"1","reward":1,"prompt":[],"completion":[]}\n',
  )
  link(outputs.file('a', 'rollouts'), outputs.file('d', 'rollouts'))
  link(outside, outputs.file('d', 'logs'))
  writeFileSync(join(outside, 'timeline.jsonl'), '{"secret":1}\n')
  expect((await server.json<{ total: number }>('/api/runs/a/rollouts')).total).toBeGreaterThan(0)
  expect(await server.json('/api/runs/d')).toMatchObject({ summary: { has: { rollouts: false, timeline: false } } })
  expect(await server.json('/api/runs/d/rollouts')).toMatchObject({ total: 0, rows: [] })
  expect((await server.ask('/api/runs/d/rollouts/1/0')).status).toBe(404)
})

test('a folder that is not there, or a port that is taken, is a sentence', async () => {
  await expect(startView({ outputs: '/nowhere/outputs' })).rejects.toThrow('There is no folder /nowhere/outputs')
  const { outputs, viewer: server } = await viewer()
  const port = Number(new URL(server.view.origin).port)
  await expect(startView({ outputs: outputs.path, port })).rejects.toThrow(
    `can't listen on 127.0.0.1:${port}: that address is in use`,
  )
})

test('wrong words are told by their name', async () => {
  const { viewer: server } = await viewer()
  const wrong: [string, string][] = [
    ['rollouts?limit=x', 'limit is "x": it must be a number.'],
    ['rollouts?limit=2000', 'limit is 2000: it must be a whole number from 0 to 1000.'],
    ['rollouts?sort=up', 'sort is "up": it must be one of step, -step'],
    ['rollouts?split=test', 'split is "test"'],
    ['rollouts?error=maybe', 'error is "maybe"'],
    ['rollouts?min_reward=high', 'min_reward is "high"'],
    ['metrics?from=-1', 'from is -1'],
    ['metrics?points=1', 'points is 1'],
    ['timeline?step=1.5', 'step is 1.5'],
  ]
  for (const [path, words] of wrong)
    expect(await server.error(`/api/runs/a/${path}`)).toEqual({ status: 400, message: expect.stringContaining(words) })
  expect(await server.error('/api/runs/c')).toMatchObject({ status: 404, message: expect.stringContaining('no run "c"') })
  expect(await server.error('/api/runs/a/rollouts/1/0')).toMatchObject({ status: 404 })
  expect(await server.error('/api/compare')).toMatchObject({ status: 400 })
  expect(await server.error('/report/a')).toMatchObject({ status: 404, message: expect.stringContaining('no report.html yet') })
})
