/** The project's folder in the user's cache. */
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'

/** The user's home folder; the folder of temporary files where there is none, as for a container's user id without a name. */
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
