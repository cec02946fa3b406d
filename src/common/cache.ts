/** The project's cache folder, inside the user's. */
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'

/** The user's home folder. The folder for temporary files if there is none, as for a container's user id without a name. */
export function home(): string {
  try {
    return homedir()
  } catch {
    return tmpdir()
  }
}

/** The user's cache, in which each program has its own folder. It may not exist. */
export const cacheRoot = (env: NodeJS.ProcessEnv = process.env): string => env.XDG_CACHE_HOME || join(home(), '.cache')

/** `~/.cache/dawn-rl`, or the same folder below XDG_CACHE_HOME. It may not exist. */
export const cacheFolder = (env: NodeJS.ProcessEnv = process.env): string => join(cacheRoot(env), 'dawn-rl')
