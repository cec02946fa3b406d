/** The project's folder in the user's cache. */
import { homedir } from 'node:os'
import { join } from 'node:path'

/** The user's cache, in which each program has its own folder. It need not be there. */
export const cacheRoot = (env: NodeJS.ProcessEnv = process.env): string => env.XDG_CACHE_HOME || join(homedir(), '.cache')

/** `~/.cache/dawn-rl`, or below XDG_CACHE_HOME. It need not be there. */
export const cacheFolder = (env: NodeJS.ProcessEnv = process.env): string => join(cacheRoot(env), 'dawn-rl')
