/**
 * Number formats of weight files. bf16 is the upper half of a float32: widening is exact, rounding is to nearest, ties to even, as
 * PyTorch's `.to(torch.bfloat16)`.
 */
import type { TensorData } from './types.ts'

/** Rounds float32 values to bf16 bits. A NaN stays a (quiet) NaN. Writes into `out` from `offset` where given. */
export function roundToBf16(values: Float32Array, out = new Uint16Array(values.length), offset = 0): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length)
  for (let i = 0; i < bits.length; i++) {
    const b = bits[i]
    const isNan = (b & 0x7fffffff) > 0x7f800000
    out[offset + i] = isNan ? (b >>> 16) | 0x40 : (b + 0x7fff + ((b >>> 16) & 1)) >>> 16
  }
  return out
}

/** The float32 values of bf16 bits, exactly. */
export function widenBf16(bits: Uint16Array): Float32Array {
  const out = new Uint32Array(bits.length)
  for (let i = 0; i < bits.length; i++) out[i] = bits[i] << 16
  return new Float32Array(out.buffer)
}

/** A tensor's values as float32, exactly. */
export const floatsOf = (data: TensorData): Float32Array => (data.dtype === 'bf16' ? widenBf16(data.data) : data.data)

/** Bits of the nearest half-precision values. */
export const roundToF16 = (values: Float32Array): Uint16Array => new Uint16Array(new Float16Array(values).buffer)

/** bf16 bits when every value is exact in bf16, else null. */
export function exactBf16(values: Float32Array): Uint16Array | null {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length)
  const out = new Uint16Array(values.length)
  for (let i = 0; i < bits.length; i++) {
    if ((bits[i] & 0xffff) !== 0) return null
    out[i] = bits[i] >>> 16
  }
  return out
}

let f16Table: Float32Array | undefined

/** All 65,536 IEEE half-precision values as float32, by their bits; made at the first call. */
export function f16Values(): Float32Array {
  if (f16Table) return f16Table
  const table = new Float32Array(65536)
  for (let h = 0; h < 65536; h++) {
    const exponent = (h >>> 10) & 31
    const mantissa = h & 1023
    const magnitude =
      exponent === 0
        ? mantissa * 2 ** -24
        : exponent === 31
          ? mantissa === 0
            ? Infinity
            : NaN
          : (1 + mantissa / 1024) * 2 ** (exponent - 15)
    table[h] = h & 0x8000 ? -magnitude : magnitude
  }
  f16Table = table
  return table
}

/** The float32 values of IEEE half-precision bits, exactly. */
export function widenF16(bits: Uint16Array): Float32Array {
  const table = f16Values()
  const out = new Float32Array(bits.length)
  for (let i = 0; i < bits.length; i++) out[i] = table[bits[i]]
  return out
}
