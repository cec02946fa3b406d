/** A software driver of another vector width keeps what it compiles apart. */
import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { separateDriverCache } from '../../src/gpu/driver-cache.ts'
import { temporaryFolder } from '../monitor/helpers.ts'
import { isWindows } from '../windows.ts'

test.skipIf(isWindows)('processes of three widths, one after the other with one cache, read the same texels', () => {
  const child = fileURLToPath(new URL('fixtures/texture-lanes.ts', import.meta.url))
  const { MESA_SHADER_CACHE_DIR: _, MESA_SHADER_CACHE_DISABLE: __, LP_NATIVE_VECTOR_WIDTH: ___, ...env } = process.env
  const XDG_CACHE_HOME = temporaryFolder()
  let kernel = 0
  const read = (width?: string) => {
    const extra = width ? { LP_NATIVE_VECTOR_WIDTH: width } : {}
    const { stdout, stderr } = spawnSync(process.execPath, [child, String(kernel++)], {
      env: { ...env, XDG_CACHE_HOME, ...extra },
      encoding: 'utf8',
    })
    expect(stdout, stderr).toContain('wrong')
    return JSON.parse(stdout) as { name: string; lanes: number; wrong: number }
  }
  const seen = [read('128'), read(), read('512'), read('128'), read()]
  expect(seen.map(({ wrong }) => wrong)).toEqual([0, 0, 0, 0, 0])
  // On another adapter the variable says nothing.
  if (seen[0].name.startsWith('llvmpipe')) expect(seen.map(({ lanes }) => lanes)).toEqual([4, 8, 16, 4, 8])
})

test('the usual width keeps the usual cache; another one a folder in it, once; none where no folder can be made', () => {
  const set = (env: NodeJS.ProcessEnv, usual?: number) => {
    separateDriverCache(env, usual)
    return env
  }
  const home = temporaryFolder()
  for (const env of [{}, { LP_NATIVE_VECTOR_WIDTH: '256' }, { LP_NATIVE_VECTOR_WIDTH: 'wide' }])
    expect(set({ ...env })).toEqual(env)
  expect(set({ LP_NATIVE_VECTOR_WIDTH: '128' }, 128)).toEqual({ LP_NATIVE_VECTOR_WIDTH: '128' })
  const wide = { LP_NATIVE_VECTOR_WIDTH: '512', XDG_CACHE_HOME: home }
  const MESA_SHADER_CACHE_DIR = join(home, 'dawn-rl', 'lavapipe-512-bit')
  expect(set({ ...wide })).toEqual({ ...wide, MESA_SHADER_CACHE_DIR })
  expect(set(set({ ...wide }))).toEqual({ ...wide, MESA_SHADER_CACHE_DIR })
  const widened = { LP_NATIVE_VECTOR_WIDTH: '256', XDG_CACHE_HOME: home }
  expect(set({ ...widened }, 128).MESA_SHADER_CACHE_DIR).toBe(join(home, 'dawn-rl', 'lavapipe-256-bit'))
  expect(set({ ...wide, MESA_SHADER_CACHE_DIR: join(home, 'own') }).MESA_SHADER_CACHE_DIR).toBe(
    join(home, 'own', 'lavapipe-512-bit'),
  )
  const file = join(home, 'file')
  writeFileSync(file, '')
  const none = { LP_NATIVE_VECTOR_WIDTH: '128', MESA_SHADER_CACHE_DIR: file }
  expect(set({ ...none })).toEqual({ ...none, MESA_SHADER_CACHE_DISABLE: 'true' })
})
