/**
 * Records which code a start of a run used, beside its log: `logs/attempt_N.versions.json`, and `logs/attempt_N.diff` with the uncommitted changes
 * in the working folder (environments, losses). The run does not wait for this, and goes on if it fails.
 */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { arch, platform, release } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { isCheckout, packageRoot } from '../common/commands.ts'
import { versionOf } from './version.ts'

/** A larger diff is cut: it holds data, not code. */
const diffAtMost = 1 << 20

/**
 * @param logPath `logs/attempt_N.log` of the run folder
 * @param adapter the name of the GPU's adapter
 */
export async function writeOrigin(logPath: string, adapter: string): Promise<void> {
  const [path, here] = [logPath.replace(/\.log$/, ''), resolve('.')]
  const known = {
    'dawn-rl': versionOf('dawn-rl'),
    'dawn-rl commit': isCheckout ? await git(packageRoot, ['rev-parse', 'HEAD']) : undefined,
    commit: here === packageRoot ? undefined : await git(here, ['rev-parse', 'HEAD']),
    node: process.version,
    webgpu: versionOf('webgpu'),
    adapter,
    os: `${platform()} ${release()} ${arch()}`,
    command: process.argv.slice(1).join(' '),
  }
  try {
    await writeFile(`${path}.versions.json`, `${JSON.stringify(known, null, 2)}\n`)
    const diff = await git(here, ['diff', 'HEAD', '--no-ext-diff', '--no-color', '--no-textconv'])
    if (diff) await writeFile(`${path}.diff`, `${diff.slice(0, diffAtMost)}\n`)
  } catch {
    // The folder is gone: a start that failed removes its new folder.
  }
}

/** The output of git; undefined without git, or outside a checkout. */
async function git(folder: string, words: string[]): Promise<string | undefined> {
  if (!isInCheckout(folder)) return undefined
  // git takes no lock, writes nothing and shows no prompt.
  const env = { ...process.env, GIT_OPTIONAL_LOCKS: '0', GIT_TERMINAL_PROMPT: '0' }
  return await new Promise((done) =>
    execFile('git', words, { cwd: folder, env, timeout: 5000, maxBuffer: 16 * diffAtMost }, (_, out) =>
      done(out.trim() || undefined),
    ),
  )
}

function isInCheckout(folder: string): boolean {
  for (let at = folder; ; at = dirname(at)) {
    if (existsSync(join(at, '.git'))) return true
    if (at === dirname(at)) return false
  }
}
