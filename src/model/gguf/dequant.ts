/**
 * GGUF block formats to float32. A block holds 32 values ("simple" kinds) or 256 ("K" kinds) as small integers with scales; the layouts
 * are those of ggml's `block_q*` structures. Products and sums are formed so that each value is rounded to float32 once, which gives the
 * bits of gguf-py (test: golden/misc/gguf_blocks).
 */
import { f16Values } from '../bf16.ts'

export interface BlockFormat {
  name: string
  /** Values a block. */
  values: number
  /** Bytes a block. */
  bytes: number
  /** Writes the values of `blocks` blocks of `src` (from its start) into `out`. */
  widen(src: Uint8Array, blocks: number, out: Float32Array): void
}

/** By the type number of a GGUF tensor. */
export const BLOCK_FORMATS: Readonly<Record<number, BlockFormat>> = {
  0: { name: 'F32', values: 1, bytes: 4, widen: widenF32 },
  1: { name: 'F16', values: 1, bytes: 2, widen: widenHalf },
  2: { name: 'Q4_0', values: 32, bytes: 18, widen: widenQ4_0 },
  3: { name: 'Q4_1', values: 32, bytes: 20, widen: widenQ4_1 },
  6: { name: 'Q5_0', values: 32, bytes: 22, widen: widenQ5_0 },
  7: { name: 'Q5_1', values: 32, bytes: 24, widen: widenQ5_1 },
  8: { name: 'Q8_0', values: 32, bytes: 34, widen: widenQ8_0 },
  12: { name: 'Q4_K', values: 256, bytes: 144, widen: widenQ4_K },
  13: { name: 'Q5_K', values: 256, bytes: 176, widen: widenQ5_K },
  14: { name: 'Q6_K', values: 256, bytes: 210, widen: widenQ6_K },
  30: { name: 'BF16', values: 1, bytes: 2, widen: widenBfloat },
}

/** Names of types that exist and are not read, for the error. */
export const OTHER_FORMATS: Readonly<Record<number, string>> = {
  9: 'Q8_1', 10: 'Q2_K', 11: 'Q3_K', 15: 'Q8_K', 16: 'IQ2_XXS', 17: 'IQ2_XS', 18: 'IQ3_XXS', 19: 'IQ1_S', 20: 'IQ4_NL', 21: 'IQ3_S',
  22: 'IQ2_S', 23: 'IQ4_XS', 24: 'I8', 25: 'I16', 26: 'I32', 27: 'I64', 28: 'F64', 29: 'IQ1_M', 34: 'TQ1_0', 35: 'TQ2_0', 39: 'MXFP4',
} // prettier-ignore

function half(src: Uint8Array, at: number): number {
  return f16Values()[src[at] | (src[at + 1] << 8)]
}

function widenF32(src: Uint8Array, blocks: number, out: Float32Array): void {
  new Uint8Array(out.buffer, out.byteOffset, blocks * 4).set(src.subarray(0, blocks * 4))
}

function widenHalf(src: Uint8Array, blocks: number, out: Float32Array): void {
  const table = f16Values()
  for (let i = 0; i < blocks; i++) out[i] = table[src[2 * i] | (src[2 * i + 1] << 8)]
}

function widenBfloat(src: Uint8Array, blocks: number, out: Float32Array): void {
  const bits = new Uint32Array(out.buffer, out.byteOffset, blocks)
  for (let i = 0; i < blocks; i++) bits[i] = (src[2 * i] << 16) | (src[2 * i + 1] << 24)
}

// Simple kinds: value j < 16 is the low half of byte j, value j + 16 its high half.

function widenQ4_0(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 18, o += 32) {
    const d = half(src, at)
    for (let j = 0; j < 16; j++) {
      const q = src[at + 2 + j]
      out[o + j] = ((q & 15) - 8) * d
      out[o + j + 16] = ((q >> 4) - 8) * d
    }
  }
}

function widenQ4_1(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 20, o += 32) {
    const d = half(src, at)
    const m = half(src, at + 2)
    for (let j = 0; j < 16; j++) {
      const q = src[at + 4 + j]
      out[o + j] = (q & 15) * d + m
      out[o + j + 16] = (q >> 4) * d + m
    }
  }
}

/** Bit j of the 32-bit mask is the fifth bit of value j. */
function highBits(src: Uint8Array, at: number): number {
  return src[at] | (src[at + 1] << 8) | (src[at + 2] << 16) | (src[at + 3] << 24)
}

function widenQ5_0(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 22, o += 32) {
    const d = half(src, at)
    const high = highBits(src, at + 2)
    for (let j = 0; j < 16; j++) {
      const q = src[at + 6 + j]
      out[o + j] = (((q & 15) | (((high >>> j) & 1) << 4)) - 16) * d
      out[o + j + 16] = (((q >> 4) | (((high >>> (j + 16)) & 1) << 4)) - 16) * d
    }
  }
}

function widenQ5_1(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 24, o += 32) {
    const d = half(src, at)
    const m = half(src, at + 2)
    const high = highBits(src, at + 4)
    for (let j = 0; j < 16; j++) {
      const q = src[at + 8 + j]
      out[o + j] = ((q & 15) | (((high >>> j) & 1) << 4)) * d + m
      out[o + j + 16] = ((q >> 4) | (((high >>> (j + 16)) & 1) << 4)) * d + m
    }
  }
}

function widenQ8_0(src: Uint8Array, blocks: number, out: Float32Array): void {
  const signed = new Int8Array(src.buffer, src.byteOffset, src.byteLength)
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 34, o += 32) {
    const d = half(src, at)
    for (let j = 0; j < 32; j++) out[o + j] = signed[at + 2 + j] * d
  }
}

/** Six-bit scale and minimum of sub-block j (0..7), packed in 12 bytes. */
function scaleMin(src: Uint8Array, at: number, j: number): [scale: number, min: number] {
  if (j < 4) return [src[at + j] & 63, src[at + j + 4] & 63]
  return [(src[at + j + 4] & 15) | ((src[at + j - 4] >> 6) << 4), (src[at + j + 4] >> 4) | ((src[at + j] >> 6) << 4)]
}

/** 8 sub-blocks of 32; sub-blocks 2k and 2k + 1 are the low and high halves of the same 32 bytes. */
function widenQ4_K(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 144, o += 256) {
    const d = half(src, at)
    const dmin = half(src, at + 2)
    for (let j = 0; j < 8; j++) {
      const [scale, min] = scaleMin(src, at + 4, j)
      const ds = d * scale
      const m = dmin * min
      const q = at + 16 + (j >> 1) * 32
      const shift = (j & 1) * 4
      for (let l = 0; l < 32; l++) out[o + j * 32 + l] = ((src[q + l] >> shift) & 15) * ds - m
    }
  }
}

/** As Q4_K, with bit j of the byte l of a 32-byte table as the fifth bit of value l of sub-block j. */
function widenQ5_K(src: Uint8Array, blocks: number, out: Float32Array): void {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 176, o += 256) {
    const d = half(src, at)
    const dmin = half(src, at + 2)
    for (let j = 0; j < 8; j++) {
      const [scale, min] = scaleMin(src, at + 4, j)
      const ds = d * scale
      const m = dmin * min
      const q = at + 48 + (j >> 1) * 32
      const shift = (j & 1) * 4
      for (let l = 0; l < 32; l++) {
        const value = ((src[q + l] >> shift) & 15) | (((src[at + 16 + l] >> j) & 1) << 4)
        out[o + j * 32 + l] = value * ds - m
      }
    }
  }
}

/** 128 bytes of low halves, 64 bytes of upper two bits, 16 signed scales (one for 16 values), the block scale last. */
function widenQ6_K(src: Uint8Array, blocks: number, out: Float32Array): void {
  const signed = new Int8Array(src.buffer, src.byteOffset, src.byteLength)
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 210, o += 256) {
    const d = half(src, at + 208)
    for (let i = 0; i < 256; i++) {
      const n = i >> 7
      const part = (i >> 5) & 3
      const l = i & 31
      const low = src[at + n * 64 + (part & 1) * 32 + l] >> ((part >> 1) * 4)
      const high = src[at + 128 + n * 32 + l] >> (part * 2)
      const value = ((low & 15) | ((high & 3) << 4)) - 32
      out[o + i] = d * signed[at + 192 + (i >> 4)] * value
    }
  }
}
