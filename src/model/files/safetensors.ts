/**
 * Safetensors in and out (https://github.com/huggingface/safetensors, "Format"): 8 bytes of header length, a JSON header, then the
 * tensors' bytes, little-endian, row-major.
 *  - A file is checked when it is opened: a header that lies about the file never leads to a read.
 *  - Tensors are read one at a time by byte range; nothing is kept.
 *  - A written file is whole or absent.
 */
import { UserError } from '../../common/errors.ts'
import { exactBf16, roundToBf16, widenBf16, widenF16 } from '../bf16.ts'
import { RangeFile, writeWhole } from './files.ts'
import type { TensorData, TensorSource } from '../types.ts'

/** Bytes an element, of every dtype that a header may name. */
const DTYPE_BYTES: Record<string, number> = {
  C64: 8,
  F64: 8,
  F32: 4,
  F16: 2,
  BF16: 2,
  I64: 8,
  I32: 4,
  I16: 2,
  I8: 1,
  U64: 8,
  U32: 4,
  U16: 2,
  U8: 1,
  BOOL: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
  F8_E4M3FNUZ: 1,
  F8_E5M2FNUZ: 1,
  F8_E8M0: 1,
  F6_E2M3: 0.75,
  F6_E3M2: 0.75,
  F4: 0.5,
}
const LARGEST_HEADER = 100_000_000

/** Values as they lie in the file. BF16 and F16 are bits. */
type RawTensor =
  | { dtype: 'F32'; shape: number[]; data: Float32Array }
  | { dtype: 'BF16' | 'F16'; shape: number[]; data: Uint16Array }
  | { dtype: 'I32'; shape: number[]; data: Int32Array }
  | { dtype: 'U8'; shape: number[]; data: Uint8Array }
type FloatTensor = Exclude<RawTensor, { dtype: 'I32' } | { dtype: 'U8' }>

interface Entry {
  file: RangeFile
  dtype: string
  shape: number[]
  /** Absolute byte range in the file. */
  start: number
  length: number
}

/** One safetensors file, or the shards of one model. */
export interface SafetensorsSource extends TensorSource {
  dtype(name: string): string
  /** Reads a tensor of dtype F32, BF16, F16, I32 or U8 as it is. */
  readRaw(name: string): Promise<RawTensor>
  /** Reads a tensor as float32, whatever float type it has. */
  readFloat32(name: string): Promise<{ shape: number[]; data: Float32Array }>
}

/** Opens one file or several as one set of names. Throws UserError naming file and tensor for anything wrong with a header. */
export async function openSafetensors(paths: string | readonly string[]): Promise<SafetensorsSource> {
  const list = typeof paths === 'string' ? [paths] : paths
  const files: RangeFile[] = []
  const entries = new Map<string, Entry>()
  try {
    for (const path of list) {
      const file = new RangeFile(path)
      files.push(file)
      for (const [name, entry] of await readHeader(file)) {
        const other = entries.get(name)
        if (other)
          throw new UserError(
            `Tensor ${name} is in two files, ${other.file.path} and ${path}. Remove the file that does not belong.`,
          )
        entries.set(name, entry)
      }
    }
  } catch (error) {
    for (const file of files) file.close()
    throw error
  }
  return new Source(files, entries, list.join(', '))
}

async function readHeader(file: RangeFile): Promise<Map<string, Entry>> {
  const bad = (what: string) =>
    new UserError(`${file.path} is not a complete safetensors file: ${what}. Fetch or write it again.`)
  if (file.size < 8) throw bad(`it has only ${file.size} bytes`)
  const headerLength = Number(new DataView((await file.bytes(0, 8)).buffer).getBigUint64(0, true))
  if (headerLength > LARGEST_HEADER) throw bad(`its header would be ${headerLength} bytes long`)
  if (8 + headerLength > file.size)
    throw bad(`its header should end at byte ${8 + headerLength}, but the file ends at ${file.size}`)
  let header: Record<string, unknown>
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(await file.bytes(8, headerLength))) as Record<
      string,
      unknown
    >
  } catch {
    throw bad('its header is not JSON')
  }
  if (typeof header !== 'object' || header === null || Array.isArray(header)) throw bad('its header is not a JSON object')
  const dataStart = 8 + headerLength
  const entries = new Map<string, Entry>()
  for (const [name, value] of Object.entries(header))
    if (name !== '__metadata__') entries.set(name, checkEntry(name, value, file, dataStart, bad))
  let end = dataStart
  let previous = ''
  for (const [name, entry] of [...entries].toSorted((a, b) => a[1].start - b[1].start || a[1].length - b[1].length)) {
    if (entry.start < end) throw bad(`tensors ${previous} and ${name} overlap`)
    if (entry.start > end) throw bad(`bytes ${end} to ${entry.start} belong to no tensor`)
    end = entry.start + entry.length
    previous = name
  }
  if (end < file.size) throw bad(`its tensors end at byte ${end}, but the file ends at ${file.size}`)
  return entries
}

const isCount = (n: unknown): n is number => typeof n === 'number' && Number.isSafeInteger(n) && n >= 0

/** What stands in a header, for errors: a broken one may hold megabytes, or lists as deep as no stack goes. */
function shown(value: unknown): string {
  try {
    const text = JSON.stringify(value) ?? 'undefined'
    return text.length > 100 ? `${text.slice(0, 100)}...` : text
  } catch {
    return 'of lists that are nested too deeply'
  }
}

function checkEntry(name: string, value: unknown, file: RangeFile, dataStart: number, bad: (what: string) => UserError): Entry {
  const { dtype, shape, data_offsets: offsets } = (value ?? {}) as { dtype?: unknown; shape?: unknown; data_offsets?: unknown }
  if (typeof dtype !== 'string' || !Object.hasOwn(DTYPE_BYTES, dtype))
    throw bad(`tensor ${name} has the unknown dtype ${shown(dtype)}`)
  if (!Array.isArray(shape) || !shape.every(isCount)) throw bad(`tensor ${name} has the shape ${shown(shape)}`)
  if (!Array.isArray(offsets) || offsets.length !== 2 || !offsets.every(isCount) || offsets[0] > offsets[1]) {
    throw bad(`tensor ${name} has the offsets ${shown(offsets)}`)
  }
  const [from, to] = offsets as [number, number]
  const needed = shape.reduce((a: number, b: number) => a * b, 1) * DTYPE_BYTES[dtype]
  if (to - from !== needed)
    throw bad(`tensor ${name} (${dtype} [${shape.join(', ')}]) needs ${needed} bytes but has ${to - from}`)
  if (dataStart + to > file.size)
    throw bad(`tensor ${name} should end at byte ${dataStart + to}, but the file ends at ${file.size}`)
  return { file, dtype, shape: shape as number[], start: dataStart + from, length: needed }
}

class Source implements SafetensorsSource {
  #files: RangeFile[]
  #entries: Map<string, Entry>
  #label: string
  constructor(files: RangeFile[], entries: Map<string, Entry>, label: string) {
    this.#files = files
    this.#entries = entries
    this.#label = label
  }
  names(): string[] {
    return [...this.#entries.keys()]
  }
  has(name: string): boolean {
    return this.#entries.has(name)
  }
  shape(name: string): number[] {
    return this.#entry(name).shape
  }
  dtype(name: string): string {
    return this.#entry(name).dtype
  }
  #entry(name: string): Entry {
    const entry = this.#entries.get(name)
    if (!entry) throw new UserError(`Tensor ${name} is missing in ${this.#label}.`)
    return entry
  }
  async readRaw(name: string): Promise<RawTensor> {
    const { file, dtype, shape, start, length } = this.#entry(name)
    const buffer = async () => (await file.bytes(start, length)).buffer
    if (dtype === 'F32') return { dtype, shape, data: new Float32Array(await buffer()) }
    if (dtype === 'BF16' || dtype === 'F16') return { dtype, shape, data: new Uint16Array(await buffer()) }
    if (dtype === 'I32') return { dtype, shape, data: new Int32Array(await buffer()) }
    if (dtype === 'U8') return { dtype, shape, data: new Uint8Array(await buffer()) }
    throw new UserError(
      `Tensor ${name} in ${file.path} has dtype ${dtype}; only F32, BF16 and F16 can be read. Convert it first.`,
    )
  }
  async #readFloat(name: string): Promise<FloatTensor> {
    const { dtype, file } = this.#entry(name)
    if (dtype !== 'F32' && dtype !== 'BF16' && dtype !== 'F16') {
      throw new UserError(
        `Tensor ${name} in ${file.path} has dtype ${dtype}; a weight must be F32, BF16 or F16. Convert it first.`,
      )
    }
    return (await this.readRaw(name)) as FloatTensor
  }
  async read(name: string, options: { round?: boolean } = {}): Promise<TensorData> {
    const raw = await this.#readFloat(name)
    if (raw.dtype === 'BF16') return { dtype: 'bf16', shape: raw.shape, data: raw.data }
    const values = raw.dtype === 'F16' ? widenF16(raw.data) : (raw.data as Float32Array)
    const bits = options.round ? roundToBf16(values) : exactBf16(values)
    return bits ? { dtype: 'bf16', shape: raw.shape, data: bits } : { dtype: 'f32', shape: raw.shape, data: values }
  }
  async readFloat32(name: string): Promise<{ shape: number[]; data: Float32Array }> {
    const raw = await this.#readFloat(name)
    if (raw.dtype === 'F32') return { shape: raw.shape, data: raw.data }
    return { shape: raw.shape, data: raw.dtype === 'F16' ? widenF16(raw.data) : widenBf16(raw.data) }
  }
  close(): void {
    for (const file of this.#files) file.close()
  }
}

/** A tensor to be written; `data` may be made when its turn comes, so that a model is never whole in memory. BF16 and F16 are bits. */
export interface TensorToWrite {
  dtype: 'F32' | 'BF16' | 'I32' | 'F16' | 'U8'
  shape: readonly number[]
  data: TensorBytes | (() => TensorBytes | Promise<TensorBytes>)
}
type TensorBytes = Float32Array | Uint16Array | Int32Array | Uint8Array

/** Order by code units, the same in every locale. */
const byCode = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0)

/** Bytes that a tensor takes in a file. */
export function tensorBytes(tensor: { dtype: string; shape: readonly number[] }): number {
  return tensor.shape.reduce((a, b) => a * b, 1) * DTYPE_BYTES[tensor.dtype]
}

/**
 * Writes a safetensors file whole or not at all (aside, sync, rename). Tensors lie in the order of safetensors' own writer: wide types
 * first, then by name, so that every tensor is aligned. `metadata` goes to `__metadata__` (transformers wants `format: 'pt'`).
 */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, TensorToWrite> | Readonly<Record<string, TensorToWrite>>,
  metadata: Record<string, string> = {},
): Promise<void> {
  const entries = tensors instanceof Map ? [...tensors] : Object.entries(tensors as Record<string, TensorToWrite>)
  entries.sort((a, b) => DTYPE_BYTES[b[1].dtype] - DTYPE_BYTES[a[1].dtype] || byCode(a[0], b[0]))
  // A plain object would let a tensor named __proto__ vanish.
  const header: Record<string, unknown> = Object.create(null) as Record<string, unknown>
  if (Object.keys(metadata).length > 0) header.__metadata__ = metadata
  let offset = 0
  for (const [name, tensor] of entries) {
    const length = tensorBytes(tensor)
    header[name] = { dtype: tensor.dtype, shape: tensor.shape, data_offsets: [offset, offset + length] }
    offset += length
  }
  const text = Buffer.from(JSON.stringify(header))
  const padded = Buffer.alloc(Math.ceil(text.length / 8) * 8, ' ')
  text.copy(padded)
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(padded.length))
  await writeWhole(path, chunks())

  async function* chunks(): AsyncGenerator<Uint8Array> {
    yield length
    yield padded
    for (const [name, tensor] of entries) {
      const data = typeof tensor.data === 'function' ? await tensor.data() : tensor.data
      if (data.byteLength !== tensorBytes(tensor)) {
        throw new Error(`tensor ${name} ${tensor.dtype} [${tensor.shape.join(', ')}] is given ${data.byteLength} bytes`)
      }
      yield new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    }
  }
}
