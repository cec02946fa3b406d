/**
 * The npm package, as someone gets it: packed from a copy of this checkout, installed by npm into an empty project, run from there.
 * No network: the packages that it depends on are laid down beforehand, those of the lock file that are not for development, and npm
 * is told to stay offline; so a dependency that package.json forgets is a failure here.
 */
import { spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const work = mkdtempSync(join(tmpdir(), 'dawn-rl-pack-'))
const project = join(work, 'project')
const installed = join(project, 'node_modules/dawn-rl')
const env = { ...process.env, PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}`, CI: undefined }
let contents: string[] = []

function run(folder: string, command: string, words: string[]) {
  const result = spawnSync(command, words, { cwd: folder, encoding: 'utf8', env })
  return { code: result.status, out: result.stdout, err: result.stderr }
}

/** Every package of the lock file that users get, without the WebGPU binaries of other platforms. */
function layDownDependencies(): void {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, { dev?: boolean }>
  }
  for (const [path, { dev }] of Object.entries(lock.packages)) {
    if (path === '' || dev || !existsSync(join(root, path)) || existsSync(join(project, path))) continue
    const foreign = (source: string): boolean =>
      /^node_modules\/webgpu\/dist\/./.test(relative(root, source)) && !source.includes(`${process.platform}-`)
    cpSync(join(root, path), join(project, path), { recursive: true, filter: (source) => !foreign(source) })
  }
}

beforeAll(() => {
  const copy = join(work, 'checkout')
  const leftOut = /^(node_modules|\.git|\.node|dist|outputs|\.venv.*|models\/(?!tiny).+|.*\.tgz)$/
  cpSync(root, copy, { recursive: true, filter: (source) => !leftOut.test(relative(root, source)) })
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  const pack = run(copy, 'npm', ['pack', '--json', '--loglevel=error', '--pack-destination', work])
  expect(pack.code, pack.err).toBe(0)
  const [{ filename, files }] = packed(pack.out)
  contents = files.map((file) => file.path)
  expect(readdirSync(copy)).toContain('dist')

  mkdirSync(project)
  writeFileSync(join(project, 'package.json'), '{ "name": "someone", "private": true }')
  layDownDependencies()
  const install = run(project, 'npm', [
    'install',
    '--offline',
    // Offline npm drops those that it has no copy of, although they lie there.
    '--omit=optional',
    '--no-audit',
    '--no-fund',
    '--loglevel=error',
    join(work, filename),
  ])
  expect(install.code, install.err).toBe(0)
  layDownDependencies()
}, 180_000)
afterAll(() => rmSync(work, { recursive: true, force: true }))

/** npm 10 and 11 give a list, npm 12 an object by name; a script's own words may come first. */
function packed(out: string): { filename: string; files: { path: string }[] }[] {
  const answer = JSON.parse(out.slice(out.search(/^[[{]/m))) as object
  return Object.values(answer) as { filename: string; files: { path: string }[] }[]
}

describe('the npm package', () => {
  it('holds the JavaScript, the kernels and what a run needs, and nothing else', () => {
    expect(contents).toEqual(
      expect.arrayContaining(['cli.js', 'train.js', 'LICENSE', '.node-version', 'dist/cli/main.js', 'scripts/setup.sh']),
    )
    const kernels = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.wgsl'))
    expect(contents).toEqual(expect.arrayContaining(kernels.map((file) => `dist/${file}`)))
    const page = readdirSync(join(root, 'src/monitor/view/page')).filter((file) => /\.(?:html|css|js)$/.test(file))
    expect(contents).toEqual(expect.arrayContaining(page.map((file) => `dist/monitor/view/page/${file}`)))
    const bundled = readdirSync(join(root, 'environments')).filter((file) => file.endsWith('.ts'))
    expect(contents).toEqual(expect.arrayContaining(bundled.map((file) => `environments/${file.replace('.ts', '.js')}`)))
    expect(contents.filter((file) => /^(src|test|bench|node_modules)\/|\.gguf$/.test(file))).toEqual([])
  })

  it('runs dawn-rl doctor where it is installed', () => {
    const doctor = run(project, join(project, 'node_modules/.bin/dawn-rl'), ['doctor', '--json'])
    expect(doctor.err).toBe('')
    expect(doctor.code).toBe(0)
    const report = JSON.parse(doctor.out) as { dawnRl: string; usable: boolean; problems: unknown[] }
    expect(report).toMatchObject({ dawnRl: expect.stringContaining('npm package'), usable: true, problems: [] })
  })

  it('prints commands that work where it is installed, with the configs and the model copied as README says', () => {
    for (const name of ['configs', 'models']) cpSync(join(installed, name), join(project, name), { recursive: true })
    const dawn = (...words: string[]) => run(project, join(project, 'node_modules/.bin/dawn-rl'), words)
    expect(dawn('env', 'new', 'mine').out).toContain('npx dawn-rl env check ./mine.ts')
    expect(dawn('train').err).toContain('`npx dawn-rl train @ configs/quickstart.toml`')
    const wish = dawn('eval', 'nowhere', '-m', 'models/tiny').err
    expect(wish).toContain("'bash node_modules/dawn-rl/scripts/setup-verifiers.sh'")
    expect(existsSync(join(project, 'node_modules/dawn-rl/scripts/setup-verifiers.sh'))).toBe(true)
    for (const config of ['tiny', 'tiny-turns', 'custom-loss']) {
      const { code, err } = dawn('train', '@', `configs/${config}.toml`, '--model', 'models/tiny', '--dry-run')
      expect(code, err).toBe(0)
    }
    for (const file of readdirSync(join(project, 'configs/environments'))) {
      const { out, err } = dawn('env', 'check', `./configs/environments/${file}`)
      expect(out, err).toContain('What answers earn')
    }
  })

  it('loads every module that it ships', () => {
    // Those of the viewer's page are for browsers.
    const isOurs = (file: string) => /^(dist|environments)\/.*\.js$/.test(file) && !file.startsWith('dist/monitor/view/page/')
    const modules = contents.filter((file) => isOurs(file) && file !== 'dist/cli/main.js')
    expect(modules.length).toBeGreaterThan(10)
    const code = `for (const file of ${JSON.stringify(modules)}) await import('./node_modules/dawn-rl/' + file); process.exit(0)`
    expect(run(project, process.execPath, ['--input-type=module', '-e', code])).toMatchObject({ code: 0, err: '' })
  })

  it('shows runs with the page and the libraries that it came with', () => {
    mkdirSync(join(project, 'outputs'))
    const code = `
      const { startView } = await import('./node_modules/dawn-rl/dist/monitor/view/server.js')
      const view = await startView({ outputs: 'outputs' })
      const ask = (path) => fetch(view.origin + path, { headers: { authorization: 'Bearer ' + view.key } })
      const html = await (await ask('/')).text()
      const paths = ['/', ...[...html.matchAll(/(?:src|href)="\\.?([^"]+)"|"(\\/vendor[^"]+)"/g)].map(([, a, b]) => a ?? b)]
      for (const path of paths) console.log(path, (await ask(path)).status)
      process.exit(0)`
    const { out, err } = run(project, process.execPath, ['--input-type=module', '-e', code])
    const lines = out.trimEnd().split('\n')
    expect(err).toBe('')
    expect(lines.length).toBeGreaterThan(6)
    expect(lines.filter((line) => !line.endsWith(' 200'))).toEqual([])
  })

  it('gives environments of others what they import', () => {
    const code = "import * as api from 'dawn-rl/environments'; console.log(Object.keys(api).length > 3); process.exit(0)"
    expect(run(project, process.execPath, ['--input-type=module', '-e', code])).toEqual({ code: 0, out: 'true\n', err: '' })
    expect(existsSync(join(installed, 'dist/environments/index.d.ts'))).toBe(true)
  })
})
