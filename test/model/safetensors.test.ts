import { readFileSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test, vi } from 'vitest'
import { exactBf16, roundToBf16, widenBf16, widenF16 } from '../../src/model/bf16.ts'
import { RangeFile } from '../../src/model/files/files.ts'
import { openSafetensors, writeSafetensors } from '../../src/model/files/safetensors.ts'
import type { TensorToWrite } from '../../src/model/files/safetensors.ts'
import fc from '../fast-check.ts'
import { golden, newFolder, userErrorOf } from './helpers.ts'

/** A file with this header text and so many bytes behind it. */
function fileOf(path: string, header: string, dataBytes: number): string {
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(header)))
  writeFileSync(path, Buffer.concat([length, Buffer.from(header), Buffer.alloc(dataBytes)]))
  return path
}

describe('bf16', () => {
  test('rounds to nearest, ties to even, as PyTorch does', () => {
    const of = (...values: number[]) => [...widenBf16(roundToBf16(Float32Array.from(values)))]
    // 1 + 2^-8 lies half way between 1 and 1 + 2^-7: even is 1. 1 + 3 * 2^-8 lies half way too: even is 1 + 2^-6.
    expect(of(1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, -1 - 2 ** -8)).toEqual([1, 1 + 2 ** -6, 1 + 2 ** -7, -1])
    expect(of(3.4e38, -3.4e38, Infinity, 1e-45, -0)).toEqual([Infinity, -Infinity, Infinity, 0, -0])
    expect(of(NaN)[0]).toBeNaN()
    // A NaN whose payload is in the lower half alone must not become an infinity.
    const low = new Float32Array(Uint32Array.of(0x7f800001).buffer)
    expect(widenBf16(roundToBf16(low))[0]).toBeNaN()
  })
  test('is the nearest of the two neighbours for any float', () => {
    fc.assert(
      fc.property(fc.float({ noNaN: true, min: -(2 ** 100), max: 2 ** 100 }), (value) => {
        const [bits] = roundToBf16(Float32Array.of(value))
        const [rounded] = widenBf16(Uint16Array.of(bits))
        for (const other of [bits - 1, bits + 1]) {
          const [neighbour] = widenBf16(Uint16Array.of(other & 0xffff))
          if (Number.isFinite(neighbour)) expect(Math.abs(rounded - value)).toBeLessThanOrEqual(Math.abs(neighbour - value))
        }
      }),
    )
  })
  test('knows what is exact', () => {
    expect(exactBf16(Float32Array.of(1, -0.5, 3))).toEqual(Uint16Array.of(0x3f80, 0xbf00, 0x4040))
    expect(exactBf16(Float32Array.of(1, 0.1))).toBeNull()
  })
  test('widens halves: normal, subnormal, infinite', () => {
    expect([...widenF16(Uint16Array.of(0x3c00, 0xc000, 0x0001, 0x7bff, 0xfc00, 0x8000))]).toEqual([
      1,
      -2,
      2 ** -24,
      65504,
      -Infinity,
      -0,
    ])
  })
})

describe('a file written and read again', () => {
  const dir = newFolder()
  const tensor = fc.tuple(
    fc.constantFrom('F32', 'BF16', 'F16', 'I32', 'U8'),
    fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }),
    fc.integer(),
  )

  test('is the same, whatever names, types and shapes', async () => {
    await fc.assert(
      fc.asyncProperty(fc.dictionary(fc.string({ minLength: 1, maxLength: 8 }), tensor, { maxKeys: 6 }), async (spec) => {
        const made = new Map<string, TensorToWrite>()
        for (const [name, [dtype, shape, seed]] of Object.entries(spec)) {
          if (name === '__metadata__') continue
          const n = shape.reduce((a, b) => a * b, 1)
          const values = Array.from({ length: n }, (_, i) => (seed + i * 7919) % 251)
          const data =
            dtype === 'F32'
              ? Float32Array.from(values)
              : dtype === 'I32'
                ? Int32Array.from(values)
                : dtype === 'U8'
                  ? Uint8Array.from(values)
                  : Uint16Array.from(values)
          made.set(name, { dtype: dtype as 'F32', shape, data: made.size % 2 ? () => Promise.resolve(data) : data })
        }
        const path = join(dir, 'a.safetensors')
        await writeSafetensors(path, made, { format: 'pt' })
        const source = await openSafetensors(path)
        expect(source.names().toSorted()).toEqual([...made.keys()].toSorted())
        expect(readFileSync(path, 'latin1')).toContain('"__metadata__":{"format":"pt"}')
        for (const [name, { dtype, shape, data }] of made) {
          const raw = await source.readRaw(name)
          expect(raw.dtype).toBe(dtype)
          expect(raw.shape).toEqual(shape)
          expect(raw.data).toEqual(typeof data === 'function' ? await data() : data)
        }
        source.close()
      }),
      { numRuns: 50 },
    )
    expect(readdirSync(dir)).toEqual(['a.safetensors'])
  })

  test('leaves what was there when the writing fails', async () => {
    const path = join(newFolder(), 'a.safetensors')
    await writeSafetensors(path, { x: { dtype: 'F32', shape: [1], data: Float32Array.of(1) } })
    const before = readFileSync(path)
    const failing = { x: { dtype: 'F32' as const, shape: [2], data: () => Promise.reject(new Error('the disk is full')) } }
    await expect(writeSafetensors(path, failing)).rejects.toThrow('the disk is full')
    expect(readFileSync(path)).toEqual(before)
    expect(readdirSync(join(path, '..'))).toEqual(['a.safetensors'])
  })

  test('lies wide types first, then by name; in whatever order a header names its tensors, it is read', async () => {
    const path = join(newFolder(), 'a.safetensors')
    const byte = (name: string): [string, TensorToWrite] => [name, { dtype: 'U8', shape: [1], data: Uint8Array.of(1) }]
    const wide: TensorToWrite = { dtype: 'F32', shape: [1], data: Float32Array.of(2) }
    await writeSafetensors(path, new Map([byte('c'), byte('a'), ['wide', wide], byte('b')]))
    const own = await openSafetensors(path)
    expect(own.names()).toEqual(['wide', 'a', 'b', 'c'])
    own.close()
    const entry = (from: number) => `{"dtype":"F32","shape":[1],"data_offsets":[${from},${from + 4}]}`
    const other = await openSafetensors(fileOf(path, `{"b":${entry(4)},"c":${entry(8)},"a":${entry(0)}}`, 12))
    expect(other.names()).toEqual(['b', 'c', 'a'])
    other.close()
  })

  test('may hold a tensor of no elements, in whatever order a header names it', async () => {
    const header =
      '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"empty":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    const source = await openSafetensors(fileOf(join(newFolder(), 'x.safetensors'), header, 4))
    expect((await source.readFloat32('empty')).data).toHaveLength(0)
    expect((await source.readFloat32('a')).data).toHaveLength(1)
    source.close()
  })
  test('of several files, those before a broken one are closed with it', async () => {
    const dir = newFolder()
    const good = fileOf(join(dir, 'good'), '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4)
    const broken = fileOf(join(dir, 'broken'), '[]', 0)
    const close = vi.spyOn(RangeFile.prototype, 'close')
    await userErrorOf(() => openSafetensors([good, broken]))
    expect(close).toHaveBeenCalledTimes(2)
    close.mockRestore()
  })
  test('is not written with a tensor of another length than its shape says', async () => {
    const path = join(newFolder(), 'a.safetensors')
    const short: TensorToWrite = { dtype: 'F32', shape: [2], data: Float32Array.of(1) }
    await expect(writeSafetensors(path, { short })).rejects.toThrow('tensor short F32 [2] is given 4 bytes')
    expect(readdirSync(join(path, '..'))).toEqual([])
  })

  test('keeps bf16 bits, and makes bf16 of floats only where that is exact or asked for', async () => {
    const path = join(dir, 'b.safetensors')
    await writeSafetensors(path, {
      exact: { dtype: 'F32', shape: [2], data: Float32Array.of(1, -0.5) },
      fine: { dtype: 'F32', shape: [2], data: Float32Array.of(1, 0.1) },
      half: { dtype: 'F16', shape: [2], data: Uint16Array.of(0x3c00, 0x3555) },
      ids: { dtype: 'I32', shape: [1], data: Int32Array.of(7) },
    })
    const source = await openSafetensors(path)
    expect((await source.read('exact')).dtype).toBe('bf16')
    expect(await source.read('fine')).toEqual({ dtype: 'f32', shape: [2], data: Float32Array.of(1, 0.1) })
    expect(await source.read('fine', { round: true })).toEqual({
      dtype: 'bf16',
      shape: [2],
      data: Uint16Array.of(0x3f80, 0x3dcd),
    })
    expect((await source.read('half')).dtype).toBe('f32')
    expect(await userErrorOf(() => source.read('ids'))).toContain('Tensor ids in')
    expect(await userErrorOf(() => source.read('ids'))).toContain('has dtype I32')
    expect(await userErrorOf(() => source.read('absent'))).toMatch(/^Tensor absent is missing in .*b\.safetensors\.$/)
    source.close()
  })
})

test.each([['F8_E8M0', 8], ['F8_E4M3FNUZ', 8], ['F8_E5M2FNUZ', 8], ['F6_E2M3', 6], ['F6_E3M2', 6], ['F4', 4], ['C64', 64]])(
  'a quantised weight in %s is no broken file, and is refused when it is read',
  async (dtype, bytes) => {
    const header = `{"a":{"dtype":"${dtype}","shape":[8],"data_offsets":[0,${bytes}]}}`
    const source = await openSafetensors(fileOf(join(newFolder(), 'q.safetensors'), header, bytes))
    expect(await userErrorOf(() => source.read('a'))).toContain(`has dtype ${dtype}; a weight must be F32, BF16 or F16.`)
    source.close()
  },
) // prettier-ignore

describe('a broken file', () => {
  const dir = newFolder()
  const path = join(dir, 'x.safetensors')
  const one = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
  test.each([
    ['header beyond the file', one.slice(0, 20), 'not JSON'],
    ['no object', '[1]', 'not a JSON object'],
    ['nothing', 'null', 'not a JSON object'],
    ['unknown dtype', '{"a":{"dtype":"F7","shape":[2],"data_offsets":[0,8]}}', 'tensor a has the unknown dtype "F7"'],
    [
      'a dtype of lists as deep as no stack goes',
      `{"a":{"dtype":${'['.repeat(50_000)}${']'.repeat(50_000)}}}`,
      'tensor a has the unknown dtype of lists that are nested too deeply',
    ],
    ['a shape of megabytes', `{"a":{"dtype":"F32","shape":["${'x'.repeat(9e6)}"]}}`, 'xxx...'],
    ['shape that is none', '{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}', 'tensor a has the shape [-2]'],
    ['offsets that are none', '{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}', 'tensor a has the offsets [8,0]'],
    ['three offsets', '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}', 'tensor a has the offsets [0,8,8]'],
    [
      'shape and bytes that differ',
      '{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
      'tensor a (F32 [3]) needs 12 bytes but has 8',
    ],
    ['tensor beyond the end', '{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 'tensor a should end at byte'],
    [
      'tensors that overlap',
      '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
      'tensors a and b overlap',
    ],
    // Python's library refuses these, too.
    [
      'bytes between tensors',
      '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}}',
      'belong to no tensor',
    ],
    [
      'the same name twice',
      '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
      'belong to no tensor',
    ],
    ['bytes behind the last tensor', '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 'its tensors end at byte'],
  ])('%s', async (_, header, message) => {
    const text = await userErrorOf(() => openSafetensors(fileOf(path, header, 8)))
    expect(text).toContain(path)
    expect(text).toContain(message)
    expect(text.length).toBeLessThan(400)
  })
  test('cut off at any byte', async () => {
    const whole = readFileSync(join(golden, 'qwen3/adapter/adapter_model.safetensors'))
    for (const size of [0, 7, 8, 100, 2000, whole.length - 1]) {
      writeFileSync(path, whole.subarray(0, size))
      const text = await userErrorOf(() => openSafetensors(path))
      expect(text).toContain(path)
      expect(text).toMatch(size < 8 ? /has only/ : size < 2000 ? /header should end at byte/ : /should end at byte/)
    }
  })
  test('missing', async () => {
    expect(await userErrorOf(() => openSafetensors(join(dir, 'absent')))).toMatch(/^Cannot open .*absent: ENOENT/)
  })
  test('never anything but a UserError for a header of noise', async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 60 }), async (bytes) => {
        writeFileSync(path, bytes)
        await userErrorOf(() => openSafetensors(path))
      }),
      { numRuns: 100 },
    )
  })
})
