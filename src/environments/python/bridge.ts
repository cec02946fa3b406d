/** Starts bridge.py, the Python side of the bridge, with one of its three commands: find, describe, serve. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { existsSync } from 'node:fs'
import { basename, delimiter, dirname, join, resolve } from 'node:path'
import type { Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { SCRIPTS } from '../../common/commands.ts'
import { UserError } from '../../common/errors.ts'
import { exactJson } from '../tables.ts'
import type { Description, PythonRow } from './types.ts'
import { messagesOf } from './types.ts'

/** Which environment to load, and how. */
export interface PythonWish {
  /** As in the config: a module's name (with '-' or '_'), 'org/name', or a file that ends in .py. */
  id: string
  args: Record<string, unknown>
  /** Attributes that are set on the environment after it was created (verifiers' extra_env_kwargs). */
  kwargs: Record<string, unknown>
  /** The Python executable, which has verifiers installed. */
  python: string
  /** Folder that relative paths start from. */
  base: string
}

const script = fileURLToPath(new URL('bridge.py', import.meta.url))
const root = fileURLToPath(new URL('../../../', import.meta.url))
/** The folder of the bundled Python environments. */
const bundled = join(root, 'environments', 'python')
/** Time limit in seconds for loading an environment, which may download its dataset. */
const DESCRIBE_SECONDS = 1800
/** Milliseconds after a child's exit during which its remaining output is read. */
const LAST_WORDS_MS = 1000
const SETUP = `bash ${SCRIPTS}/setup-verifiers.sh`

/** The Python executable of `python_path`, or by default that of scripts/setup-verifiers.sh. Undefined if it does not exist. */
export function pythonOf(python: boolean | string | undefined, base: string): string | undefined {
  if (typeof python === 'string') return python.includes('/') ? resolve(base, python) : python
  const here = [base, root].map((folder) => join(folder, '.venv-verifiers', 'bin', 'python'))
  return here.find((file) => existsSync(file))
}

/**
 * Like `pythonOf`, but throws if there is no Python.
 * @throws UserError with the command that installs it. Also on Windows, where processes have no process groups and folders no sockets, which
 * bridge.py and verifiers need
 */
export function needPython(id: string, python: boolean | string | undefined, base: string): string {
  if (process.platform === 'win32')
    throw new UserError(
      `environment ${id} is written in Python, and such environments need Linux or macOS. On Windows, run dawn-rl in WSL.`,
    )
  const found = pythonOf(python, base)
  const missing = found === undefined || (found.includes('/') && !existsSync(found))
  if (!missing) return found
  const what = typeof python === 'string' ? `there is no ${found}` : 'there is no .venv-verifiers'
  throw new UserError(
    `environment ${id} is written in Python, but ${what}. Run '${SETUP}', or set python_path to a Python interpreter that has verifiers (0.1.14 to 0.3.0, or 0.4.0 for a taskset).`,
  )
}

/** A command to bridge.py. */
type Command = PythonWish & { do: 'describe' | 'serve' } & Record<string, unknown>

/** Starts bridge.py with its first command. It exits when its standard input is closed. */
export function startBridge(command: Command, stdio: { stdout: 'pipe' | number; stderr: 'pipe' | number }): ChildProcess {
  const { python, base, id } = command
  const place = moduleOf(id, base)
  const child = spawn(python, ['-u', script], {
    cwd: place.cwd,
    stdio: ['pipe', stdio.stdout, stdio.stderr],
    // A process group of its own, so that its workers and the processes that environments start end with it.
    detached: true,
    env: place.env,
  })
  // The child may exit before the pipe is written to.
  child.stdin!.on('error', () => {})
  tellBridge(child, command)
  return child
}

/** Sends a command: one line of bridge.py's standard input. */
function tellBridge(child: ChildProcess, command: Command): void {
  const { python: _, base, id, ...rest } = command
  child.stdin!.write(JSON.stringify({ ...rest, id: moduleOf(id, base).name }) + '\n')
}

/** Gives a process that waits after `describe` its next command. False if it has exited meanwhile. */
export function wakeBridge(child: ChildProcess, command: Command): boolean {
  if (child.exitCode !== null || child.signalCode !== null) return false
  child.ref()
  ;(child.stdin as Socket).ref()
  tellBridge(child, command)
  return true
}

/** Kills a child with its whole process group. */
export function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // Already gone.
  }
}

/** Whether the Python of scripts/setup-verifiers.sh exists and has a module of this name. Imports nothing. */
export function pythonKnows(id: string, base: string): boolean {
  const python = /^[\w/-]+$/u.test(id) ? pythonOf(undefined, base) : undefined
  if (python === undefined) return false
  const { name, cwd, env } = moduleOf(id, base)
  const input = JSON.stringify({ do: 'find', id: name }) + '\n'
  const { stdout, error } = spawnSync(python, [script], { input, cwd, env, encoding: 'utf8', timeout: 60_000 })
  // A Python that cannot be started gives no output: the answer is no.
  return error === undefined && stdout.includes('"found": true')
}

/** The name of the module behind an id, and where Python looks for it. */
function moduleOf(id: string, base: string): { name: string; cwd: string; env: NodeJS.ProcessEnv } {
  const cwd = resolve(base)
  const isFile = id.endsWith('.py')
  const name = isFile ? basename(id, '.py') : id
  const module = name.split('/').at(-1)!.replaceAll('-', '_')
  const own = isFile ? [dirname(resolve(base, id))] : [cwd, join(cwd, 'environments', module)]
  return { name, cwd, env: { ...process.env, DAWN_RL_PYTHON_FOLDERS: [...own, bundled].join(delimiter) } }
}

/** What `describe` returns. */
export interface Described extends Description {
  rows: PythonRow[]
  /**
   * A process that has imported verifiers, and waits for the command to serve (`wakeBridge`) or to be killed. It does not keep this process running, and
   * exits with it. On macOS there is none.
   */
  waiting?: ChildProcess
}

/**
 * Loads the environment in a short-lived process, and returns its description and rows.
 * @throws UserError for an id that Python does not know, an environment that raises, and an unsupported version of verifiers
 */
export async function describe(wish: PythonWish): Promise<Described> {
  let about: Description | undefined
  const rows: PythonRow[] = []
  const waiting = await ask({ ...wish, do: 'describe' }, DESCRIBE_SECONDS, (line) => {
    if (about) rows.push(rowOf(wish.id, line, rows.length))
    else about = line as unknown as Description
  })
  return { ...about!, rows, waiting }
}

function rowOf(id: string, line: Record<string, unknown>, index: number): PythonRow {
  const { prompt, answer, info, example_id } = line.row as Record<string, unknown>
  try {
    return {
      exampleId: typeof example_id === 'number' ? example_id : index,
      prompt: messagesOf(prompt, 'its prompt'),
      answer: answer === null || answer === undefined ? '' : typeof answer === 'string' ? answer : JSON.stringify(answer),
      info: infoOf(info),
      packed: Buffer.from(line.packed as string, 'base64'),
    }
  } catch (error) {
    throw new UserError(`environment ${id}: row ${index} can't be trained on: ${(error as Error).message}.`)
  }
}

function infoOf(info: unknown): Record<string, unknown> {
  const value: unknown = typeof info === 'string' ? attempt(info) : info
  return value !== null && typeof value === 'object' && !Array.isArray(value) ? (value as Record<string, unknown>) : {}
}

function attempt(text: string): unknown {
  try {
    return exactJson(text)
  } catch {
    return undefined
  }
}

/** Runs a command that reports its end, and yields its output line by line. Returns the process if it waits for the next one. */
async function ask(
  wish: Command,
  seconds: number,
  onLine: (line: Record<string, unknown>) => void,
): Promise<ChildProcess | undefined> {
  const child = startBridge(wish, { stdout: 'pipe', stderr: 'pipe' })
  // What it has forked, in groups of their own, ends when standard input is closed.
  const kill = () => {
    killGroup(child)
    child.stdin!.destroy()
  }
  // The child must not be left behind if this process exits meanwhile.
  process.once('exit', kill)
  let late = false
  const timer = setTimeout(() => {
    late = true
    kill()
  }, seconds * 1000)
  let said = ''
  child.stderr!.on('data', (data: Buffer) => (said = (said + data.toString()).slice(-4000)))
  // Processes that the environment started may keep standard error open, and are not killed if they have a process group of their own.
  child.once('exit', () => {
    kill()
    setTimeout(() => child.stderr!.destroy(), LAST_WORDS_MS).unref()
  })
  const ended = new Promise<string>((resolved, reject) => {
    child.once('error', reject)
    child.once('close', (code, by) => resolved(by ? `was killed by ${by}` : code === 0 ? '' : `ended with exit code ${code}`))
  })
  ended.catch(() => {})
  let failed: { failed: string; message: string } | undefined
  let [done, waits] = [false, false]
  try {
    for await (const text of createInterface({ input: child.stdout!, crlfDelay: Infinity })) {
      const line = exactJson(text) as Record<string, unknown>
      if (typeof line.failed === 'string') failed = line as { failed: string; message: string }
      else if (line.done === true) [done, waits] = [true, line.waits === true]
      else onLine(line)
      if (waits) break
    }
    if (waits && !late) {
      letWait(child)
      return child
    }
    const how = await ended.catch((error: Error) => {
      throw new UserError(`environment ${wish.id}: ${wish.python} can't be started (${error.message}). Run '${SETUP}'.`)
    })
    if (late) throw new UserError(`environment ${wish.id}: Python did not load it within ${seconds} s.`)
    if (failed) throw new UserError(sentence(wish.id, failed))
    if (how) {
      const last = said.trimEnd().split('\n').at(-1)
      throw new UserError(`environment ${wish.id}: Python ${how}. Its last output: ${last || 'none'}`)
    }
    if (!done) throw new UserError(`environment ${wish.id}: Python exited before it had described the whole environment.`)
    return undefined
  } finally {
    clearTimeout(timer)
    process.off('exit', kill)
    if (!waits || late) kill()
  }
}

/** So that this process can exit while the child waits. */
function letWait(child: ChildProcess): void {
  child.stdout!.destroy()
  child.stderr!.destroy()
  ;(child.stdin as Socket).unref()
  child.unref()
}

function sentence(id: string, { failed, message }: { failed: string; message: string }): string {
  if (failed === 'missing')
    return `environment ${id}: ${message}. Run '${SETUP}', or set python_path to a Python interpreter that has it.`
  if (failed === 'version')
    return `environment ${id}: ${message}, but environments made by load_environment need 0.1.14 to 0.3.0. Run '${SETUP}', which installs 0.3.0, or '${SETUP} v1', which installs 0.4.0 for tasksets.`
  if (failed === 'unknown')
    return `environment ${id}: ${message}. Install its package (${SETUP} PACKAGE), or give a file: id = "./my_env.py".`
  return `environment ${id}: ${message}.`
}
