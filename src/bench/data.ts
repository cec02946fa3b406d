/** Fast random inputs: a pattern of prime length is repeated, so that no two rows of a matrix are alike. */
import { hashSeed, Random } from '../common/random.ts'
import { neutralSampling } from '../common/sampling.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { roundToBf16 } from '../model/bf16.ts'

/** Sampling parameters without filters. */
export const plainSampling = { ...neutralSampling, temperature: 0.8 }

const period = 1_048_573

/** Standard normal values, shared by all inputs. */
let normals: Float32Array | undefined
const bits = new Map<number, Uint16Array>()

function pattern(): Float32Array {
  if (normals) return normals
  const random = new Random(hashSeed('bench'))
  normals = Float32Array.from({ length: period }, () => random.normal())
  return normals
}

/** Fills `out` from the pattern, beginning at a place that depends on `seed`. */
function repeat<T extends Float32Array | Uint16Array>(out: T, source: T, seed: number): T {
  for (let at = 0, from = seed % period; at < out.length; from = 0) {
    const part = source.subarray(from, from + out.length - at)
    out.set(part, at)
    at += part.length
  }
  return out
}

/** Normally distributed values with standard deviation `scale`. */
export function randomFloats(length: number, label: string, scale = 1): Float32Array {
  const out = repeat(new Float32Array(length), pattern(), hashSeed(label))
  return scale === 1 ? out : out.map((v) => v * scale)
}

/** bf16 bits of normally distributed values with standard deviation `scale`. */
export function randomBf16(length: number, label: string, scale = 1): Uint16Array {
  let source = bits.get(scale)
  if (!source) bits.set(scale, (source = roundToBf16(pattern().map((v) => v * scale))))
  return repeat(new Uint16Array(length), source, hashSeed(label))
}

const nan = new Uint32Array(1 << 20).fill(0x7fc00000)

/** A buffer of `length` float32 values for a kernel to write, filled with NaN so that values that are not written fail the check. */
export function poisoned(gpu: Gpu, length: number, label: string): GpuBuffer {
  const buffer = gpu.pool.acquire(length * 4, label)
  for (let at = 0; at < length; at += nan.length) gpu.write(buffer, nan.subarray(0, Math.min(nan.length, length - at)), at * 4)
  return buffer
}
