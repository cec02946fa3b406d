/** Which processes and machines get vectors of 512 bits, and what a software driver says of itself. */
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { expect, onTestFinished, test } from 'vitest'
import {
  broadcastsMemory,
  cpuKind,
  firstCacheBytes,
  fusesMultiplyAdd,
  vectorRegisters,
  widenVectors,
} from '../../src/gpu/vector-width.ts'
import { isWindows } from '../windows.ts'

const avx512 = 'avx2 avx512f avx512dq avx512cd avx512bw avx512vl'
const cpuinfo = (vendor: string, family: number, flags: string): string =>
  `processor\t: 0\nvendor_id\t: ${vendor}\ncpu family\t: ${family}\nmodel name\t: a CPU\nflags\t\t: fpu avx ${flags}\n\nprocessor\t: 1\nvendor_id\t: ${vendor}\n`

function widthOf(text: string, { env = {}, files = [] as string[], wanted = true } = {}): string | undefined {
  const set: NodeJS.ProcessEnv = { ...env }
  widenVectors(wanted, set, { cpuinfo: text, exists: (path) => files.includes(path) })
  return set.LP_NATIVE_VECTOR_WIDTH
}

test('registers are 16 on x86 without AVX-512VL, else 32', () => {
  expect(vectorRegisters(cpuinfo('AuthenticAMD', 25, 'avx2 fma'))).toBe(16)
  expect(vectorRegisters(cpuinfo('GenuineIntel', 6, avx512))).toBe(32)
  expect(vectorRegisters('processor\t: 0\nFeatures\t: fp asimd\n')).toBe(32)
  expect(vectorRegisters('')).toBe(32)
})

test('operations that take one value of memory for all lanes are AVX-512', () => {
  expect(broadcastsMemory(cpuinfo('GenuineIntel', 6, avx512))).toBe(true)
  for (const other of [cpuinfo('AuthenticAMD', 25, 'avx2 fma'), 'processor\t: 0\nFeatures\t: fp asimd\n', '']) {
    expect(broadcastsMemory(other)).toBe(false)
  }
})

test('the kinds of CPU: a Zen 4 by its family and its vectors of 512 bits', () => {
  expect(cpuKind(cpuinfo('AuthenticAMD', 25, avx512))).toBe('zen4')
  // Zen 3 and Zen 5
  expect(cpuKind(cpuinfo('AuthenticAMD', 25, 'avx2 fma'))).toBe('amd')
  expect(cpuKind(cpuinfo('AuthenticAMD', 26, avx512))).toBe('amd')
  expect(cpuKind(cpuinfo('GenuineIntel', 25, avx512))).toBe('other')
  expect(cpuKind('')).toBe('other')
})

test("bytes of a core's first cache, as Linux tells", () => {
  const cachesOf = (...caches: [level: string, type: string, size: string][]): string => {
    const folder = mkdtempSync(join(tmpdir(), 'caches-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    caches.forEach(([level, type, size], i) => {
      mkdirSync(join(folder, `index${i}`))
      for (const [name, value] of Object.entries({ level, type, size }))
        writeFileSync(join(folder, `index${i}`, name), `${value}\n`)
    })
    return folder
  }
  expect(firstCacheBytes(cachesOf(['1', 'Data', '48K'], ['1', 'Instruction', '32K'], ['2', 'Unified', '2048K']))).toBe(48 * 1024)
  expect(firstCacheBytes(cachesOf(['1', 'Instruction', '64K'], ['1', 'Data', '128K']))).toBe(128 * 1024)
  expect(firstCacheBytes(cachesOf())).toBe(32 * 1024)
  expect(firstCacheBytes(cachesOf(['1', 'Data', 'unknown']))).toBe(32 * 1024)
})

test('CPUs that gain by 512 bits are asked for them, others are not', () => {
  expect(widthOf(cpuinfo('AuthenticAMD', 26, avx512))).toBe('512')
  expect(widthOf(cpuinfo('GenuineIntel', 6, `${avx512} amx_tile`))).toBe('512')
  expect(widthOf(cpuinfo('AuthenticAMD', 25, avx512))).toBe('512') // Zen 4
  expect(widthOf(cpuinfo('AuthenticAMD', 25, 'avx2'))).toBeUndefined() // Zen 3
  expect(widthOf(cpuinfo('GenuineIntel', 6, avx512))).toBeUndefined()
  expect(widthOf(cpuinfo('AuthenticAMD', 26, 'avx2'))).toBeUndefined() // hidden from a virtual machine
  expect(widthOf(cpuinfo('AuthenticAMD', 26, avx512), { wanted: false })).toBeUndefined()
  expect(widthOf('')).toBeUndefined()
})

test('CPUs whose vectors have 128 bits are asked for 256, whoever opens a device', () => {
  const arm = 'processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n'
  for (const text of [arm, 'vendor_id\t: GenuineIntel\nflags\t\t: fpu sse4_1 sse4_2\n']) {
    expect(widthOf(text)).toBe('256')
    expect(widthOf(text, { wanted: false, files: ['/dev/dri'] })).toBe('256')
    expect(widthOf(text, { env: { LP_NATIVE_VECTOR_WIDTH: '128' } })).toBe('128')
  }
})

test('what the user has set stays, and a machine with a GPU is left alone', () => {
  const zen5 = cpuinfo('AuthenticAMD', 26, avx512)
  expect(widthOf(zen5, { env: { LP_NATIVE_VECTOR_WIDTH: '256' } })).toBe('256')
  for (const file of ['/dev/dri', '/dev/nvidiactl', '/dev/dxg']) expect(widthOf(zen5, { files: [file] })).toBeUndefined()
})

test.skipIf(isWindows)('a process has the width of the first device that it opens', () => {
  const child = fileURLToPath(new URL('fixtures/two-devices.ts', import.meta.url))
  const { LP_NATIVE_VECTOR_WIDTH: _, ...env } = process.env
  const lanesOf = (first: string, second: string): number[] => {
    const { stdout, stderr } = spawnSync(process.execPath, [child, first, second], { env, encoding: 'utf8' })
    expect(stdout, stderr).toContain('[')
    return JSON.parse(stdout) as number[]
  }
  const [usual, again] = lanesOf('any', 'generation')
  expect(again).toBe(usual)
  const [wide, after] = lanesOf('generation', 'any')
  expect(after).toBe(wide)
  const asked: NodeJS.ProcessEnv = { ...env }
  widenVectors(true, asked)
  expect(wide).toBe(usual === 8 && asked.LP_NATIVE_VECTOR_WIDTH === '512' ? 16 : usual)
})

test('Mesa makes one instruction of a multiply-add from 26 on', () => {
  expect(fusesMultiplyAdd('Mesa 26.2.6-1 (LLVM 22.1.8)')).toBe(true)
  expect(fusesMultiplyAdd('llvmpipe: Mesa 27.0.0-devel (LLVM 23.1.0)')).toBe(true)
  expect(fusesMultiplyAdd('Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)')).toBe(false)
  expect(fusesMultiplyAdd('SwiftShader driver-5.0.0')).toBe(false)
  expect(fusesMultiplyAdd('')).toBe(false)
})
