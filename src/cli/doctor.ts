/**
 * `doctor`: one block to paste into a bug report. Versions, the adapters and what they can do, what is missing, and the one
 * command that fixes it. Exit code 0 where training could run, else 2.
 * A child process lists the adapters, so that a driver that crashes or prints does not spoil the report.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { arch, cpus, freemem, release, totalmem } from 'node:os'
import { join, relative } from 'node:path'
import { Option, type Command } from 'commander'
import { isCheckout, packageRoot } from '../common/commands.ts'
import { cacheFault, isLavapipe } from '../gpu/driver-cache.ts'
import type { AdapterFacts } from '../gpu/inventory.ts'
import { messageOf } from '../common/errors.ts'
import { shellWord } from '../monitor/format.ts'
import { block, json } from './doctor-text.ts'
import { installedFolder, versionOf } from './version.ts'

const isWindows = process.platform === 'win32'

/** What installs the packages of a checkout. On Windows npm alone, which every shell there knows; the script needs a bash. */
const SETUP = isWindows ? 'npm ci' : 'bash scripts/setup.sh'

/** Everything that `doctor` found. */
export interface Report {
  dawnRl: string
  node: string
  /** The `webgpu` package, and why its binary does not load, where it does not. */
  webgpu: { version: string | undefined; problem: string | undefined }
  os: string
  kernel: string
  glibc: string | undefined
  cpu: string
  memoryGiB: { total: number; free: number }
  /** Environment variables that change which adapters are found. */
  environment: Record<string, string>
  adapters: AdapterFacts[]
  /** The name of the adapter that a run would take. */
  chosen: string | undefined
  /** What the driver and Dawn printed, where no adapter could be used. */
  driverWords: string[]
  problems: Problem[]
  usable: boolean
}

/** Something that is missing or wrong, and the command that fixes it. */
export interface Problem {
  what: string
  command: string
}

/** What the child process returns. */
interface Probe {
  adapters: AdapterFacts[]
  chosen?: string
  problem?: string
}

const marker = 'DAWN_RL_PROBE '

export function register(program: Command): void {
  program
    .command('doctor')
    .description('Print versions, adapters, what is missing and the command that fixes it: one block for a bug report.')
    .option('--json', 'the same as JSON')
    .addOption(new Option('--probe', 'list the adapters in this process, for doctor itself').hideHelp())
    .action(async (options: { json?: boolean; probe?: boolean }) => {
      if (options.probe) {
        console.log(marker + JSON.stringify(await probe()))
        return
      }
      const report = examine()
      console.log(options.json ? json(report) : block(report))
      process.exitCode = report.usable ? 0 : 2
    })
}

async function probe(): Promise<Probe> {
  let adapters: AdapterFacts[] = []
  try {
    const { listAdapters } = await import('../gpu/inventory.ts')
    adapters = await listAdapters()
    if (adapters.length === 0) return { adapters }
    const { openDevice } = await import('../gpu/adapter.ts')
    const { device, facts } = await openDevice()
    device.destroy()
    return { adapters, chosen: facts.name }
  } catch (error) {
    return { adapters, problem: messageOf(error).split('\n')[0] }
  }
}

/** Collects the report. Never throws for what it finds. */
function examine(): Report {
  const version = versionOf('webgpu')
  const { adapters, chosen, problem, driverWords } = probeInChild()
  const loads = !problem || adapters.length > 0
  const usable = chosen !== undefined
  return {
    dawnRl: `${versionOf('dawn-rl')} (${isCheckout ? `checkout${commit()}` : 'npm package'})`,
    node: `${process.versions.node} (${process.platform} ${arch()})`,
    webgpu: { version, problem: loads ? undefined : problem },
    os: osName(),
    kernel: `${process.platform} ${release()}`,
    glibc: (process.report.getReport() as { header: { glibcVersionRuntime?: string } }).header.glibcVersionRuntime,
    cpu: `${cpus().length} x ${cpus()[0]?.model.trim() ?? 'unknown'}`,
    memoryGiB: { total: gib(totalmem()), free: gib(freemem()) },
    environment: Object.fromEntries(
      Object.entries(process.env)
        .filter(([name]) => /^(DAWN_RL_|VK_|LIBGL_|MESA_|LP_|GALLIVM_|CUDA_VISIBLE)/.test(name))
        // Bug reports are public.
        .map(([name, value]) => [name, name.endsWith('_KEY') ? '(set)' : value]),
    ) as Record<string, string>,
    adapters,
    chosen,
    driverWords: usable ? [] : driverWords,
    problems: problemsOf(adapters, chosen, problem),
    usable,
  }
}

function probeInChild(): Probe & { driverWords: string[] } {
  const child = spawnSync(process.execPath, [...process.execArgv, join(packageRoot, 'cli.js'), 'doctor', '--probe'], {
    encoding: 'utf8',
    timeout: 60_000,
  })
  const lines = `${child.stdout}\n${child.stderr}`.split('\n')
  const answer = lines.find((line) => line.startsWith(marker))
  const driverWords = [
    ...new Set(lines.filter((line) => line.trim() && !line.startsWith(marker) && !/artificially reduced/.test(line))),
  ]
  if (answer) return { ...(JSON.parse(answer.slice(marker.length)) as Probe), driverWords }
  const how = child.signal ? `ended by ${child.signal}` : `exit code ${child.status}`
  return {
    adapters: [],
    problem: `listing the adapters failed (${how}${child.error ? `, ${child.error.message}` : ''})`,
    driverWords,
  }
}

function problemsOf(adapters: AdapterFacts[], chosen: string | undefined, problem: string | undefined): Problem[] {
  const problems: Problem[] = []
  const backend = process.env.DAWN_RL_BACKEND
  if (!installedFolder('webgpu')) {
    problems.push({ what: 'the npm packages are not installed', command: isCheckout ? SETUP : 'npm install' })
  } else if (adapters.length === 0 && backend) {
    problems.push({
      what: problem ?? `no WebGPU adapter through ${backend}, which DAWN_RL_BACKEND asks for`,
      command: unset('DAWN_RL_BACKEND'),
    })
  } else if (adapters.length === 0 && problem) {
    problems.push({ what: `WebGPU does not work here: ${problem}`, command: reinstall() })
  } else if (adapters.length === 0) {
    const hidden = ['VK_DRIVER_FILES', 'VK_ICD_FILENAMES'].find((name) => process.env[name])
    if (hidden)
      problems.push({ what: `no WebGPU adapter, and ${hidden} restricts which drivers are found`, command: unset(hidden) })
    else
      problems.push({
        what: 'no WebGPU adapter: neither a Vulkan driver for a GPU nor a software driver',
        command: driverCommand(),
      })
  } else if (!chosen) {
    const name = process.env.DAWN_RL_ADAPTER
    if (name)
      problems.push({
        what: `the adapter that DAWN_RL_ADAPTER=${name} asks for cannot be opened: ${problem}`,
        command: unset('DAWN_RL_ADAPTER'),
      })
    else problems.push({ what: `no adapter could be opened: ${problem}`, command: driverCommand() })
  } else if (isLavapipe(chosen)) {
    const fault = cacheFault()
    const what = 'the cache of compiled kernels, without which every start compiles them again, for up to a minute'
    if (fault && 'variable' in fault)
      problems.push({ what: `${what}: ${fault.variable} turns it off`, command: unset(fault.variable) })
    else if (fault)
      problems.push({
        what: `${what}: its folder cannot be written`,
        command: isWindows
          ? 'set the environment variable XDG_CACHE_HOME to a folder that can be written'
          : 'export XDG_CACHE_HOME=<a folder that can be written>',
      })
  }
  if (isCheckout && !existsSync(join(packageRoot, 'models/SmolLM2-135M-Instruct.Q4_1.gguf'))) {
    problems.push({
      what: 'the model of configs/quickstart.toml is not downloaded yet (98 MB)',
      command: 'bash scripts/get-smollm2.sh',
    })
  }
  return problems
}

/** On Windows in words, as cmd and PowerShell have no common command for it. */
const unset = (variable: string) => (isWindows ? `remove the environment variable ${variable}` : `unset ${variable}`)

function reinstall(): string {
  // npm ci removes node_modules first.
  return isCheckout ? (isWindows ? SETUP : `rm -rf node_modules && ${SETUP}`) : `npm install webgpu@${versionOf('webgpu')}`
}

/** The command that installs a software Vulkan driver, or the page to read where no script can. */
function driverCommand(): string {
  if (process.platform !== 'linux') return 'update the graphics driver'
  const script = relative(process.cwd(), join(packageRoot, 'scripts/setup.sh'))
  return `${process.getuid?.() === 0 ? '' : 'sudo '}bash ${shellWord(script)} --driver`
}

function commit(): string {
  const git = spawnSync('git', ['-C', packageRoot, 'describe', '--always', '--dirty'], { encoding: 'utf8' })
  return git.status === 0 ? ` ${git.stdout.trim()}` : ''
}

function osName(): string {
  if (existsSync('/etc/os-release'))
    return /^PRETTY_NAME="?([^"\n]*)/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1] ?? 'Linux'
  if (process.platform !== 'darwin') return process.platform
  return `macOS ${spawnSync('sw_vers', ['-productVersion'], { encoding: 'utf8' }).stdout.trim()}`
}

function gib(bytes: number): number {
  return Math.round((bytes / 2 ** 30) * 10) / 10
}
