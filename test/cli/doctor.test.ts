/** The command line's frame and `doctor`, as a user runs them. */
import { spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import type { Report } from '../../src/cli/doctor.ts'
import { listAdapters } from '../../src/gpu/inventory.ts'
import { fusesMultiplyAdd } from '../../src/gpu/vector-width.ts'
import { isWindows } from '../windows.ts'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const noDriver = { VK_DRIVER_FILES: '/nonexistent', VK_ICD_FILENAMES: undefined }

function cli(words: string[], env: Record<string, string | undefined> = {}) {
  const result = spawnSync(process.execPath, [join(root, 'cli.js'), ...words], {
    encoding: 'utf8',
    env: { ...process.env, ...env },
  })
  return { code: result.status, out: result.stdout, err: result.stderr }
}

describe('doctor', () => {
  it('prints one clean block with versions and the adapter a run takes', () => {
    const { code, out, err } = cli(['doctor'])
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toMatch(/^--- dawn-rl doctor ---\n/)
    expect(out).toMatch(/\n--- end ---\n$/)
    for (const name of ['dawn-rl', 'node', 'webgpu', 'system', 'cpu', 'memory', 'adapters', 'missing']) {
      expect(out).toMatch(new RegExp(`^${name} +\\S`, 'm'))
    }
    expect(out).toContain(process.versions.node)
    expect(out).toContain('maxStorageBufferBindingSize')
    expect(out).not.toContain('Warning')
  })

  it('gives the same as JSON, with all limits and features', () => {
    const { code, out } = cli(['doctor', '--json'])
    expect(code).toBe(0)
    const report = JSON.parse(out) as Report
    expect(report.usable).toBe(true)
    expect(report.adapters.length).toBeGreaterThan(0)
    const [adapter] = report.adapters
    expect(report.adapters.map((a) => a.description)).toContain(report.chosen)
    expect(adapter.problem).toBeUndefined()
    expect(adapter.limits.maxBufferSize).toBeGreaterThan(2 ** 27)
    expect(adapter.f16).toBe(adapter.features.includes('shader-f16'))
    expect(report.problems.map((p) => p.what).join()).not.toContain('adapter')
  })

  it.runIf(process.platform === 'linux')('says why there is no adapter, gives one command, and exits with 2', () => {
    const { code, out, err } = cli(['doctor'], { ...noDriver, DAWN_RL_API_KEY: 'not for others' })
    expect({ code, err }).toEqual({ code: 2, err: '' })
    expect(out).toContain('DAWN_RL_API_KEY=(set)')
    expect(out).not.toContain('not for others')
    expect(out).toMatch(/^adapters +none$/m)
    expect(out).toContain('VK_DRIVER_FILES=/nonexistent')
    expect(out).toMatch(/^ +driver said: .*driver/im)
    expect(out).toMatch(/^fix with +unset VK_DRIVER_FILES$/m)
    const report = JSON.parse(cli(['doctor', '--json'], noDriver).out) as Report
    expect(report).toMatchObject({ usable: false, adapters: [] })
  })

  it('says that a newer Mesa is faster where its software driver is an older one', async () => {
    const old = (await listAdapters()).filter(
      ({ description }) => /\bMesa \d/.test(description) && !fusesMultiplyAdd(description),
    )
    const { out } = cli(['doctor'])
    expect(out.match(/^ +faster +with Mesa 26 or newer/gm) ?? []).toHaveLength(old.filter((a) => a.software).length)
  })

  it('says where the driver keeps nothing of what it compiles', async () => {
    if (!(await listAdapters()).every(({ name }) => name.startsWith('llvmpipe'))) return
    const { code, out } = cli(['doctor'], { MESA_SHADER_CACHE_DISABLE: 'true' })
    expect(code).toBe(0)
    expect(out).toMatch(/^missing +the cache of compiled kernels, .+: MESA_SHADER_CACHE_DISABLE turns it off$/m)
    expect(out).toMatch(/^fix with +(?:unset|remove the environment variable) MESA_SHADER_CACHE_DISABLE$/m)
    const file = join(mkdtempSync(join(tmpdir(), 'dawn-rl-doctor-')), 'file')
    writeFileSync(file, '')
    for (const folder of [file, ...(existsSync('/proc/self') ? ['/proc/nothing'] : [])]) {
      expect(cli(['doctor'], { MESA_SHADER_CACHE_DIR: undefined, XDG_CACHE_HOME: folder }).out).toMatch(
        /^missing +.+: its folder cannot be written$/m,
      )
    }
    rmSync(dirname(file), { recursive: true })
  })

  it('says that the adapter asked for is not there', () => {
    const { code, out } = cli(['doctor'], { DAWN_RL_ADAPTER: 'no such adapter' })
    expect(code).toBe(2)
    expect(out).toMatch(/^missing +the adapter that DAWN_RL_ADAPTER=no such adapter asks for/m)
    expect(out).toMatch(
      isWindows ? /^fix with +remove the environment variable DAWN_RL_ADAPTER$/m : /^fix with +unset DAWN_RL_ADAPTER$/m,
    )
  })
})

describe('doctor on a broken installation', () => {
  const copy = mkdtempSync(join(tmpdir(), 'dawn-rl-doctor-'))
  afterAll(() => rmSync(copy, { recursive: true, force: true }))

  it("says that WebGPU's binary does not load, and why", () => {
    for (const name of ['cli.js', 'package.json', 'src']) cpSync(join(root, name), join(copy, name), { recursive: true })
    mkdirSync(join(copy, 'node_modules'))
    for (const name of readdirSync(join(root, 'node_modules')).filter((entry) => entry !== 'webgpu' && !entry.startsWith('.'))) {
      // On Windows anybody may make one of this kind.
      symlinkSync(join(root, 'node_modules', name), join(copy, 'node_modules', name), 'junction')
    }
    const platform = `${process.platform}-${process.platform === 'darwin' ? 'universal' : process.arch}`
    const webgpu = join(copy, 'node_modules/webgpu')
    mkdirSync(join(webgpu, 'dist', platform), { recursive: true })
    for (const name of ['package.json', 'index.js']) cpSync(join(root, 'node_modules/webgpu', name), join(webgpu, name))
    writeFileSync(join(webgpu, 'dist', platform, 'dawn.node'), 'cut off')
    const doctor = spawnSync(process.execPath, [join(copy, 'cli.js'), 'doctor'], { encoding: 'utf8' })
    expect({ code: doctor.status, err: doctor.stderr }).toEqual({ code: 2, err: '' })
    expect(doctor.stdout).toMatch(/^webgpu +\d\S+, does not load: .*dawn\.node/m)
    expect(doctor.stdout).toMatch(
      isWindows ? /^fix with +npm ci$/m : /^fix with +rm -rf node_modules && bash scripts\/setup\.sh$/m,
    )
  })
})

describe('the inventory', () => {
  it('lists each adapter once, by the name that DAWN_RL_ADAPTER takes', async () => {
    const list = await listAdapters()
    const names = list.map((a) => `${a.backend} ${a.name}`)
    expect(new Set(names).size).toBe(names.length)
    for (const { name } of list) {
      const report = JSON.parse(cli(['doctor', '--json'], { DAWN_RL_ADAPTER: name }).out) as Report
      expect(report.chosen).toBe(list.find((a) => a.name === name)?.description)
    }
  })
})

describe('the frame', () => {
  it('exits with 2 on words it does not know, and says which was meant', () => {
    const { code, out, err } = cli(['doktor'])
    expect({ code, out }).toEqual({ code: 2, out: '' })
    expect(err).toContain("unknown command 'doktor'")
    expect(err).toContain('doctor?')
    expect(cli(['doctor', '--jsn'])).toMatchObject({ code: 2 })
  })

  it.skipIf(process.platform === 'win32')('says so where the working folder was deleted', () => {
    const command = `folder=$(mktemp -d); cd "$folder"; rmdir "$folder"; exec '${process.execPath}' '${join(root, 'cli.js')}' train @ x.toml`
    const { status, stderr } = spawnSync('bash', ['-c', command], { encoding: 'utf8' })
    expect({ status, stderr }).toEqual({
      status: 2,
      stderr: 'The working folder of this command was deleted. Change to another one (cd) and start again.\n',
    })
  })

  it('prints version and help with exit code 0', () => {
    expect(cli(['--version'])).toMatchObject({ code: 0, out: expect.stringMatching(/^\d+\.\d+\.\d+\n$/) })
    const help = cli(['--help'])
    expect(help.code).toBe(0)
    expect(help.out).toContain('doctor')
  })

  it.runIf(process.platform === 'linux')('ends, and says why, where the disk of its output is full', () => {
    for (const [to, stderr] of [
      ['>/dev/full', 'ENOSPC'],
      ['>/dev/full 2>&1', ''],
    ]) {
      const command = `'${process.execPath}' '${join(root, 'cli.js')}' --help ${to}`
      const result = spawnSync('bash', ['-c', command], { encoding: 'utf8', timeout: 30_000, killSignal: 'SIGKILL' })
      expect(result).toMatchObject({ status: 1, stderr: expect.stringContaining(stderr) as string })
    }
  })

  it('measures nothing that --out has no place for', () => {
    const { code, out, err } = cli(['bench', 'norm', '--quick', '--out', tmpdir()])
    expect({ code, out }).toEqual({ code: 2, out: '' })
    expect(err).toMatch(/^--out .* cannot be written: it is a folder\. Name another file\.\n$/)
  })

  it('replaces the file of --out whole: the report before it stays until the new one is on the disk', () => {
    const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-bench-'))
    const [out, before] = ['bench.json', 'before.json'].map((name) => join(dir, name))
    writeFileSync(out, 'the report before')
    // The same file under a second name: what is written in place would be seen there.
    linkSync(out, before)
    const { code, err } = cli(['bench', 'norm', '--quick', '--rows', '1', '--repeats', '1', '--out', out])
    expect(code, err).toBe(0)
    expect(JSON.parse(readFileSync(out, 'utf8'))).toMatchObject({ bench: 'dawn-rl' })
    expect(readFileSync(before, 'utf8')).toBe('the report before')
    expect(readdirSync(dir).toSorted()).toEqual(['before.json', 'bench.json'])
    rmSync(dir, { recursive: true })
  })

  it.skipIf(!existsSync('/dev/full'))('names the file of --out that could not be written after all', () => {
    const { code, out, err } = cli(['bench', 'decode', '--quick', '--model', 'tiny', '--matrix-units', '--out', '/dev/full'])
    expect(out.trimEnd().split('\n').at(-1)).toMatch(/^\{"bench":"dawn-rl".*\}$/)
    expect(err).toMatch(/^--out \/dev\/full cannot be written: ENOSPC.* Name another place, or make room there\.$/m)
    expect(code).toBe(2)
  })

  it.skipIf(isWindows)('ends quietly when nobody reads on', () => {
    const result = spawnSync(
      'bash',
      ['-c', `'${process.execPath}' '${join(root, 'cli.js')}' doctor --json | head -1; exit \${PIPESTATUS[0]}`],
      { encoding: 'utf8' },
    )
    expect(result.stderr).toBe('')
    expect(result.stdout).toBe('{\n')
    expect(result.status).toBe(0)
  })
})
