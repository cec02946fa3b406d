#!/usr/bin/env node
/**
 * Starts the command line (src/cli/main.ts; in the npm package dist/cli/main.js) in a version of Node that can run it.
 * - It is plain JavaScript for Node 20 and newer without dependencies, as it has to run where nothing is set up yet, and then says what to do.
 * - A Node older than 24 hands over to the pinned version (`.node-version`, installed by scripts/setup.sh into .node/), which it starts as a child
 *   process.
 * - Every signal reaches the program exactly once. Ctrl-C in a terminal goes both to this process and to the child, `kill PID` only to this one, and
 *   a process cannot tell which of them it was. So signals are relayed to the child over a channel, and the child raises a relayed signal in itself
 *   unless it has just received the same signal directly.
 * - The exit code of the child, or the signal that ended it, becomes our own. If this process is killed, the child ends too.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, realpathSync } from 'node:fs'
import * as modules from 'node:module'
import { constants, homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const oldestMajor = 24
const relayed = ['SIGINT', 'SIGTERM', 'SIGHUP']
/** A direct signal cancels one relayed signal that comes within these milliseconds. The launcher may be slow on a busy machine. */
const sameSignal = 5000

const here = realpathSync(fileURLToPath(import.meta.url))
const root = dirname(here)
// On Windows the scripts would need bash, which not everybody has.
const isWindows = process.platform === 'win32'
const isCheckout = existsSync(join(root, 'src/cli/main.ts'))

if (majorOf(process.versions.node) >= oldestMajor) await run()
else handOver()

/** Runs the command line itself in this process. */
async function run() {
  listenToLauncher()
  keepCode()
  try {
    for (const name of ['commander', 'webgpu']) import.meta.resolve(name)
  } catch {
    stop(
      `dawn-rl's npm packages are not installed. ${isCheckout ? `Run '${isWindows ? 'npm ci' : 'bash scripts/setup.sh'}'.` : "Run 'npm install' where dawn-rl is installed."}`,
    )
  }
  await import(pathToFileURL(join(root, isCheckout ? 'src/cli/main.ts' : 'dist/cli/main.js')).href)
}

/**
 * Makes Node cache the compiled modules in the user's cache, `~/.cache/dawn-rl/modules`. Commands of a checkout then start in a third of the time,
 * and without the compiler that strips types, which takes 30 MB of memory. If the folder cannot be written, nothing is reported and each start
 * compiles again. NODE_COMPILE_CACHE names another folder, NODE_DISABLE_COMPILE_CACHE=1 turns the cache off.
 */
function keepCode() {
  try {
    if (modules.getCompileCacheDir?.() || process.env.NODE_DISABLE_COMPILE_CACHE === '1') return
    // The folder of src/common/cache.ts, which is not imported because it would be loaded before the cache is on.
    const folder = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dawn-rl', 'modules')
    makeFolder(resolve(folder))
    modules.enableCompileCache?.(folder)
  } catch {
    // The user has no home folder, or it cannot be written.
  }
}

/** As in src/common/folders.ts: Node itself would try forever if a file system answers that the folder does not exist, as /proc does. */
function makeFolder(path) {
  if (existsSync(path)) return
  makeFolder(dirname(path))
  mkdirSync(path)
}

function handOver() {
  const node = newerNode()
  if (!node) {
    const script = isWindows ? 'install it from https://nodejs.org' : "run 'bash scripts/setup.sh', which fetches it"
    const mend = isCheckout ? script : "install it, or run 'npm install node@24' where dawn-rl is installed"
    stop(`dawn-rl needs Node ${oldestMajor} or newer, and this is Node ${process.versions.node}: ${mend}.`)
  }
  const child = spawn(node, [...process.execArgv, here, ...process.argv.slice(2)], {
    stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
    env: { ...process.env, DAWN_RL_LAUNCHER: String(process.pid) },
  })
  let unheard
  for (const signal of relayed) {
    process.on(signal, () => {
      // A child that does not confirm the signal has not started listening yet, or hangs. It then gets the plain signal.
      if (child.connected) child.send({ signal }, () => {})
      clearTimeout(unheard)
      unheard = setTimeout(() => child.kill(signal), 1000)
    })
  }
  child.on('message', (message) => message?.heard && clearTimeout(unheard))
  child.on('error', (error) => stop(`${node} could not be started: ${error.message}.`))
  child.on('exit', (code, signal) => {
    clearTimeout(unheard)
    if (signal && relayed.includes(signal)) {
      process.removeAllListeners(signal)
      process.kill(process.pid, signal)
    } else {
      process.exit(signal ? 128 + constants.signals[signal] : code)
    }
  })
}

/** The child's side of the relay. Does nothing if this process was not started by a launcher. */
function listenToLauncher() {
  const launcher = process.env.DAWN_RL_LAUNCHER
  delete process.env.DAWN_RL_LAUNCHER
  if (launcher !== String(process.ppid) || !process.channel) return
  const direct = Object.fromEntries(relayed.map((signal) => [signal, []]))
  let raising
  for (const signal of relayed) {
    const note = () => {
      if (raising !== signal) direct[signal].push(performance.now())
      raising = undefined
      if (process.listenerCount(signal) > 1) return
      // Nobody in the program listens, so the signal has its default effect.
      process.off(signal, note)
      process.kill(process.pid, signal)
    }
    process.on(signal, note)
  }
  process.on('message', (message) => {
    const signal = message?.signal
    if (!relayed.includes(signal)) return
    process.send({ heard: signal }, () => {})
    const told = performance.now()
    // A direct signal that came at the same time may be handled just after this message.
    setTimeout(() => {
      direct[signal] = direct[signal].filter((time) => time > told - sameSignal)
      if (direct[signal].shift() !== undefined) return
      raising = signal
      process.kill(process.pid, signal)
    }, 100)
  })
  process.on('disconnect', () => process.kill(process.pid, 'SIGTERM'))
  process.channel.unref()
}

/** The pinned Node, or one that npm has installed next to this package. Undefined if neither is new enough. */
function newerNode() {
  const pinned = join(root, '.node-version')
  // The naming scheme of npm's packages of Node.
  const system = isWindows ? 'win' : process.platform
  const folders = existsSync(pinned) ? [join(root, '.node', readFileSync(pinned, 'utf8').trim())] : []
  for (let folder = root; ; folder = dirname(folder)) {
    for (const name of ['node', `node-${system}-${process.arch}`]) folders.push(join(folder, 'node_modules', name))
    if (folder === dirname(folder)) break
  }
  for (const folder of folders) {
    const binary = join(folder, 'bin', isWindows ? 'node.exe' : 'node')
    if (existsSync(binary) && majorOf(JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')).version) >= oldestMajor)
      return binary
  }
  return undefined
}

function majorOf(version) {
  return Number.parseInt(version, 10)
}

function stop(sentence) {
  console.error(sentence)
  process.exit(2)
}
