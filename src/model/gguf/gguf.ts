/**
 * The GGUF container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3, little-endian: metadata and a table of
 * tensors, read when the file is opened and checked against its size; tensor data is read by range and widened block by block.
 */
import { UserError } from '../../common/errors.ts'
import { roundToBf16 } from '../bf16.ts'
import { RangeFile } from '../files/files.ts'
import { BLOCK_FORMATS, OTHER_FORMATS } from './dequant.ts'
import type { BlockFormat } from './dequant.ts'

export type GgufValue = number | string | boolean | GgufValue[]

/** A tensor of the file. `shape` is outermost first (the reverse of the file's order), as PyTorch writes it. */
interface GgufTensor {
  name: string
  shape: number[]
  format: BlockFormat
  start: number
  length: number
}

/** First guess of the size of metadata and tensor table; doubled until they fit. */
const FIRST_READ = 8 << 20
/** Values widened at a time, so that a large matrix is never whole in float32. A multiple of every block size. */
const CHUNK_VALUES = 1 << 20
/** Lists within each other; models have lists of values alone. */
const MOST_DEPTH = 16
const VALUE_BYTES: Record<number, number> = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 }

/** Says that the bytes read so far end inside the header, which goes on to `end` at least. */
class NeedMore extends Error {
  readonly end: number
  constructor(end: number) {
    super()
    this.end = end
  }
}

/** An open GGUF file. */
export class GgufFile {
  readonly path: string
  readonly metadata: Map<string, GgufValue>
  readonly tensors: Map<string, GgufTensor>
  #file: RangeFile

  private constructor(file: RangeFile, header: Header) {
    this.#file = file
    this.path = file.path
    this.metadata = header.metadata
    this.tensors = header.tensors
  }

  /** Opens and checks a file. Throws UserError naming it for whatever is wrong. */
  static async open(path: string): Promise<GgufFile> {
    const file = new RangeFile(path)
    try {
      for (let size = FIRST_READ; ; size *= 2) {
        const bytes = await file.bytes(0, Math.min(size, file.size))
        try {
          return new GgufFile(file, parseHeader(bytes, file))
        } catch (error) {
          if (!(error instanceof NeedMore)) throw error
          if (error.end > file.size)
            throw new UserError(
              `${path} is cut off: its header continues beyond byte ${file.size}, where the file ends. Fetch it again.`,
            )
        }
      }
    } catch (error) {
      file.close()
      throw error
    }
  }

  /** A tensor's entry; UserError where it is missing. */
  tensor(name: string): GgufTensor {
    const tensor = this.tensors.get(name)
    if (!tensor) throw new UserError(`Tensor ${name} is missing in ${this.path}.`)
    return tensor
  }

  /** A whole tensor as float32; for small ones. */
  async readFloat32(name: string): Promise<Float32Array> {
    const { format, start, length } = this.tensor(name)
    const blocks = length / format.bytes
    const out = new Float32Array(blocks * format.values)
    format.widen(await this.#file.bytes(start, length), blocks, out)
    return out
  }

  /** A whole tensor, widened to float32 and rounded to bf16 (nearest, ties to even). */
  async readBf16(name: string): Promise<Uint16Array> {
    const { format, start, length } = this.tensor(name)
    const blocks = length / format.bytes
    const out = new Uint16Array(blocks * format.values)
    const step = CHUNK_VALUES / format.values
    const scratch = new Float32Array(Math.min(CHUNK_VALUES, out.length))
    for (let block = 0; block < blocks; block += step) {
      const count = Math.min(step, blocks - block)
      format.widen(await this.#file.bytes(start + block * format.bytes, count * format.bytes), count, scratch)
      roundToBf16(scratch.subarray(0, count * format.values), out, block * format.values)
    }
    return out
  }

  /** A whole tensor as it lies in the file. */
  async readBytes(name: string): Promise<Uint8Array> {
    const { start, length } = this.tensor(name)
    return await this.#file.bytes(start, length)
  }

  close(): void {
    this.#file.close()
  }
}

interface Header {
  metadata: Map<string, GgufValue>
  tensors: Map<string, GgufTensor>
}

function parseHeader(bytes: Uint8Array<ArrayBuffer>, file: RangeFile): Header {
  const bad = (what: string) => new UserError(`${file.path} cannot be read as GGUF: ${what}.`)
  const cursor = new Cursor(bytes, bad)
  if (file.size < 24 || new TextDecoder('latin1').decode(bytes.subarray(0, 4)) !== 'GGUF')
    throw bad('it does not begin with GGUF')
  cursor.at = 4
  const version = cursor.uint32()
  if (version !== 2 && version !== 3) {
    throw bad(`its version is ${version > 0xffff ? 'that of a big-endian file' : version}, but only versions 2 and 3 can be read`)
  }
  const tensorCount = cursor.uint64()
  const keyCount = cursor.uint64()
  const metadata = new Map<string, GgufValue>()
  for (let i = 0; i < keyCount; i++) {
    const key = cursor.string()
    if (metadata.has(key)) throw bad(`its metadata has ${key} twice`)
    metadata.set(key, cursor.value(cursor.uint32()))
  }
  const alignment = (metadata.get('general.alignment') ?? 32) as number
  if (!Number.isSafeInteger(alignment) || alignment < 1) throw bad(`general.alignment is ${String(alignment)}`)
  const found: GgufTensor[] = []
  for (let i = 0; i < tensorCount; i++) {
    const name = cursor.string()
    const rank = cursor.uint32()
    if (rank > 4) throw bad(`tensor ${name} has ${rank} dimensions`)
    const shape = Array.from({ length: rank }, () => cursor.uint64()).toReversed()
    found.push(tensorOf(name, shape, cursor.uint32(), cursor.uint64(), bad))
  }
  const dataStart = Math.ceil(cursor.at / alignment) * alignment
  const tensors = new Map<string, GgufTensor>()
  for (const tensor of found) {
    tensor.start += dataStart
    const end = tensor.start + tensor.length
    if (end > file.size)
      throw bad(`tensor ${tensor.name} should end at byte ${end}, but the file ends at ${file.size}; fetch it again`)
    if (tensors.has(tensor.name)) throw bad(`it has two tensors with the name ${tensor.name}`)
    tensors.set(tensor.name, tensor)
  }
  return { metadata, tensors }
}

function tensorOf(name: string, shape: number[], type: number, start: number, bad: (what: string) => UserError): GgufTensor {
  const format = BLOCK_FORMATS[type]
  if (!format) {
    const readable = Object.values(BLOCK_FORMATS).map((f) => f.name)
    throw bad(
      `tensor ${name} has the type ${OTHER_FORMATS[type] ?? `number ${type}`}, which cannot be read; the types that can be read are ${readable.join(', ')}`,
    )
  }
  const values = shape.reduce((a, b) => a * b, 1)
  const row = shape.at(-1) ?? 1
  if (!Number.isSafeInteger(values) || row % format.values !== 0) {
    throw bad(
      `tensor ${name} (${format.name}) has the shape [${shape.join(', ')}], whose rows are not whole blocks of ${format.values}`,
    )
  }
  return { name, shape, format, start, length: (values / format.values) * format.bytes }
}

/** Reads the header's values in order; NeedMore where the bytes end. */
class Cursor {
  at = 0
  #bytes: Uint8Array<ArrayBuffer>
  #view: DataView
  #bad: (what: string) => UserError
  #text = new TextDecoder('utf-8', { ignoreBOM: true })
  constructor(bytes: Uint8Array<ArrayBuffer>, bad: (what: string) => UserError) {
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    this.#bad = bad
  }
  /** Where the next `length` bytes begin; steps over them. */
  #take(length: number): number {
    const at = this.at
    if (at + length > this.#bytes.length) throw new NeedMore(at + length)
    this.at = at + length
    return at
  }
  uint32(): number {
    return this.#view.getUint32(this.#take(4), true)
  }
  uint64(): number {
    const value = Number(this.#view.getBigUint64(this.#take(8), true))
    if (!Number.isSafeInteger(value)) throw this.#bad(`its header has the impossible count ${value}`)
    return value
  }
  string(): string {
    const length = this.uint64()
    const at = this.#take(length)
    return this.#text.decode(this.#bytes.subarray(at, at + length))
  }
  value(type: number, depth = 0): GgufValue {
    if (type === 8) return this.string()
    if (type === 9) {
      if (depth > MOST_DEPTH) throw this.#bad(`its metadata has lists nested more than ${MOST_DEPTH} deep`)
      const inner = this.uint32()
      const count = this.uint64()
      const least = this.at + count * (VALUE_BYTES[inner] ?? 1)
      if (inner !== 8 && inner !== 9 && least > this.#bytes.length) throw new NeedMore(least)
      const out: GgufValue[] = []
      for (let i = 0; i < count; i++) out.push(this.value(inner, depth + 1))
      return out
    }
    const size = VALUE_BYTES[type]
    if (size === undefined) throw this.#bad(`its metadata has a value of the unknown type ${type}`)
    const at = this.#take(size)
    const view = this.#view
    if (type === 0) return view.getUint8(at)
    if (type === 1) return view.getInt8(at)
    if (type === 2) return view.getUint16(at, true)
    if (type === 3) return view.getInt16(at, true)
    if (type === 4) return view.getUint32(at, true)
    if (type === 5) return view.getInt32(at, true)
    if (type === 6) return view.getFloat32(at, true)
    if (type === 7) return view.getUint8(at) !== 0
    if (type === 10) return Number(view.getBigUint64(at, true))
    if (type === 11) return Number(view.getBigInt64(at, true))
    return view.getFloat64(at, true)
  }
}
