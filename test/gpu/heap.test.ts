import { spawnSync } from 'node:child_process'
import { expect, test } from 'vitest'

const module = new URL('../../src/gpu/heap.ts', import.meta.url).href

/** Bytes of the space for young objects after many of them, each alive for a while. */
function youngBytes(keeps: boolean, ...flags: string[]): number {
  const program = `
    import { getHeapSpaceStatistics } from 'node:v8'
    ${keeps ? `import { keepYoungSpace } from ${JSON.stringify(module)}; keepYoungSpace()` : ''}
    const alive = []
    for (let i = 0; i < 3e6; i++) alive[i % 3e5] = { i, text: String(i) }
    console.log(getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space').space_size)`
  const { stdout, stderr } = spawnSync(process.execPath, [...flags, '--input-type=module', '-e', program], { encoding: 'utf8' })
  expect(stderr).toBe('')
  return Number(stdout)
}

test('the space for young objects stays small, unless its size is given', () => {
  const small = youngBytes(true)
  expect(small).toBeGreaterThan(0)
  expect(youngBytes(false)).toBeGreaterThan(4 * small)
  expect(youngBytes(true, '--max-semi-space-size=32')).toBeGreaterThan(4 * small)
})

test('arrays that nobody holds are freed when all is collected, also where they are old', () => {
  const program = `
    import { setTimeout } from 'node:timers/promises'
    import { arrayBytes, collectAll, collectYoung } from ${JSON.stringify(module)}
    const before = arrayBytes()
    let held = new Uint8Array(2 ** 24)
    for (let i = 0; i < 3; i++) collectYoung()
    held = undefined
    collectYoung()
    const old = arrayBytes() - before
    collectAll()
    const isFree = () => arrayBytes() - before < 2 ** 20
    // V8 gives their memory back by a thread of its own, which beside other work comes later.
    for (let i = 0; i < 500 && !isFree(); i++) await setTimeout(10)
    console.log(old > 2 ** 23, isFree())`
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' })
  expect([stdout, stderr]).toEqual(['true true\n', ''])
})

test('young objects are collected when it is asked for, and nobody else is shown how', () => {
  const program = `
    import { getHeapSpaceStatistics } from 'node:v8'
    import { runInNewContext } from 'node:vm'
    import { collectYoung } from ${JSON.stringify(module)}
    const used = () => getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space').space_used_size
    collectYoung()
    const before = used()
    for (let i = 0; i < 1000; i++) String(i) + Math.random()
    const grown = used()
    collectYoung()
    console.log(grown > before, used() < grown, typeof gc, runInNewContext('typeof gc'))`
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' })
  expect([stdout, stderr]).toEqual(['true true undefined undefined\n', ''])
})
