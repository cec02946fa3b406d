/**
 * The cache of a software driver: whether it keeps what it compiled, and a cache of its own for another width of vectors.
 *
 * Lavapipe keeps what it compiled in Mesa's cache under a key that leaves out how wide its vectors are (Mesa 25.0: `LP_NATIVE_VECTOR_WIDTH`, mostly
 * 256 bits where nobody says otherwise). A process of another width is given that code, and a call from one to the other hands over half of a vector: reads of textures
 * came back as 0 in the upper lanes, silently (bench/LOG.md). So each other width gets a folder of its own.
 */
import { accessSync, constants, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder, cacheRoot } from '../common/cache.ts'
import { usualBits } from './vector-width.ts'

/**
 * Sets MESA_SHADER_CACHE_DIR, or where that folder cannot be made MESA_SHADER_CACHE_DISABLE, when LP_NATIVE_VECTOR_WIDTH names another width. To be called
 * before the driver is loaded; a second call changes nothing.
 * @param usual for tests: the width that the driver takes by itself
 */
export function separateDriverCache(env: NodeJS.ProcessEnv = process.env, usual: number = usualBits()): void {
  const bits = Number(env.LP_NATIVE_VECTOR_WIDTH ?? usual)
  if (!Number.isInteger(bits) || bits === usual) return
  const own = `lavapipe-${bits}-bit`
  const base = env.MESA_SHADER_CACHE_DIR || cacheFolder(env)
  if (base.endsWith(own)) return
  const folder = join(base, own)
  try {
    mkdirSync(folder, { recursive: true })
    env.MESA_SHADER_CACHE_DIR = folder
  } catch {
    env.MESA_SHADER_CACHE_DISABLE = 'true'
  }
}

/** Whether an adapter of this name is lavapipe, which makes machine code at a kernel's first use and keeps it in Mesa's cache. */
export const isLavapipe = (adapter: string): boolean => /llvmpipe/i.test(adapter)

/** Why Mesa's cache keeps nothing, so that every process compiles every kernel: the variable that turns it off, or a folder that cannot be written. Undefined where it works. */
export function cacheFault(env: NodeJS.ProcessEnv = process.env): { variable: string } | { folder: string } | undefined {
  // The second is read where the first is not set.
  const variable = ['MESA_SHADER_CACHE_DISABLE', 'MESA_GLSL_CACHE_DISABLE'].find((name) => env[name] !== undefined)
  if (variable && /^(1|true|yes)$/i.test(env[variable]!)) return { variable }
  const folder = env.MESA_SHADER_CACHE_DIR || cacheRoot(env)
  try {
    mkdirSync(folder, { recursive: true })
    accessSync(folder, constants.W_OK)
    return undefined
  } catch {
    return { folder }
  }
}
