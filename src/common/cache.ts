/** The project's folder in the user's cache. */
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'

/** The user's folder; that of temporary files where the system knows of none, as of a number without a name that a container runs under. */
export function home(): string {
  try {
    return homedir()
  } catch {
    return tmpdir()
  }
}

/** The user's cache, in which each program has its own folder. It need not be there. */
export const cacheRoot = (env: NodeJS.ProcessEnv = process.env): string => env.XDG_CACHE_HOME || join(home(), '.cache')

/** `~/.cache/dawn-rl`, or below XDG_CACHE_HOME. It need not be there. */
export const cacheFolder = (env: NodeJS.ProcessEnv = process.env): string => join(cacheRoot(env), 'dawn-rl')
