/** Code that a model could write against the sandbox: each run is bounded, with its cause in words, and the next one works. */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Worker } from 'node:worker_threads'
import { afterAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { closeSandbox, runSandboxed, type SandboxCause, type SandboxOptions } from '../../src/environments/sandbox/index.ts'
import { load } from '../../src/environments/packages.ts'
import { Workers } from '../../src/environments/sandbox/pool.ts'
import fc from '../fast-check.ts'
import { isWindows } from '../windows.ts'

afterAll(closeSandbox)

describe('what code gives', () => {
  test.each<[string, unknown]>([
    ['1 + 1', 2],
    ['const f = n => (n < 2 ? n : f(n - 1) + f(n - 2)); f(15)', 610],
    ['[..."héé😀"].reverse().join("")', '😀ééh'],
    ['({ a: [1, null, "x"], u: undefined })', { a: [1, null, 'x'] }],
    ['Promise.resolve(3).then(x => x + 1)', 4],
    ['(async () => { let n = 0; for (let i = 0; i < 50; i++) n += await i; return n })()', 1225],
    ['undefined', undefined],
    ['() => 1', undefined],
  ])('%s', async (code, value) => {
    expect(await runSandboxed(code)).toEqual({ stdout: '', value, calls: [], error: null, cause: null })
  })
  test('what it writes, a line a call', async () => {
    const { stdout } = await runSandboxed('console.log(1, "a", { a: [1] }); console.error(null, undefined, Symbol("s")); 0')
    expect(stdout).toBe('1 a {"a":[1]}\nnull undefined Symbol(s)\n')
    const odd = await runSandboxed(String.raw`console.log("a\0b", "😀\n"); 0`)
    expect(odd.stdout).toBe('a\0b 😀\n\n')
  })
  test('values from outside, odd keys too', async () => {
    const input = { text: 'a\u2028"`${1}', ['__proto__']: { x: 1 } }
    expect((await runSandboxed('input.text + Object.keys(input).length', { globals: { input } })).value).toBe('a\u2028"`${1}2')
  })
  test('the word __proto__, as a value and behind a quotation mark', async () => {
    const input = ['__proto__', 'x"__proto__', { ['__proto__']: '__proto__' }]
    const { value, calls } = await runSandboxed('input', { globals: { input } })
    expect([JSON.stringify(value), calls]).toEqual([JSON.stringify(input), []])
    const run = await runSandboxed('(JSON.parse = () => 0, (...x) => x)', { calls: [input] })
    expect(JSON.stringify(run.calls)).toBe(JSON.stringify([{ value: input, error: null }]))
  })
  test('JSON goes in and comes out as it was', async () => {
    await fc.assert(
      fc.asyncProperty(fc.jsonValue(), async (value) => {
        const run = await runSandboxed('value', { globals: { value } })
        expect(JSON.stringify(run.value)).toBe(JSON.stringify(value))
      }),
      { numRuns: 30 },
    )
  })
  test('calls of what it evaluates to; one that throws leaves the others', async () => {
    const { calls, error } = await runSandboxed('(a, b) => { if (a < 0) throw new RangeError("no"); return a + b }', {
      calls: [
        [1, 2],
        [-1, 0],
        ['x', 'y'],
      ],
    })
    expect(error).toBeNull()
    expect(calls).toEqual([
      { value: 3, error: null },
      { value: undefined, error: 'RangeError: no (line 1)' },
      { value: 'xy', error: null },
    ])
    expect((await runSandboxed('3', { calls: [[1]] })).calls[0].error).toContain('not a function')
  })
  test('the same seed gives the same random numbers', async () => {
    const draw = async (s: number) => (await runSandboxed('[Math.random(), Math.random()]', { seed: s })).value
    expect(await draw(1)).toEqual(await draw(1))
    expect(await draw(1)).not.toEqual(await draw(2))
  })
})

describe('hostile code', () => {
  const brief = { seconds: 0.4 }
  test.each<[string, string, SandboxCause, RegExp, SandboxOptions?]>([
    ['endless loop', 'for (;;);', 'time', /longer than its limit of 0.4 s/, brief],
    ['a loop that catches', 'for (;;) try { for (;;); } catch {}', 'time', /longer than/, brief],
    ['endless promises', '(async () => { for (;;) await 0 })()', 'time', /longer than/, brief],
    ['a getter without end', '({ get a() { for (;;); } })', 'time', /longer than/, brief],
    ['an error whose name never ends', 'throw { get name() { for (;;); } }', 'time', /longer than/, brief],
    ['a regular expression', '/(a+)+$/.test("a".repeat(40) + "b")', 'time', /longer than/, brief],
    [
      'a search that cannot be interrupted',
      'let a = "a".repeat(2e6), b = "a".repeat(1e6) + "b", n = 0; for (let i = 0; i < 500; i++) n += a.indexOf(b)',
      'time',
      /could not be interrupted/,
      brief,
    ],
    ['allocation', 'const a = []; for (;;) a.push(new Array(1000).fill(1))', 'memory', /more memory than its 32 MiB/],
    [
      'buffers',
      'const a = []; for (;;) a.push(new Uint8Array(1 << 20))',
      'memory',
      /more memory than its 20 MiB/,
      { memoryMb: 20 },
    ],
    ['a nest until memory ends', 'let a = []; for (;;) a = [a]', 'memory', /more memory/],
    ['one huge string', '"x".repeat(2 ** 29)', 'memory', /more memory/],
    ['a string that doubles', 'let a = "x"; for (;;) a += a', 'code', /string too long/],
    ['recursion', 'const f = () => f() + 1; f()', 'stack', /too deep/],
    ['a nest too deep to write', 'let a = []; for (let i = 0; i < 1e5; i++) a = [a]; a', 'stack', /too deep/],
    ['reading a file', 'require("fs").readFileSync("/etc/passwd")', 'code', /'require' is not defined/],
    ['importing a module', 'import("node:fs").then(fs => fs.readFileSync("/etc/passwd"))', 'code', /could not load module/],
    ['importing a file', 'import("/etc/passwd")', 'code', /could not load module/],
    ['a process', 'this.constructor.constructor("return process")().exit()', 'code', /'process' is not defined/],
    ['a wait', 'new Promise(() => {})', 'code', /never settles/],
    ['a timer', 'setTimeout(() => {}, 1e9)', 'code', /not defined/],
    ['huge output', 'for (;;) console.log("x".repeat(1000))', 'output', /wrote more than its limit of 65536/],
    ['long lines', 'for (;;) console.log("x".repeat(1e6))', 'output', /wrote more than its limit of 65536/],
    ['a huge value', '"x".repeat(1e6)', 'output', /value is longer than 65536/],
    ['no JavaScript', 'Here is the answer: 3', 'code', /SyntaxError/],
    ['a throw', '\n\nthrow new Error("hey")', 'code', /^Error: hey \(line 3\)$/],
    ['a thrown null', 'throw null', 'code', /it threw null/],
  ])('%s', async (_, code, cause, words, options = {}) => {
    const run = await runSandboxed(code, options)
    expect(run.error).toMatch(words)
    expect(run.cause).toBe(cause)
    expect(run.stdout.length).toBeLessThanOrEqual(65_536 + 2)
  })
  test('cannot reach the network', async () => {
    let asked = 0
    const server = createServer((_, response) => (asked++, response.end())).listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
    for (const code of ['fetch(url)', 'new WebSocket(url)', 'new XMLHttpRequest().open("GET", url)', 'import(url)']) {
      expect((await runSandboxed(code, { globals: { url } })).cause, code).toBe('code')
    }
    server.close()
    expect(asked).toBe(0)
  })
  test('cannot change how its results are read, nor anything of ours', async () => {
    const tricks = `
      JSON.stringify = () => '[1]'; JSON.parse = () => 1; Reflect.apply = () => 1
      Array.prototype[Symbol.iterator] = null; String.prototype.concat = null; String = null
      Object.defineProperty(globalThis, 'console', { value: console, writable: false })
      Object.prototype.error = null; Function.prototype.call = () => 1`
    const { calls, stdout, error } = await runSandboxed(`${tricks}; console.log({ a: 1 }); x => [x]`, { calls: [[7]] })
    expect(error).toBeNull()
    expect(calls).toEqual([{ value: [7], error: null }])
    expect(stdout).toBe('{"a":1}\n')
    const { value } = await runSandboxed('({ ["__proto__"]: { polluted: 1 }, constructor: { prototype: { polluted: 1 } } })')
    expect(value).toBeTypeOf('object')
    expect(({} as { polluted?: number }).polluted).toBeUndefined()
  })
  test('leaves nothing to the next run', async () => {
    await runSandboxed('globalThis.left = 1; Array.prototype.left = 1; Math.max = () => 7')
    expect((await runSandboxed('[typeof left, [].left === undefined, Math.max(1, 2)]')).value).toEqual(['undefined', true, 2])
  })
})

test('time is the processor’s: beside others that take every core, code has its own', async () => {
  const busy = Array.from({ length: 3 * availableParallelism() }, () => new Worker('for (;;);', { eval: true }))
  await Promise.all(busy.map((worker) => once(worker, 'online')))
  try {
    const code = 'const begin = Date.now(); for (;;) if (Date.now() - begin > 1200) break; Date.now() - begin'
    const { value, error } = await runSandboxed(code, { seconds: 0.9 })
    expect(error).toBeNull()
    expect(value).toBeGreaterThan(1200)
  } finally {
    await Promise.all(busy.map((worker) => worker.terminate()))
  }
})

test('runs side by side, and an end from outside', async () => {
  const runs = await Promise.all(
    Array.from({ length: 12 }, (_, i) => runSandboxed(i % 3 ? `${i} * 2` : 'for (;;);', { seconds: 1 })),
  )
  runs.forEach((run, i) => expect(i % 3 ? run.value : run.cause).toBe(i % 3 ? i * 2 : 'time'))
  const controller = new AbortController()
  setTimeout(() => controller.abort(), 150)
  const ended = await runSandboxed('for (;;);', { seconds: 30, signal: controller.signal })
  expect(ended).toMatchObject({ cause: 'abort', error: 'it was aborted' })
  expect((await runSandboxed('6 * 7')).value).toBe(42)
})

test.each([Infinity, 30 * 24 * 3600])('a limit of %d s is none', async (seconds) => {
  expect(await runSandboxed('6 * 7', { seconds })).toMatchObject({ value: 42, error: null })
})

test('limits that are none are refused, a package that is missing is named', async () => {
  await expect(runSandboxed('1', { seconds: 0 })).rejects.toThrow('seconds is 0')
  await expect(runSandboxed('1', { memoryMb: 16 })).rejects.toThrow('memoryMb is 16')
  await expect(load('no-such-package', () => Promise.reject(new Error('Cannot find package')))).rejects.toThrow(
    'npm install no-such-package',
  )
})

test.each([
  ['sandbox', '../../src/environments/sandbox/index.ts', "(await runSandboxed('6 * 7')).value", 'runSandboxed'],
  [
    'comparison of answers',
    '../../src/environments/math/index.ts',
    "(await mathEqual('6 \\\\cdot 7', '42')).equal ? 42 : 0",
    'mathEqual',
  ],
])('an idle %s lets the process end', (_, path, expression, name) => {
  const index = new URL(path, import.meta.url).href
  const code = `import { ${name} } from ${JSON.stringify(index)}; console.log(${expression})`
  const { stdout, status } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
    encoding: 'utf8',
    timeout: 60_000,
  })
  expect({ stdout, status }).toEqual({ stdout: '42\n', status: 0 })
})

test.skipIf(isWindows)('code that cannot be interrupted ends with the process that started it', async () => {
  const index = new URL('../../src/environments/sandbox/index.ts', import.meta.url).href
  const code = `import { execFileSync } from 'node:child_process'; import { runSandboxed } from ${JSON.stringify(index)}
    void runSandboxed('/(a+)+$/.test("a".repeat(40) + "b")', { seconds: 60 })
    const lines = () => execFileSync('ps', ['-eo', 'ppid=,pid=,time=,args='], { encoding: 'utf8' }).split('\\n')
    const busy = () => lines().map((line) => line.trim().split(/\\s+/)).find(([parent, , time, ...words]) => Number(parent) === process.pid && words.join(' ').includes('worker.ts') && time >= '00:00:01')
    setInterval(() => { const child = busy(); if (child) { console.log(child[1]); process.exit() } }, 200)`
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8', timeout: 60_000 })
  const pid = Number(stdout)
  onTestFinished(() => void spawnSync('kill', ['-9', String(pid)]))
  expect(pid).toBeGreaterThan(0)
  const alive = () => /^[^Z]/u.test(spawnSync('ps', ['-o', 'stat=', '-p', String(pid)], { encoding: 'utf8' }).stdout)
  await vi.waitFor(() => expect(alive()).toBe(false), { timeout: 2000 })
})

describe.each(['thread', 'child'] as const)('workers: a %s', (as) => {
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-workers-'))
  afterAll(() => rmSync(folder, { recursive: true }))
  const serve = new URL('../../src/environments/sandbox/serve.ts', import.meta.url).href
  const script = (name: string, body: string) => {
    const file = join(folder, name)
    writeFileSync(file, body)
    return pathToFileURL(file)
  }
  const methods = `import { readFileSync } from 'node:fs'
    import { spawn } from 'node:child_process'
    import { serve } from ${JSON.stringify(serve)}
    serve({
      echo: (x) => x,
      die: () => process.exit(3),
      swell: () => { const a = []; for (;;) a.push(new Array(1e5).fill(1.5)) },
      hang: () => { for (;;); },
      read: (path) => readFileSync(path, 'utf8').length,
      spawn: () => spawn('true'),
      secrets: () => Object.keys(process.env),
    })`
  const start = (body: string, name: string) => {
    return new Workers({ script: script(name, body), as, heapMb: 64, readable: [folder] })
  }
  test('that dies, swells or hangs takes one call with it, and those that wait are run', async () => {
    const workers = start(methods, 'methods.mjs')
    const call = (method: string, seconds = 20) => workers.call(method, [7], { seconds }).catch((error: Error) => error.message)
    const results = await Promise.all(
      ['die', 'echo', 'swell', 'die', 'echo', 'die', 'echo']
        .map((method) => call(method))
        .concat(call('hang', 0.3), call('echo')),
    )
    expect(results).toEqual([
      expect.stringContaining('exit code 3'),
      7,
      'it needed more memory than its 64 MiB',
      expect.stringContaining('exit code 3'),
      7,
      expect.stringContaining('exit code 3'),
      7,
      'it took longer than its limit of 0.3 s',
      7,
    ])
    workers.close()
  })
  test('that cannot start says why, to all who wait', async () => {
    const workers = start('throw new Error("no luck")', 'broken.mjs')
    const calls = await Promise.allSettled([1, 2, 3].map(() => workers.call('echo', [], { seconds: 20 })))
    for (const call of calls)
      expect(call).toMatchObject({
        status: 'rejected',
        reason: expect.objectContaining({ message: expect.stringMatching(/could not be started|no luck/) }),
      })
  })
  test('knows none of our environment; a child opens no file and starts nothing', async () => {
    const workers = start(methods, 'methods.mjs')
    const call = (method: string, arg?: unknown) => workers.call(method, [arg], { seconds: 20 })
    vi.stubEnv('SOME_API_KEY', 'not for others')
    onTestFinished(() => void vi.unstubAllEnvs())
    const known = (await call('secrets')) as string[]
    expect(known).not.toContain('SOME_API_KEY')
    // Node gives each process of Windows these of its system.
    if (!isWindows) expect(known).not.toContain('PATH')
    if (as === 'child') {
      await expect(call('read', '/etc/passwd')).rejects.toThrow('restricted')
      await expect(call('read', join(tmpdir(), '..', 'etc', 'hosts'))).rejects.toThrow('restricted')
      await expect(call('spawn')).rejects.toThrow('restricted')
    }
    workers.close()
  })
})
