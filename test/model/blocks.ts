/** Random blocks of GGUF's formats, and a GGUF file whose matrices are of all of them. */
import { hashSeed, Random } from '../../src/common/random.ts'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import type { ModelTensors } from '../../src/model/decoder/load.ts'
import { BLOCK_FORMATS, type BlockFormat } from '../../src/model/gguf/dequant.ts'
import { quantiseQ8 } from '../../src/model/decoder/quantise.ts'
import { linearShapes } from '../../src/model/decoder/shapes.ts'
import type { TensorSource } from '../../src/model/types.ts'
import { writeGguf, type GgufTensorToWrite } from './helpers.ts'

/** The formats of blocks, with their numbers in a file. */
export const quantisedFormats: (BlockFormat & { type: number })[] = Object.entries(BLOCK_FORMATS)
  .map(([type, format]) => ({ ...format, type: Number(type) }))
  .filter(({ values }) => values > 1)

/** Places of f16 numbers in a block, and numbers for them that make values about as large as a weight's. */
const halves: Record<string, { at: number; calm: number }[]> = {
  Q4_0: [{ at: 0, calm: 1 / 64 }],
  Q4_1: [{ at: 0, calm: 1 / 64 }, { at: 2, calm: -1 / 8 }], // prettier-ignore
  Q5_0: [{ at: 0, calm: 1 / 128 }],
  Q5_1: [{ at: 0, calm: 1 / 128 }, { at: 2, calm: -1 / 8 }], // prettier-ignore
  Q8_0: [{ at: 0, calm: 1 / 1024 }],
  Q4_K: [{ at: 0, calm: 1 / 4096 }, { at: 2, calm: 1 / 512 }], // prettier-ignore
  Q5_K: [{ at: 0, calm: 1 / 8192 }, { at: 2, calm: 1 / 512 }], // prettier-ignore
  Q6_K: [{ at: 208, calm: 1 / 32768 }],
}

/**
 * Blocks of random bytes, whose f16 numbers are finite.
 * @param wild numbers of every size, subnormal ones and zeros among them; else such as a model's weights have
 */
export function randomBlocks(format: BlockFormat, count: number, random: Random, wild: boolean): Uint8Array {
  const bytes = Uint8Array.from({ length: count * format.bytes }, () => random.int(256))
  const view = new DataView(bytes.buffer)
  for (let block = 0; block < count; block++) {
    for (const { at, calm } of halves[format.name]) {
      const [exponent, rest] = [random.int(12), random.int(1024)]
      const any = (random.int(2) << 15) | (exponent << 10) | (exponent === 0 && rest < 100 ? 0 : rest)
      const near = new Uint16Array(Float16Array.of(calm * (0.5 + random.next())).buffer)[0]
      view.setUint16(block * format.bytes + at, wild ? any : near, true)
    }
  }
  return bytes
}

/** What the host widens blocks to, in float32. */
export function widened(format: BlockFormat, data: Uint8Array): Float32Array {
  const blocks = data.length / format.bytes
  const out = new Float32Array(blocks * format.values)
  format.widen(data, blocks, out)
  return out
}

const modules = { attn_q: [256, 256], attn_k: [128, 256], attn_v: [128, 256], attn_output: [256, 256], ffn_gate: [512, 256], ffn_up: [512, 256], ffn_down: [256, 512] } // prettier-ignore

/** A random llama of two layers: each matrix of the layers is of another format, one of the last of F16; embedding in bf16. */
export function writeQuantisedGguf(path: string, name: string): void {
  const random = new Random(hashSeed(name))
  const [hidden, vocabulary] = [256, 96]
  const ones = (n: number) => ({ shape: [n], type: 0, bytes: new Uint8Array(new Float32Array(n).fill(1).buffer) })
  const values = (n: number, size: number) => Float32Array.from({ length: n }, () => random.normal() * size)
  const tensors: Record<string, GgufTensorToWrite> = { 'output_norm.weight': ones(hidden) }
  const embedding = roundToBf16(values(vocabulary * hidden, 0.3))
  tensors['token_embd.weight'] = { shape: [vocabulary, hidden], type: 30, bytes: new Uint8Array(embedding.buffer) }
  let next = 0
  for (let layer = 0; layer < 2; layer++) {
    for (const norm of ['attn_norm', 'ffn_norm']) tensors[`blk.${layer}.${norm}.weight`] = ones(hidden)
    for (const [module, shape] of Object.entries(modules)) {
      const count = shape[0] * shape[1]
      // q, k and v of the first layer are all in blocks, those of the second are not.
      const plain = layer === 1 && module === 'attn_v'
      const format = quantisedFormats[next++ % quantisedFormats.length]
      tensors[`blk.${layer}.${module}.weight`] = plain
        ? { shape, type: 1, bytes: new Uint8Array(new Float16Array(values(count, 0.05)).buffer) }
        : { shape, type: format.type, bytes: randomBlocks(format, count / format.values, random, false) }
    }
  }
  const metadata = {
    'general.architecture': 'llama',
    'llama.block_count': { u32: 2 },
    'llama.context_length': { u32: 256 },
    'llama.embedding_length': { u32: hidden },
    'llama.feed_forward_length': { u32: 512 },
    'llama.attention.head_count': { u32: 4 },
    'llama.attention.head_count_kv': { u32: 2 },
    'llama.attention.layer_norm_rms_epsilon': { f32: 1e-5 },
    'llama.rope.freq_base': { f32: 10_000 },
  }
  writeGguf(path, metadata, tensors)
}

/** The same tensors, those of layers as their 8-bit blocks have them. */
export function inEightBits({ tensors, config }: ModelTensors): TensorSource {
  const q8 = quantisedFormats.find(({ name }) => name === 'Q8_0')!
  const layers = new Set([...linearShapes(config).keys()].map((name) => `${name}.weight`))
  return {
    names: () => tensors.names(),
    has: (name) => tensors.has(name),
    shape: (name) => tensors.shape(name),
    close: () => undefined,
    async read(name, options) {
      const read = await tensors.read(name, options)
      if (!layers.has(name)) return read
      const values = read.dtype === 'bf16' ? widenBf16(read.data) : read.data
      return { dtype: 'bf16', shape: read.shape, data: roundToBf16(widened(q8, quantiseQ8(values))) }
    },
  }
}
