/**
 * cli.js handing over from an old Node, with a program of the test's own behind it. Needs a Node older than 24 on the machine (CI's
 * system Node is one); the cases that need none run everywhere.
 */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { isWindows } from '../windows.ts'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const oldNode = [...(process.env.PATH ?? '').split(delimiter), '/usr/bin']
  .map((folder) => join(folder, 'node'))
  .find((node) => existsSync(node) && majorOf(node) >= 20 && majorOf(node) < 24)
const hasScript = spawnSync('script', ['--version']).status === 0
if (!oldNode) console.log('no Node 20 to 23 on this machine: handing over from one is not tried')

/** Says each signal that it gets; 'count N' ends after N milliseconds, 'wait' never. */
const program = `
const [verb, ...words] = process.argv.slice(2)
if (verb === 'exit') process.exit(Number(words[0]))
if (verb === 'crash') process.kill(process.pid, 'SIGKILL')
if (verb === 'words' || verb === 'train') { console.log(JSON.stringify({ node: process.versions.node, verb, words, env: process.env.DAWN_RL_LAUNCHER ?? null })); process.exit(0) }
let count = 0
if (verb === 'count') for (const s of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(s, () => console.log('got ' + s + ' ' + ++count))
console.log('ready ' + process.pid)
if (verb === 'count') setTimeout(() => { console.log('end ' + count); process.exit(7) }, Number(words[0]))
else setInterval(() => {}, 1000)
`
/** For --import: a Node that takes its system for another. */
const platform = (name: string) => `data:text/javascript,Object.defineProperty(process, 'platform', { value: '${name}' })`
const folders: string[] = []
afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })))

/** A checkout with the real launchers and the program above as its command line. */
function checkout({ packages = true, node = true } = {}): string {
  const made = realpathSync(mkdtempSync(join(tmpdir(), 'dawn-rl-launch-')))
  folders.push(made)
  for (const file of ['cli.js', 'train.js', '.node-version']) cpSync(join(root, file), join(made, file))
  writeFileSync(join(made, 'package.json'), '{ "type": "module" }')
  mkdirSync(join(made, 'src/cli'), { recursive: true })
  writeFileSync(join(made, 'src/cli/main.ts'), program)
  for (const name of packages ? ['commander', 'webgpu'] : []) {
    mkdirSync(join(made, 'node_modules', name), { recursive: true })
    writeFileSync(join(made, 'node_modules', name, 'index.js'), '')
    writeFileSync(join(made, 'node_modules', name, 'package.json'), JSON.stringify({ name, exports: './index.js' }))
  }
  if (node && !isWindows) {
    const pinned = join(made, '.node', readFileSync(join(root, '.node-version'), 'utf8').trim())
    mkdirSync(join(pinned, 'bin'), { recursive: true })
    symlinkSync(process.execPath, join(pinned, 'bin/node'))
    writeFileSync(join(pinned, 'package.json'), JSON.stringify({ version: process.versions.node }))
  }
  return made
}

function majorOf(node: string): number {
  return Number(spawnSync(node, ['-p', 'process.versions.node.split(".")[0]'], { encoding: 'utf8' }).stdout)
}

/** Starts, waits for the program's 'ready', and collects what it prints. */
async function start(
  node: string,
  words: string[],
): Promise<{ process: ChildProcess; pid: number; out: () => string; ended: Promise<[number | null, string | null]> }> {
  const child = spawn(node, words, { stdio: ['pipe', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (more: string) => (text += more))
  const ended = new Promise<[number | null, string | null]>((done) => child.on('close', (code, signal) => done([code, signal])))
  for (let i = 0; i < 400 && !text.includes('ready'); i++) await sleep(25)
  return { process: child, pid: Number(/ready (\d+)/.exec(text)?.[1]), out: () => text, ended }
}

describe.runIf(oldNode)('handing over from an old Node', () => {
  const old = oldNode ?? ''

  it('runs the pinned Node with the same words, and train.js is cli.js train', () => {
    const made = checkout()
    const words = ['@', 'a.toml', '--trainer.args.learning_rate', '1e-4', '', 'two words']
    const answer = (file: string, ...more: string[]): unknown =>
      JSON.parse(spawnSync(old, [join(made, file), ...more, ...words], { encoding: 'utf8' }).stdout)
    expect(answer('cli.js', 'words')).toEqual({ node: process.versions.node, verb: 'words', words, env: null })
    expect(answer('train.js')).toEqual({ node: process.versions.node, verb: 'train', words, env: null })
  })

  it("runs a Node of npm's, which names Windows in its own way", () => {
    const made = checkout({ node: false })
    const npms = join(made, 'node_modules', `node-win-${process.arch}`)
    mkdirSync(join(npms, 'bin'), { recursive: true })
    symlinkSync(process.execPath, join(npms, 'bin/node.exe'))
    writeFileSync(join(npms, 'package.json'), JSON.stringify({ version: process.versions.node }))
    const { stdout } = spawnSync(old, ['--import', platform('win32'), join(made, 'cli.js'), 'words'], { encoding: 'utf8' })
    expect(JSON.parse(stdout)).toMatchObject({ node: process.versions.node, verb: 'words' })
  })

  it('passes the exit code on, and a death by signal as 128 + its number', () => {
    const made = checkout()
    expect(spawnSync(old, [join(made, 'cli.js'), 'exit', '0']).status).toBe(0)
    expect(spawnSync(old, [join(made, 'cli.js'), 'exit', '2']).status).toBe(2)
    expect(spawnSync(old, [join(made, 'cli.js'), 'crash']).status).toBe(137)
  })

  it('says in one sentence what to do where there is no newer Node', () => {
    const run = spawnSync(old, [join(checkout({ node: false, packages: false }), 'train.js'), '@', 'a.toml'], {
      encoding: 'utf8',
    })
    expect(run.status).toBe(2)
    expect(run.stderr).toMatch(
      /^dawn-rl needs Node 24 or newer, and this is Node \d[^\n]*: run 'bash scripts\/setup\.sh'[^\n]*\n$/,
    )
  })

  it('gives each signal of `kill PID` to the program once, also in a row', async () => {
    const run = await start(old, [join(checkout(), 'cli.js'), 'count', '2500'])
    for (const signal of ['SIGINT', 'SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      run.process.kill(signal)
      await sleep(300)
    }
    expect(await run.ended).toEqual([7, null])
    expect(run.out().match(/got \w+/g)).toEqual(['got SIGINT', 'got SIGINT', 'got SIGTERM', 'got SIGHUP'])
  })

  it('gives a signal that both processes get (as from a terminal, or `timeout`) to the program once', async () => {
    const run = await start(old, [join(checkout(), 'cli.js'), 'count', '1500'])
    process.kill(run.pid, 'SIGINT')
    run.process.kill('SIGINT')
    expect(await run.ended).toEqual([7, null])
    expect(run.out()).toContain('end 1\n')
  })

  it.runIf(hasScript)("gives a terminal's Ctrl-C to the program once, and a second one as a second", async () => {
    // exec: a shell that stays in between would be ended by the signal itself (dash does, bash does not stay)
    const command = `exec '${old}' '${join(checkout(), 'cli.js')}' count 3000`
    const run = await start('script', ['-qefc', command, '/dev/null'])
    run.process.stdin?.write('\x03')
    await sleep(800)
    run.process.stdin?.write('\x03')
    expect(await run.ended).toEqual([7, null])
    expect(run.out().match(/got \w+ \d/g)).toEqual(['got SIGINT 1', 'got SIGINT 2'])
  })

  it('dies of the same signal where the program does not listen', async () => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
      const run = await start(old, [join(checkout(), 'cli.js'), 'wait'])
      run.process.kill(signal)
      expect(await run.ended).toEqual([null, signal])
      expect(isAlive(run.pid)).toBe(false)
    }
  })

  it('leaves no program behind when it is killed itself', async () => {
    const run = await start(old, [join(checkout(), 'cli.js'), 'wait'])
    run.process.kill('SIGKILL')
    for (let i = 0; i < 200 && isAlive(run.pid); i++) await sleep(25)
    expect(isAlive(run.pid)).toBe(false)
  })
})

describe('the right Node', () => {
  it('runs the program in its own process', async () => {
    const run = await start(process.execPath, [join(checkout(), 'cli.js'), 'count', '400'])
    expect(run.pid).toBe(run.process.pid)
    expect(await run.ended).toEqual([7, null])
  })

  it("keeps what Node made of our modules in the user's cache, and says nothing where it cannot", () => {
    const made = checkout()
    const home = mkdtempSync(join(tmpdir(), 'dawn-rl-launch-'))
    folders.push(home)
    const main = pathToFileURL(join(made, 'src/cli/main.ts')).href
    const run = (cache: string) => {
      const { NODE_COMPILE_CACHE: _, ...env } = process.env
      return spawnSync(process.execPath, [join(made, 'cli.js'), 'exit', '5'], {
        encoding: 'utf8',
        env: { ...env, XDG_CACHE_HOME: cache, NODE_DEBUG_NATIVE: 'COMPILE_CACHE' },
      })
    }
    // Node's own words on what it looked up: JavaScript without types that it need not make again.
    const known = `retrieving transpile cache for StrippedTypeScript ${main}...success`
    const first = run(home)
    expect(first.status).toBe(5)
    expect(first.stderr).not.toContain(known)
    expect(readdirSync(join(home, 'dawn-rl/modules'))).toHaveLength(1)
    expect(run(home).stderr).toContain(known)

    writeFileSync(join(home, 'file'), '')
    // In /proc, Node's own creation of a folder would never end.
    for (const folder of [join(home, 'file'), ...(existsSync('/proc/self') ? ['/proc/nothing'] : [])]) {
      const without = spawnSync(process.execPath, [join(made, 'cli.js'), 'exit', '5'], {
        encoding: 'utf8',
        timeout: 10_000,
        env: { ...process.env, NODE_COMPILE_CACHE: '', XDG_CACHE_HOME: folder },
      })
      expect(without).toMatchObject({ status: 5, stderr: '' })
    }
  })

  it.each([
    ['linux', 'bash scripts/setup.sh'],
    ['win32', 'npm ci'],
  ])('says in one sentence that the packages are missing, on %s', (name, command) => {
    const words = ['--import', platform(name), join(checkout({ packages: false }), 'train.js'), '@', 'a.toml']
    const run = spawnSync(process.execPath, words, { encoding: 'utf8' })
    expect(run.status).toBe(2)
    expect(run.stderr).toBe(`dawn-rl's npm packages are not installed. Run '${command}'.\n`)
  })
})

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
