#!/usr/bin/env node
/**
 * Starts the command line (src/cli/main.ts; in the npm package dist/cli/main.js) in a Node that can run it.
 * - Plain JavaScript for Node 20 and newer, without a package: it has to run where nothing is set up yet, and then says what to do.
 * - A Node older than 24 hands over to the pinned one (`.node-version`, fetched by scripts/setup.sh into .node/).
 * - Every signal reaches the program once. A terminal's Ctrl-C goes to this process and to the child alike, `kill PID` to this one
 *   only, and a process cannot tell which it was: so signals are told to the child over a channel, and the child raises one in itself
 *   unless it has just had the same signal directly.
 * - The exit code, or the signal that ended the child, becomes ours; when this process is killed, the child ends too.
 */
import { spawn } from 'node:child_process'
import { existsSync, readFileSync, realpathSync } from 'node:fs'
import * as modules from 'node:module'
import { constants, homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const oldestMajor = 24
const relayed = ['SIGINT', 'SIGTERM', 'SIGHUP']
/** A direct signal answers one relayed signal, if that comes within these milliseconds: the launcher may be slow on a busy machine. */
const sameSignal = 5000

const here = realpathSync(fileURLToPath(import.meta.url))
const root = dirname(here)
// There the scripts need a bash that not everybody has.
const isWindows = process.platform === 'win32'
const isCheckout = existsSync(join(root, 'src/cli/main.ts'))

if (majorOf(process.versions.node) >= oldestMajor) await run()
else handOver()

/** The command line itself, in this process. */
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
 * Node keeps what it made of our modules in the user's cache, `~/.cache/dawn-rl/modules`: a command of a checkout then starts in a third of the time, and without
 * the compiler that takes the types out, which is 30 MB in memory. Not a word where that folder cannot be written: then each start does it anew.
 * NODE_COMPILE_CACHE names another folder, NODE_DISABLE_COMPILE_CACHE=1 none.
 */
function keepCode() {
  try {
    // The folder of src/common/cache.ts, whose loading would be the first that is not kept.
    modules.enableCompileCache?.(join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dawn-rl', 'modules'))
  } catch {
    // A user without a home.
  }
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
      // A child that does not answer has not started listening yet, or hangs: then the plain signal must do.
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

/** The child's half of the relay. Leaves no trace where no launcher started this process. */
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
      // Nobody in the program listens: what the signal does by default.
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

/** The pinned Node, or one that npm has put beside this package; undefined where there is none that is new enough. */
function newerNode() {
  const pinned = join(root, '.node-version')
  // As npm's packages of Node are named.
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
