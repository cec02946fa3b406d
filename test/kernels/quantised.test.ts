/** Weights in a GGUF file's blocks: what kernels read is to the bit what the host widens the blocks to. */
import { describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { releaseWeight, type Weight } from '../../src/kernels/common/weight.ts'
import { linear, linearBackwardInput } from '../../src/kernels/matmul/matmul.ts'
import { allocateBlocks, allocateRooms, isQuantised, quantisedBytes, writeBlocks } from '../../src/kernels/quantised/quantised.ts'
import type { QuantisedFormat } from '../../src/kernels/quantised/quantised.ts'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import type { BlockFormat } from '../../src/model/gguf/dequant.ts'
import { quantisedFormats, randomBlocks, widened } from '../model/blocks.ts'
import { withFacts } from '../facts.ts'
import { isRun, modes, openBench, sameBits } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const formats = quantisedFormats
function roomOf(rows: number, columns: number): { room: Weight; release: () => void } {
  const { rooms, owned } = allocateRooms(gpu, [{ label: 'room', rows }], columns)
  const release = () => owned.forEach((one) => ('slices' in one ? releaseWeight(one) : one.release()))
  return { room: rooms[0], release }
}

function quantised(format: BlockFormat, room: Weight): { weight: Weight; values: Float32Array } {
  const name = format.name as QuantisedFormat
  const weight = allocateBlocks(gpu, `test ${name}`, room, name)
  const data = randomBlocks(format, (room.rows * room.columns) / format.values, bench.random, true)
  writeBlocks(gpu, weight.blocks!, data)
  return { weight, values: widenBf16(roundToBf16(widened(format, data))) }
}

/** W, by a product with the identity: each value is it times 1, and zeros. */
async function read(weight: Weight): Promise<Float32Array> {
  const { rows: n, columns: k } = weight
  const identity = new Float32Array(n * n)
  for (let i = 0; i < n; i++) identity[i * n + i] = 1
  const [dy, dx] = [bench.up(identity), bench.out(n * k)]
  linearBackwardInput(gpu, dy, n, weight, dx)
  return await bench.down(dx, n * k)
}

test('all of the block formats are held', () => {
  expect(formats.map(({ name }) => name).filter((name) => !isQuantised(name))).toEqual([])
  for (const { name, values, bytes } of formats) expect(quantisedBytes(name as QuantisedFormat, values * 3)).toBe(bytes * 3)
})

test('a weight that the adapter does not bind in one piece is an error that says what helps, and nothing is allocated', async () => {
  const { room, release } = roomOf(64, 256)
  const before = gpu.pool.bytesInUse
  const limits = { ...gpu.facts.limits, maxBinding: 17_000 }
  await withFacts(gpu, { limits }, async () => {
    expect(() => allocateBlocks(gpu, 'gate_proj', room, 'Q8_0')).toThrow(
      new UserError(
        'gate_proj has 17408 bytes in Q8_0, and this GPU adapter binds 17000 in one piece. Load the model without quantization: its weights are then used in slices.',
      ),
    )
  })
  expect(gpu.pool.bytesInUse).toBe(before)
  release()
})

describe.each(modes.filter(isRun).filter(({ needs }) => needs !== 'cpu' || bench.cpu))('$name', ({ name: mode, facts }) => {
  test.each(formats)('$name is widened to the bits of the host', async (format) => {
    await bench.run(`${mode} ${format.name}`, facts, async () => {
      // Rows that are not whole panels of 8; an odd number of blocks of 18, 22, 34 or 210 bytes begins a row within a word.
      const [rows, columns] = [37, format.values * 3]
      const { room, release } = roomOf(rows, columns)
      const { weight, values } = quantised(format, room)
      sameBits(
        'W',
        (await read(weight)).map((v) => v + 0),
        values.map((v) => v + 0),
      )
      weight.blocks!.storage.release()
      release()
    })
  })

  test('weights take turns in one room, in plans too', async () => {
    await bench.run(`${mode} turns`, facts, async () => {
      // So many rows of x that no tile reads the blocks itself.
      const [rows, columns, m] = [40, 256, 70]
      const { room, release } = roomOf(rows, columns)
      const held = formats.map((format) => quantised(format, room))
      const x = bench.up(bench.normals(m * columns))
      const forward = ({ weight }: { weight: Weight }, y = bench.out(m * rows)) => {
        linear(gpu, x, m, weight, y)
        return y
      }
      const alone = []
      for (const one of held) alone.push(await bench.down(forward(one), m * rows))
      expect(new Set(alone.map((values) => values.join())).size).toBe(formats.length)
      const before = gpu.dispatches
      const ys = [...held, ...held.flatMap((one) => [one, one])].map((one) => forward(one))
      // The second of two in a row finds the values in place.
      const perForward = (gpu.dispatches - before - formats.length * 2) / ys.length
      expect(Number.isInteger(perForward)).toBe(true)
      for (const [i, y] of ys.entries()) {
        const which = i < formats.length ? i : Math.floor((i - formats.length) / 2)
        sameBits(`turn ${i}`, await bench.down(y, m * rows), alone[which])
      }
      const outs = [0, 1, 1, 0].map(() => bench.out(m * rows))
      const plan = gpu.record(() => {
        forward(held[0], outs[0])
        forward(held[1], outs[1])
        gpu.cut()
        forward(held[1], outs[2])
        forward(held[0], outs[3])
      })
      // Others' commands between the two sections.
      gpu.replay(plan, {}, 0)
      forward(held[2])
      gpu.replay(plan, {}, 1)
      for (const [i, which] of [0, 1, 1, 0].entries()) sameBits(`plan ${i}`, await bench.down(outs[i], m * rows), alone[which])
      gpu.releasePlan(plan)
      // Other blocks in the place of those that were there.
      const [{ weight }] = held
      const other = randomBlocks(formats[0], (rows * columns) / formats[0].values, bench.random, true)
      const first = forward(held[0])
      writeBlocks(gpu, weight.blocks!, other)
      const second = forward(held[0])
      sameBits('before', await bench.down(first, m * rows), alone[0])
      expect((await bench.down(second, m * rows)).join()).not.toBe(alone[0].join())
      for (const one of held) one.weight.blocks!.storage.release()
      release()
    })
  })
})
