/**
 * What the CPU under a software driver can do, and how wide the driver's vectors are.
 *
 * Lavapipe's vectors have 256 bits (subgroups of 8), or 128 bits (subgroups of 4) if the CPU has no wider ones, unless LP_NATIVE_VECTOR_WIDTH says
 * otherwise. The width is fixed for the life of a process. The kernels for CPU drivers have 8 or 16 lanes:
 * - On CPUs with 128-bit vectors the driver is set to 256: the compiler makes each vector of two, and matrix products are 2 to 50 times as fast as
 *   with the GPU kernels at 4 lanes (bench/LOG.md, "CPUs with vectors of 128 bits").
 * - With 512 bits (subgroups of 16) products are 1.3 to 1.5 times as fast on CPUs with units of that width, and 1.1 to 1.3 times on Zen 4, which
 *   executes each operation in two passes. Exchanging values between lanes is slower, except for constant broadcasts. See model/decoder/wide-vectors.ts for
 *   the models that gain, and bench/LOG.md, "Vectors of 512 bits", for the measurements.
 */
import { existsSync } from 'node:fs'
import { readOrNothing } from '../common/cpu-time.ts'

/** Device files of GPU drivers: DRM, NVIDIA, WSL. */
const devices = ['/dev/dri', '/dev/nvidiactl', '/dev/dxg']

/**
 * Sets LP_NATIVE_VECTOR_WIDTH to 512 if that is `wanted` and pays (no GPU, and a kind of CPU that was measured to gain), or to 256 if the driver
 * would take less. A value set by the user stays. Must be called before the driver is loaded.
 * @param machine for tests: /proc/cpuinfo, and whether a file exists
 */
export function widenVectors(
  wanted: boolean,
  env: NodeJS.ProcessEnv = process.env,
  machine: { cpuinfo?: string; exists?: (path: string) => boolean } = {},
): void {
  const { cpuinfo = readCpuinfo(), exists = existsSync } = machine
  if (env.LP_NATIVE_VECTOR_WIDTH !== undefined) return
  if (wanted && !devices.some(exists) && gainsByThem(cpuinfo)) env.LP_NATIVE_VECTOR_WIDTH = '512'
  else if (usualBits(cpuinfo) < 256) env.LP_NATIVE_VECTOR_WIDTH = '256'
}

/**
 * Lavapipe's default vector width in bits: 128 on ARM and on x86 without AVX; 256 otherwise, or if unknown.
 * @param cpuinfo for tests
 */
export const usualBits = (cpuinfo: string = readCpuinfo()): 128 | 256 => (cpuinfo === '' || has(cpuinfo, 'avx') ? 256 : 128)

/**
 * Whether a CPU is of a kind that was measured to gain from 512 bits: AMD's with AVX-512 (Zen 5 executes 512 bits at full width; Zen 4 in two passes,
 * but with half as many instructions), and Intel's servers from Sapphire Rapids on, recognised by their matrix tiles (other Intel CPUs join two
 * 256-bit units, or lower their clock).
 */
function gainsByThem(cpuinfo: string): boolean {
  if (!['avx512f', 'avx512bw', 'avx512dq', 'avx512vl'].every((flag) => has(cpuinfo, flag))) return false
  return cpuKind(cpuinfo) !== 'other' || has(cpuinfo, 'amx_tile')
}

/**
 * Number of vector registers of up to 256 bits: 16 on x86 without AVX-512VL; 32 otherwise, or if unknown.
 * @param cpuinfo for tests
 */
export function vectorRegisters(cpuinfo: string = readCpuinfo()): number {
  return field(cpuinfo, 'flags') !== '' && !has(cpuinfo, 'avx512vl') ? 16 : 32
}

/**
 * Whether the CPU's vector operations accept an operand that is broadcast from memory to all lanes (AVX-512).
 * @param cpuinfo for tests
 */
export const broadcastsMemory = (cpuinfo: string = readCpuinfo()): boolean => has(cpuinfo, 'avx512vl')

/** Kinds of CPU that need different tile sizes and unrolling in matrix products (kernels/matmul/cpu.ts). */
export type CpuKind = 'zen4' | 'amd' | 'other'

/**
 * The kind of the CPU. On AMD's CPUs the loop of a matrix product must have smaller code than on others. Zen 4 (family 25 with AVX-512) executes each
 * 512-bit operation in two passes, which leaves time to fetch a loop's code however long it is, so tiles may be larger (bench/LOG.md, "Zen 4, larger
 * tiles").
 * @param cpuinfo for tests
 */
export function cpuKind(cpuinfo: string = readCpuinfo()): CpuKind {
  if (field(cpuinfo, 'vendor_id') !== 'AuthenticAMD') return 'other'
  return field(cpuinfo, 'cpu family') === '25' && has(cpuinfo, 'avx512f') ? 'zen4' : 'amd'
}

/**
 * Size in bytes of a core's first-level data cache; 32 KiB if the system does not report it.
 * @param folder for tests: Linux's description of a core's caches
 */
export function firstCacheBytes(folder = '/sys/devices/system/cpu/cpu0/cache'): number {
  const says = (index: number, name: string) => readOrNothing(`${folder}/index${index}/${name}`).trim()
  const data = [0, 1, 2, 3].find((index) => says(index, 'level') === '1' && says(index, 'type') !== 'Instruction')
  const [, kibibytes] = (data !== undefined && /^(\d+)K$/.exec(says(data, 'size'))) || ['', '32']
  return Number(kibibytes) * 1024
}

/** Whether the software driver with this description compiles a multiply-add to one instruction: Mesa 26 or newer. */
export const fusesMultiplyAdd = (description: string): boolean => Number(/\bMesa (\d+)\./.exec(description)?.[1] ?? 0) >= 26

/** The first value of a field in /proc/cpuinfo; empty if there is none. */
function field(cpuinfo: string, name: string): string {
  return new RegExp(`^${name}\\s*:\\s*(.*)$`, 'm').exec(cpuinfo)?.[1] ?? ''
}

/** Whether the CPU has a flag in /proc/cpuinfo. */
const has = (cpuinfo: string, flag: string): boolean => field(cpuinfo, 'flags').split(' ').includes(flag)

/** Read only once: on machines with many cores, reading it takes milliseconds. */
let read: string | undefined
const readCpuinfo = (): string => (read ??= readOrNothing('/proc/cpuinfo'))
