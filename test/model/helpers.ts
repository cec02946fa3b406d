/** Shared by the model room's tests: where the fixtures are, folders that are removed again, a small GGUF writer. */
import { existsSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { UserError } from '../../src/common/errors.ts'
import { newFolder as newTestFolder } from '../folders.ts'

export const golden = join(import.meta.dirname, '../fixtures/golden')
export const fixtures = join(import.meta.dirname, '../fixtures')
export const smollm2 = join(import.meta.dirname, '../../models/SmolLM2-135M-Instruct.Q4_1.gguf')

/** True where tests on the real model are to be left out: its file is missing, and this is not CI, which must have it. */
export const withoutSmollm2 = !existsSync(smollm2) && process.env.CI !== 'true'
if (withoutSmollm2)
  console.log('models/SmolLM2-135M-Instruct.Q4_1.gguf is missing: tests on it are skipped (scripts/get-smollm2.sh fetches it)')

/** A new empty folder, removed when the test file is done. */
export function newFolder(): string {
  return newTestFolder('model')
}

/** The message of the UserError that `work` must end in. */
export async function userErrorOf(work: () => unknown): Promise<string> {
  try {
    await work()
  } catch (error) {
    if (error instanceof UserError) return error.message
    throw error
  }
  throw new Error('no error was thrown')
}

export interface GgufTensorToWrite {
  /** Outermost first. */
  shape: number[]
  /** 0 F32, 1 F16, 30 BF16, ... */
  type: number
  bytes: Uint8Array
}
export type MetadataValue =
  | string
  | boolean
  | { u32: number }
  | { f32: number }
  | string[]
  | { i32s: number[] }
  | { f32s: number[] }
  | { bools: boolean[] }

/** Writes a GGUF file, version 3. */
export function writeGguf(
  path: string,
  metadata: Record<string, MetadataValue>,
  tensors: Record<string, GgufTensorToWrite>,
): void {
  const parts: Buffer[] = []
  const u32 = (n: number) => void parts.push(Buffer.from(Uint32Array.of(n).buffer))
  const u64 = (n: number) => void parts.push(Buffer.from(BigUint64Array.of(BigInt(n)).buffer))
  const text = (s: string) => {
    const bytes = Buffer.from(s)
    u64(bytes.length)
    parts.push(bytes)
  }
  parts.push(Buffer.from('GGUF'))
  u32(3)
  u64(Object.keys(tensors).length)
  u64(Object.keys(metadata).length)
  for (const [key, value] of Object.entries(metadata)) {
    text(key)
    if (typeof value === 'string') {
      u32(8)
      text(value)
    } else if (typeof value === 'boolean') {
      u32(7)
      parts.push(Buffer.from([value ? 1 : 0]))
    } else if (Array.isArray(value)) {
      u32(9)
      u32(8)
      u64(value.length)
      for (const s of value) text(s)
    } else if ('i32s' in value) {
      u32(9)
      u32(5)
      u64(value.i32s.length)
      parts.push(Buffer.from(Int32Array.from(value.i32s).buffer))
    } else if ('f32s' in value) {
      u32(9)
      u32(6)
      u64(value.f32s.length)
      parts.push(Buffer.from(Float32Array.from(value.f32s).buffer))
    } else if ('bools' in value) {
      u32(9)
      u32(7)
      u64(value.bools.length)
      parts.push(Buffer.from(value.bools.map(Number)))
    } else if ('u32' in value) {
      u32(4)
      u32(value.u32)
    } else {
      u32(6)
      parts.push(Buffer.from(Float32Array.of(value.f32).buffer))
    }
  }
  const aligned = (n: number) => Math.ceil(n / 32) * 32
  let offset = 0
  for (const [name, tensor] of Object.entries(tensors)) {
    text(name)
    u32(tensor.shape.length)
    for (const size of tensor.shape.toReversed()) u64(size)
    u32(tensor.type)
    u64(offset)
    offset = aligned(offset + tensor.bytes.length)
  }
  const header = Buffer.concat(parts)
  const body = Object.values(tensors).map(({ bytes }) =>
    Buffer.concat([bytes, Buffer.alloc(aligned(bytes.length) - bytes.length)]),
  )
  writeFileSync(path, Buffer.concat([header, Buffer.alloc(aligned(header.length) - header.length), ...body]))
}
