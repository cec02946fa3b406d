/**
 * Common parts of all kernel tests: a device with checks on, random inputs from a seed that failures print, outputs filled with NaN and guarded, and
 * the comparison with a float64 reference.
 */
import { afterAll } from 'vitest'
import { hashSeed, Random } from '../../src/common/random.ts'
import type { GpuFacts } from '../../src/gpu/adapter.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import { cpuLanes } from '../../src/kernels/common/lanes.ts'
import { uploadWeight, type Weight } from '../../src/kernels/common/weight.ts'
import { withFacts } from '../facts.ts'
import { seed, seedWords } from '../seed.ts'

/**
 * Bounds on ||x - reference|| / ||reference||. The rounding error of float32 is 6e-8. A chain of K fused multiply-adds of random signs accumulates
 * about sqrt(K) / 2 of that relative to its result, which gives 5e-7 for the K in these tests. A dropped, doubled or misplaced term out of K gives
 * 1/sqrt(K) > 1e-2.
 */
export const bounds = {
  /** Nothing is rounded: copies, bf16 widened to float32. */
  exact: 0,
  /** A few operations per value. */
  elementwise: 5e-7,
  /** Sums of products. */
  sum: 2e-6,
  /** exp, log or a division by a sum in addition. WGSL allows exp an error of 3 + 2|x| ULP, and log an absolute error of 2^-21. */
  softmax: 1e-5,
}

/** The bits of a NaN that no kernel produces by itself. */
export const poison = 0x7fc5a5a5

/** How a test runs the kernels: as on this adapter, or as on another kind of adapter, and then in another order of execution (src/gpu/shuffle.ts). */
export interface Mode {
  name: string
  facts: Partial<GpuFacts>
  /** The mode needs an adapter of this kind. */
  needs?: 'cpu'
}
/** The modes in which kernel tests run. */
export const modes: Mode[] = [
  { name: 'as this adapter', facts: {} },
  { name: 'register tile, lanes through workgroup memory', facts: { software: false, subgroupSize: 0, shuffled: true } },
  { name: 'register tile, lanes of a subgroup', facts: { software: false, shuffled: true }, needs: 'cpu' },
  { name: 'software without subgroups', facts: { software: true, subgroupSize: 0, shuffled: true } },
]
/**
 * Whether this run includes tests of such an adapter. Runs with another vector width (vitest.config.ts) include only this adapter's own mode: the
 * other modes do not depend on the width, and take minutes to compile.
 */
export const isRun = ({ facts }: Pick<Mode, 'facts'>): boolean =>
  process.env.DAWN_RL_TEST_MODES !== 'own' || facts.software === undefined

/** Opens the device of a test file, and returns helpers bound to it. It is closed after the file's tests. */
export async function openBench(): Promise<Bench> {
  const gpu = await Gpu.open({ checks: true })
  afterAll(() => gpu.close())
  return new Bench(gpu)
}

/** A device, and helpers that upload inputs, make outputs, and read and check them. */
export class Bench {
  readonly gpu: Gpu
  random = new Random(seed)
  readonly #held: { release(): void }[] = []
  constructor(gpu: Gpu) {
    this.gpu = gpu
  }

  /** Whether the kernels for CPU drivers are used. */
  get cpu(): boolean {
    return cpuLanes(this.gpu).LANES > 0
  }

  /** Runs `fn` with the facts of a mode, and releases what it created. Inputs depend on the seed and `name`, so that each case can be run alone. */
  async run(name: string, facts: Partial<GpuFacts>, fn: () => Promise<void>): Promise<void> {
    this.random = new Random(hashSeed(seed, name))
    try {
      await withFacts(this.gpu, facts, fn)
    } finally {
      for (const held of this.#held.splice(0)) held.release()
    }
  }

  normals(length: number, scale = 1): Float32Array {
    return Float32Array.from({ length }, () => this.random.normal() * scale)
  }
  ids(length: number, below: number): Uint32Array {
    return Uint32Array.from({ length }, () => this.random.int(below))
  }

  /** Uploads an input. The rest of its buffer is poisoned, so that reads past its end are noticed. */
  up(data: Float32Array | Uint32Array): GpuBuffer {
    const buffer = this.out(data.length)
    this.gpu.write(buffer, data)
    return buffer
  }
  /** An output of `length` values, all poisoned, followed by at least 16 guard words. */
  out(length: number): GpuBuffer {
    const buffer = this.gpu.pool.acquire((length + 16) * 4, 'test')
    this.gpu.write(buffer, new Uint32Array(buffer.bytes / 4).fill(poison))
    this.#held.push(buffer)
    return buffer
  }
  /** An output with initial values, for gradients that are added to them. */
  upOut(data: Float32Array): GpuBuffer {
    return this.up(data)
  }

  /** A random weight and its exact values. `scale` keeps products near 1. */
  weight(rows: number, columns: number, bf16: boolean, scale = 1): { weight: Weight; values: Float32Array } {
    const raw = this.normals(rows * columns, scale)
    const values = bf16 ? raw.map(toBf16) : raw
    const weight = uploadWeight(this.gpu, 'test', rows, columns, bf16 ? bf16Bits(values) : values)
    for (const { storage } of weight.slices) this.#held.push(storage as GpuBuffer)
    return { weight, values }
  }

  /** Reads `length` values and checks that the guard words after them are intact. */
  async down(buffer: GpuBuffer, length: number): Promise<Float32Array> {
    return new Float32Array((await this.words(buffer, length)).buffer, 0, length)
  }
  async words(buffer: GpuBuffer, length: number): Promise<Uint32Array> {
    const words = new Uint32Array(await this.gpu.read(buffer))
    for (let i = length; i < words.length; i++) {
      if (words[i] !== poison) throw new Error(`word ${i} behind an output of ${length} was written (${seedWords})`)
    }
    return words.slice(0, length)
  }

  /** Reads an output and compares it with the float64 reference, as `compare` does. */
  async check(name: string, buffer: GpuBuffer, reference: Float64Array, bound: number, size?: number): Promise<void> {
    compare(name, await this.down(buffer, reference.length), reference, bound, size)
  }
}

/**
 * Throws if ||got - reference|| / ||reference|| exceeds the bound, or if a value was never written.
 * @param size the norm of the terms that were summed, for so few sums that all of them may cancel: the denominator is the larger of it and
 * ||reference||
 */
export function compare(name: string, got: ArrayLike<number>, reference: ArrayLike<number>, bound: number, size = 0): void {
  if (got.length !== reference.length) throw new Error(`${name}: ${got.length} values instead of ${reference.length}`)
  let [difference, norm, worst] = [0, 0, 0]
  for (let i = 0; i < got.length; i++) {
    if (!Number.isFinite(got[i]) || !Number.isFinite(reference[i])) {
      throw new Error(`${name}: value ${i} of ${got.length} is ${got[i]}, reference ${reference[i]} (${seedWords})`)
    }
    difference += (got[i] - reference[i]) ** 2
    norm += reference[i] ** 2
    if (Math.abs(got[i] - reference[i]) > Math.abs(got[worst] - reference[worst])) worst = i
  }
  const error = Math.sqrt(difference) / Math.max(Math.sqrt(norm), size, 1e-30)
  if (error > bound) {
    const where = `worst at ${worst} of ${got.length}: ${got[worst]}, reference ${reference[worst]}`
    throw new Error(`${name}: relative error ${error.toExponential(2)} is over ${bound}; ${where} (${seedWords})`)
  }
}

/** Throws if two outputs are not equal bit for bit. */
export function sameBits(name: string, a: Float32Array, b: Float32Array): void {
  const [x, y] = [a, b].map((v) => new Uint32Array(v.buffer, v.byteOffset, v.length))
  const at = x.findIndex((word, i) => word !== y[i])
  if (at >= 0 || x.length !== y.length)
    throw new Error(`${name}: value ${at} is ${a[at]} in one run and ${b[at]} in the other (${seedWords})`)
}

const view = new DataView(new ArrayBuffer(4))
/** Rounds to the nearest bf16 value, ties to even. */
export function toBf16(value: number): number {
  view.setFloat32(0, value)
  const u = view.getUint32(0)
  view.setUint32(0, ((u + 0x7fff + ((u >>> 16) & 1)) & 0xffff0000) >>> 0)
  return view.getFloat32(0)
}
/** The upper halves of float32 values that are exact in bf16. */
export function bf16Bits(values: Float32Array): Uint16Array {
  return Uint16Array.from(new Uint32Array(values.buffer, values.byteOffset, values.length), (u) => u >>> 16)
}
