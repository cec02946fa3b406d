/**
 * What the CPU that a software driver runs on can do, and how wide the driver's vectors are.
 *
 * Lavapipe's vectors have 256 bits (subgroups of 8), or 128 (subgroups of 4) where the CPU has no wider ones, unless LP_NATIVE_VECTOR_WIDTH says
 * otherwise; the width stays for the life of a process. The kernels for CPU drivers have 8 or 16 lanes:
 * - On CPUs of 128 bits the driver is set to 256: the compiler makes each vector of two, and products are 2 to 50 times as fast as in kernels
 *   for GPUs with 4 lanes (bench/LOG.md, "CPUs with vectors of 128 bits").
 * - With 512 bits (subgroups of 16) products are 1.3 to 1.5 times as fast on CPUs with units of that width, and 1.1 to 1.3 times on Zen 4, which
 *   takes two turns for each. Whatever exchanges values between lanes, other than by constant broadcasts, is slower: model/wide-vectors.ts says
 *   which models gain, and bench/LOG.md, "Vectors of 512 bits", what was measured.
 */
import { existsSync } from 'node:fs'
import { readOrNothing } from '../common/cpu-time.ts'

/** Device files of GPU drivers: DRM, NVIDIA, WSL. */
const devices = ['/dev/dri', '/dev/nvidiactl', '/dev/dxg']

/**
 * Sets LP_NATIVE_VECTOR_WIDTH to 512 where that pays (no GPU, and a CPU of the kinds it was measured on) and is `wanted`, and to 256 where the driver would take less. What the user has set
 * stays. To be called before the driver is loaded.
 * @param machine for tests: /proc/cpuinfo, and whether a file is there
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

/** Bits of a vector where nobody tells lavapipe: 128 on ARM, and on x86 without AVX. What cannot be found out counts as 256. @param cpuinfo for tests */
export const usualBits = (cpuinfo: string = readCpuinfo()): 128 | 256 => (cpuinfo === '' || has(cpuinfo, 'avx') ? 256 : 128)

/**
 * Whether a CPU is of a kind that was measured to gain: AMD's with AVX-512 (Zen 5 has 512 bits in full width; Zen 4 takes two turns for each, but half as many instructions), and Intel's servers from
 * Sapphire Rapids on, which have matrix tiles besides (Intel's other ones join two units of 256 bits, or clock lower).
 */
function gainsByThem(cpuinfo: string): boolean {
  if (!['avx512f', 'avx512bw', 'avx512dq', 'avx512vl'].every((flag) => has(cpuinfo, flag))) return false
  return cpuKind(cpuinfo) !== 'other' || has(cpuinfo, 'amx_tile')
}

/** Registers for vectors of up to 256 bits of the CPU: 16 of x86 without AVX-512VL, else 32. What cannot be found out counts as 32. @param cpuinfo for tests */
export function vectorRegisters(cpuinfo: string = readCpuinfo()): number {
  return field(cpuinfo, 'flags') !== '' && !has(cpuinfo, 'avx512vl') ? 16 : 32
}

/** Whether the CPU's vector operations take an operand that is broadcast from memory to all lanes (AVX-512). @param cpuinfo for tests */
export const broadcastsMemory = (cpuinfo: string = readCpuinfo()): boolean => has(cpuinfo, 'avx512vl')

/** The kinds of CPU whose products take tiles and turns of their own (kernels/matmul/cpu.ts). */
export type CpuKind = 'zen4' | 'amd' | 'other'

/**
 * The kind of the CPU. On AMD's CPUs a product's loop must stay smaller in code than on others. But a Zen 4 (family 25 with AVX-512) takes two turns for each operation of
 * 512 bits, which leaves time to fetch a loop's code however long it is, so tiles may be larger (bench/LOG.md, "Zen 4, larger tiles"). @param cpuinfo for tests
 */
export function cpuKind(cpuinfo: string = readCpuinfo()): CpuKind {
  if (field(cpuinfo, 'vendor_id') !== 'AuthenticAMD') return 'other'
  return field(cpuinfo, 'cpu family') === '25' && has(cpuinfo, 'avx512f') ? 'zen4' : 'amd'
}

/** Bytes of a core's first-level data cache; 32 KiB where the system does not say. @param folder for tests: Linux's description of a core's caches */
export function firstCacheBytes(folder = '/sys/devices/system/cpu/cpu0/cache'): number {
  const says = (index: number, name: string) => readOrNothing(`${folder}/index${index}/${name}`).trim()
  const data = [0, 1, 2, 3].find((index) => says(index, 'level') === '1' && says(index, 'type') !== 'Instruction')
  const [, kibibytes] = (data !== undefined && /^(\d+)K$/.exec(says(data, 'size'))) || ['', '32']
  return Number(kibibytes) * 1024
}

/** Whether a software driver with this description compiles a multiply-add to one instruction: Mesa 26 or newer. */
export const fusesMultiplyAdd = (description: string): boolean => Number(/\bMesa (\d+)\./.exec(description)?.[1] ?? 0) >= 26

/** The first value of a name in /proc/cpuinfo; empty where there is none. */
function field(cpuinfo: string, name: string): string {
  return new RegExp(`^${name}\\s*:\\s*(.*)$`, 'm').exec(cpuinfo)?.[1] ?? ''
}

/** Whether the CPU can do what a flag of /proc/cpuinfo stands for. */
const has = (cpuinfo: string, flag: string): boolean => field(cpuinfo, 'flags').split(' ').includes(flag)

/** Read once: of many cores the system takes milliseconds to write it. */
let read: string | undefined
const readCpuinfo = (): string => (read ??= readOrNothing('/proc/cpuinfo'))
