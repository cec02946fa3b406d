/** The project's folder in the user's cache. */
import { homedir } from 'node:os'
import { join } from 'node:path'

/** `~/.cache/dawn-rl`, or below XDG_CACHE_HOME. It need not be there. */
export const cacheFolder = (env: NodeJS.ProcessEnv = process.env): string =>
  join(env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'dawn-rl')
