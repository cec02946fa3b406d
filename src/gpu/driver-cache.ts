/**
 * A software driver's shader cache: whether it works, and separate folders for other vector widths.
 *
 * Lavapipe stores compiled code in Mesa's cache under a key that does not include its vector width (Mesa 25.0: `LP_NATIVE_VECTOR_WIDTH`, usually 256
 * bits by default). A process with another width would get that code, and a call from one to the other would pass only half of a vector: texture
 * reads silently returned 0 in the upper lanes (bench/LOG.md). So each other width gets a folder of its own.
 */
import { accessSync, constants } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder, cacheRoot } from '../common/cache.ts'
import { makeFolder } from '../common/folders.ts'
import { usualBits } from './vector-width.ts'

/**
 * If LP_NATIVE_VECTOR_WIDTH is not the driver's default width, sets MESA_SHADER_CACHE_DIR, or MESA_SHADER_CACHE_DISABLE if that folder cannot be
 * created. Must be called before the driver is loaded; a second call changes nothing.
 * @param usual for tests: the driver's default width
 */
export function separateDriverCache(env: NodeJS.ProcessEnv = process.env, usual: number = usualBits()): void {
  const bits = Number(env.LP_NATIVE_VECTOR_WIDTH ?? usual)
  if (!Number.isInteger(bits) || bits === usual) return
  const own = `lavapipe-${bits}-bit`
  const base = env.MESA_SHADER_CACHE_DIR || cacheFolder(env)
  if (base.endsWith(own)) return
  const folder = join(base, own)
  try {
    makeFolder(folder)
    env.MESA_SHADER_CACHE_DIR = folder
  } catch {
    env.MESA_SHADER_CACHE_DISABLE = 'true'
  }
}

/** Whether an adapter with this name is lavapipe, which compiles a kernel at its first use and keeps the code in Mesa's cache. */
export const isLavapipe = (adapter: string): boolean => /llvmpipe/i.test(adapter)

/**
 * Why Mesa's cache stores nothing, so that every process compiles every kernel: the variable that disables it, or a folder that cannot be written.
 * Undefined if the cache works.
 */
export function cacheFault(env: NodeJS.ProcessEnv = process.env): { variable: string } | { folder: string } | undefined {
  // Mesa reads the second variable only if the first is not set.
  const variable = ['MESA_SHADER_CACHE_DISABLE', 'MESA_GLSL_CACHE_DISABLE'].find((name) => env[name] !== undefined)
  if (variable && /^(1|true|yes)$/i.test(env[variable]!)) return { variable }
  const folder = env.MESA_SHADER_CACHE_DIR || cacheRoot(env)
  try {
    makeFolder(folder)
    accessSync(folder, constants.W_OK)
    return undefined
  } catch {
    return { folder }
  }
}
