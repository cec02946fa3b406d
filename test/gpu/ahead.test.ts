/** Helpers compile what a process of an empty shader cache needs, and keep away where an earlier process has done so. */
import { spawnSync } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, test } from 'vitest'
import { compileAhead, helpersFor, type Unmade } from '../../src/gpu/ahead.ts'
import { temporaryFolder } from '../monitor/helpers.ts'

const llvmpipe = 'llvmpipe: Mesa 25.0.7 (LLVM 15.0.6)'

interface Seen {
  name: string
  before: Record<string, number>
  after: Record<string, number>
  value: number
}

test("a plan's kernels are compiled beside the device, once for a cache", () => {
  const child = fileURLToPath(new URL('fixtures/ahead.ts', import.meta.url))
  const { MESA_SHADER_CACHE_DIR: _, MESA_SHADER_CACHE_DISABLE: __, ...env } = process.env
  const XDG_CACHE_HOME = temporaryFolder()
  const run = (more: NodeJS.ProcessEnv = {}): Seen => {
    const { stdout, stderr } = spawnSync(process.execPath, [child], {
      env: { ...env, XDG_CACHE_HOME, ...more },
      encoding: 'utf8',
    })
    expect(stdout, stderr).toContain('value')
    return JSON.parse(stdout) as Seen
  }
  const helper = 'dawn-rl, beside'
  const [cold, warm] = [run(), run()]
  for (const seen of [cold, warm]) {
    expect(seen).toMatchObject({ value: 2560 })
    // Nothing is made later than makeRoom, nor twice.
    expect(seen.after).toEqual(seen.before)
    expect(seen.before['dawn-rl']).toBe(cold.before['dawn-rl'])
  }
  expect(cold.before['dawn-rl']).toBeGreaterThanOrEqual(5)
  if (helpersFor(cold.name) === 0) return expect(cold.before[helper]).toBeUndefined()
  expect(cold.before[helper]).toBe(cold.before['dawn-rl'])
  // Two are tried: they are in the cache, so the others are, too. On a machine that is busy one of them may seem not to be.
  expect([2, warm.before['dawn-rl']]).toContain(warm.before[helper])
  // Parameters of an adapter without immediates lie in a uniform.
  const uniform = run({ DAWN_RL_IMMEDIATES: '0', XDG_CACHE_HOME: temporaryFolder() })
  expect(uniform).toMatchObject({ value: 2560, before: { [helper]: cold.before['dawn-rl'] } })
})

test('helpers are for a driver that compiles late, and keeps what it compiled', () => {
  const cores = availableParallelism()
  const folder = temporaryFolder()
  const file = join(folder, 'file')
  writeFileSync(file, '')
  expect(helpersFor(llvmpipe, { XDG_CACHE_HOME: folder })).toBe(cores > 1 ? Math.min(4, cores) : 0)
  expect(helpersFor('NVIDIA H200', { XDG_CACHE_HOME: folder })).toBe(0)
  expect(helpersFor(llvmpipe, { XDG_CACHE_HOME: folder, MESA_SHADER_CACHE_DISABLE: 'true' })).toBe(0)
  expect(helpersFor(llvmpipe, { MESA_SHADER_CACHE_DIR: join(file, 'below') })).toBe(0)
})

test('where no helper can be opened, or there is little to compile, all is left to the first use', async () => {
  let made = 0
  const kernel: Unmade = {
    make: () => {
      throw new Error('no device')
    },
    bindings: [],
    immediateBytes: 0,
    length: 1,
    makeHere: () => made++,
  }
  let opened = 0
  const open = (): Promise<GPUDevice> => {
    opened++
    return Promise.reject(new Error('the device limit is reached'))
  }
  await compileAhead([kernel, kernel, kernel], 2, open)
  expect(opened).toBe(0)
  await compileAhead(
    Array.from({ length: 6 }, () => kernel),
    2,
    open,
  )
  expect([opened, made]).toEqual([3, 0])
})
