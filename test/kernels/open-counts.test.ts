/**
 * Wrappers that take counts a plan leaves open: recorded once for a capacity, replayed with numbers below it, they must give the bits of commands that are made
 * for each number, read nothing behind it (poison), and write nothing behind it (guards).
 */
import { describe, expect, test } from 'vitest'
import { capacityOf, Size, times, type Count } from '../../src/gpu/size.ts'
import type { GpuBuffer } from '../../src/gpu/pool.ts'
import * as attention from '../../src/kernels/attention/attention.ts'
import { add, dropout, siluGate } from '../../src/kernels/elementwise/elementwise.ts'
import { embedding } from '../../src/kernels/embedding/embedding.ts'
import { logitsBackward, scoreRows, statisticsWords } from '../../src/kernels/head/head.ts'
import { loraDown } from '../../src/kernels/lora/lora.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../../src/kernels/matmul/matmul.ts'
import { addColumnSums, rmsNorm, rmsNormBackward, rmsNormGain, takesGain } from '../../src/kernels/norm/norm.ts'
import { rope } from '../../src/kernels/rope/rope.ts'
import { addRowLists, gatherRows } from '../../src/kernels/rows/rows.ts'
import { seedWords } from '../seed.ts'
import { modes, openBench } from './harness.ts'

const bench = await openBench()
const { gpu } = bench

interface Trial {
  capacity: number
  numbers: number[]
  run: (rows: Count) => void
}

/** Buffers of the trial: `width` values a row, or `fixed` ones that do not grow with the rows. */
const inputs: { buffer: GpuBuffer; data: Float32Array | Uint32Array; width: number }[] = []
const outputs: { buffer: GpuBuffer; start: Float32Array; width: number }[] = []

function rowsOf(data: Float32Array | Uint32Array, width: number): GpuBuffer {
  const buffer = bench.out(data.length)
  inputs.push({ buffer, data, width })
  return buffer
}
const normals = (capacity: number, width: number) => rowsOf(bench.normals(capacity * width), width)
function output(capacity: number, width: number): GpuBuffer {
  const buffer = bench.out(capacity * width)
  outputs.push({ buffer, start: new Float32Array(0), width })
  return buffer
}
function fixed(length: number): GpuBuffer {
  const start = bench.normals(length)
  const buffer = bench.upOut(start)
  outputs.push({ buffer, start, width: 0 })
  return buffer
}

const poison = (buffer: GpuBuffer) => gpu.write(buffer, new Uint32Array(buffer.bytes / 4).fill(0x7fc5a5a5))

async function check(name: string, make: () => Trial, facts = {}): Promise<void> {
  inputs.length = outputs.length = 0
  await bench.run(name, facts, async () => {
    const { capacity, numbers, run } = make()
    const once = async (rows: number, commands: () => void) => {
      for (const { buffer, data, width } of inputs) {
        poison(buffer)
        gpu.write(buffer, data.subarray(0, rows * width))
      }
      for (const { buffer, start } of outputs) {
        poison(buffer)
        gpu.write(buffer, start)
      }
      commands()
      const found: Uint32Array[] = []
      for (const { buffer, start, width } of outputs)
        found.push(await bench.words(buffer, width > 0 ? rows * width : start.length))
      return found
    }
    const plan = gpu.record(() => run(Size.of('rows', capacity)))
    for (const rows of [capacity, ...numbers]) {
      const eager = await once(rows, () => run(rows))
      expect(eager.every((words) => words.length > 0)).toBe(true)
      const replayed = await once(rows, () => gpu.replay(plan, { rows }))
      for (const [i, words] of replayed.entries()) {
        const at = words.length === eager[i].length ? words.findIndex((word, n) => word !== eager[i][n]) : 0
        expect(at, `${name}, ${rows} of ${capacity}, output ${i}: the first value that differs (${seedWords})`).toBe(-1)
      }
    }
    gpu.releasePlan(plan)
  })
}

describe.each(modes)('$name', ({ name: mode, facts, needs }) => {
  const products = [
    { capacity: 40, numbers: [1, 2, 5, 16, 33], n: 136, k: 64 },
    // 1024 rows of 1024 values go through a staging texture at once (stage.ts).
    ...(mode === modes[0].name ? [{ capacity: 1300, numbers: [7, 1024, 1025, 1280], n: 128, k: 1024 }] : []),
    { capacity: 24, numbers: [3, 17], n: 20, k: 24 },
  ]
  test.runIf(!needs || bench.cpu)('products of a linear layer', async () => {
    for (const { capacity, numbers, n, k } of products) {
      const name = `${capacity} x ${n} x ${k}`
      await check(
        `forward ${name}`,
        () => {
          const { weight } = bench.weight(n, k, true, 0.1)
          const [x, xa, residual] = [k, 8, n].map((width) => normals(capacity, width))
          const [b, bias] = [bench.up(bench.normals(n * 8)), bench.up(bench.normals(n))]
          const y = output(capacity, n)
          return {
            capacity,
            numbers,
            run: (rows) => linear(gpu, x, rows, weight, y, { lora: { x: xa, matrix: b, rank: 8 }, bias, residual }),
          }
        },
        facts,
      )
      await check(
        `to the input ${name}`,
        () => {
          const { weight } = bench.weight(n, k, true, 0.1)
          const [dy, dxa] = [n, 8].map((width) => normals(capacity, width))
          const a = bench.up(bench.normals(8 * k))
          const dx = output(capacity, k)
          return {
            capacity,
            numbers,
            run: (rows) => linearBackwardInput(gpu, dy, rows, weight, dx, { lora: { x: dxa, matrix: a, rank: 8 } }),
          }
        },
        facts,
      )
      await check(
        `to the weight ${name}`,
        () => {
          const [dy, x, thin] = [n, k, 8].map((width) => normals(capacity, width))
          const [dw, db] = [fixed(n * k), fixed(n * 8)]
          const run = (rows: Count) => {
            linearBackwardWeight(gpu, dy, x, rows, n, k, dw)
            linearBackwardWeight(gpu, dy, thin, rows, n, 8, db)
          }
          return { capacity, numbers, run }
        },
        facts,
      )
    }
    await check(
      'to a small weight, in parts',
      () => {
        const [dy, x] = [12, 8].map((width) => normals(1100, width))
        const dw = fixed(12 * 8)
        const run = (rows: Count) => linearBackwardWeight(gpu, dy, x, rows, 12, 8, dw)
        return { capacity: 1100, numbers: [1, 1024, 1025, 1099], run }
      },
      facts,
    )
  })

  test.runIf(!needs || bench.cpu)('attention, with all rows one sequence', async () => {
    const [capacity, shape] = [70, { heads: 4, kvHeads: 2, headDim: 16 }]
    await check(
      'attention',
      () => {
        const [q, dO] = [64, 64].map((width) => normals(capacity, width))
        const [k, v] = [32, 32].map((width) => normals(capacity, width))
        const info = rowsOf(
          Uint32Array.from({ length: capacity * 4 }, (_, i) => (i % 4 === 3 ? i >> 2 : 0)),
          4,
        )
        // Rows end where the number of the replay says, so the trial has one: what sees a row must be there.
        const keyEnd = rowsOf(
          new Uint32Array(capacity).map((_, i) => i + 1),
          1,
        )
        const [o, lse, dq, dk, dv] = [64, 4, 64, 32, 32].map((width) => output(capacity, width))
        const soft = bench.out(capacity * 8)
        const run = (rows: Count) => {
          attention.attention(gpu, { q, k, v, info, o, lse }, rows, shape)
          attention.attentionBackward(gpu, { q, k, v, info, keyEnd, o, lse, dO, soft, dq, dk, dv }, rows, shape)
        }
        return { capacity, numbers: [1, 2, 33, 69], run }
      },
      facts,
    )
  })

  test.runIf(!needs || bench.cpu)('norms, and what goes value by value', async () => {
    const [capacity, channels] = [90, 48]
    await check(
      'norm',
      () => {
        const [x, dy, skip] = [channels, channels, channels].map((width) => normals(capacity, width))
        const gain = bench.up(bench.normals(channels))
        const [y, rstd, dx, dxToo] = [channels, 1, channels, channels].map((width) => output(capacity, width))
        const [dgain, dgainToo, sums] = [fixed(channels), fixed(channels), fixed(channels)]
        const run = (rows: Count) => {
          rmsNorm(gpu, x, gain, y, rstd, rows, channels, 1e-5)
          rmsNormBackward(gpu, { dy, x, gain, rstd, dx, skip }, rows, channels)
          if (takesGain(gpu, channels))
            rmsNormBackward(gpu, { dy, x, gain, rstd, dx: dxToo, skip, dgain: dgainToo }, rows, channels)
          rmsNormGain(gpu, dy, x, rstd, dgain, rows, channels)
          addColumnSums(gpu, dy, sums, rows, channels)
        }
        return { capacity, numbers: [1, 31, 89], run }
      },
      facts,
    )
    await check(
      'sums of parts',
      () => {
        const [x, dy, rstd] = [9, 9, 1].map((width) => normals(600, width))
        const [dgain, sums] = [fixed(9), fixed(9)]
        const run = (rows: Count) => {
          rmsNormGain(gpu, dy, x, rstd, dgain, rows, 9)
          addColumnSums(gpu, dy, sums, rows, 9)
        }
        return { capacity: 600, numbers: [1, 256, 257, 599], run }
      },
      facts,
    )
    await check(
      'value by value',
      () => {
        const [a, b] = [channels, channels].map((width) => normals(capacity, width))
        const [sum, gated, dropped, turned] = [0, 0, 0, 0].map(() => output(capacity, channels))
        const info = rowsOf(
          Uint32Array.from({ length: capacity * 4 }, (_, i) => (i % 4 === 3 ? i >> 2 : 0)),
          4,
        )
        const table = bench.up(bench.normals(capacity * 8))
        const run = (rows: Count) => {
          const count = times(rows, channels)
          add(gpu, a, b, sum, count)
          siluGate(gpu, a, b, gated, count)
          dropout(gpu, a, dropped, count, 0.3, 77)
          gpu.copy(a, 0, turned, 0, times(count, 4))
          rope(gpu, turned, info, table, rows, 6, 8)
        }
        return { capacity, numbers: [1, 22, 89], run }
      },
      facts,
    )
  })

  test.runIf(!needs || bench.cpu)('rows that are looked up, gathered and added', async () => {
    const [capacity, width, tokens] = [80, 24, 50]
    await check(
      'rows',
      () => {
        const { weight } = bench.weight(tokens, width, true)
        const ids = rowsOf(bench.ids(capacity, tokens), 1)
        const x = normals(capacity, width)
        // Each row takes the first: any number of rows has it.
        const index = rowsOf(new Uint32Array(capacity), 1)
        const [start, source] = [
          bench.up(Uint32Array.from({ length: capacity + 1 }, (_, i) => i)),
          rowsOf(
            Uint32Array.from({ length: capacity }, (_, i) => i),
            1,
          ),
        ]
        const [y, gathered, added] = [0, 0, 0].map(() => output(capacity, width))
        const run = (rows: Count) => {
          embedding(gpu, ids, weight, y, rows)
          gatherRows(gpu, x, index, gathered, rows, width)
          addRowLists(gpu, x, { start, source, outs: rows }, added, width)
        }
        return { capacity, numbers: [1, 79], run }
      },
      facts,
    )
  })

  test.runIf(!needs || bench.cpu)('the head', async () => {
    const [capacity, vocabulary] = [33, 100]
    await check(
      'head',
      () => {
        const logits = output(capacity, vocabulary)
        const values = normals(capacity, vocabulary)
        const targets = rowsOf(bench.ids(capacity, vocabulary), 1)
        const coefficient = normals(capacity, 1)
        const [logprobs, entropy, lse] = [0, 0, 0].map(() => output(capacity, 1))
        const stats = output(capacity, statisticsWords(gpu, vocabulary))
        const run = (rows: Count) => {
          gpu.copy(values, 0, logits, 0, times(rows, vocabulary * 4))
          const at = { rows, slice: { row: 0, rows: vocabulary }, inverseTemperature: 1.25 }
          const part = { buffer: targets, offset: 0, bytes: capacityOf(rows) * 4 }
          scoreRows(gpu, { logits, targets: part, stats, logprobs, entropy, lse }, { ...at, vocabulary })
          logitsBackward(gpu, { logits, targets, lse, coefficient }, { ...at, firstRow: 0 })
        }
        return { capacity, numbers: [1, 32], run }
      },
      facts,
    )
  })
})

test.skipIf(!bench.cpu)("LoRA's first product, with a norm on the way and without", async () => {
  for (const [capacity, k, rank] of [
    [33, 72, 8],
    [64, 576, 16],
    [4, 64, 8],
  ]) {
    for (const normed of [false, true]) {
      await check(`down ${capacity} x ${k} x ${rank}${normed ? ', norm' : ''}`, () => {
        const x = normals(capacity, k)
        const bank = bench.up(bench.normals(2 * rank * k))
        const [gain, to] = [bench.up(bench.normals(k)), normed ? output(capacity, k) : undefined]
        const parts = [0, 1].map((g) => ({
          a: { buffer: bank, offset: g * rank * k * 4, bytes: rank * k * 4 },
          scale: 1.5 - g,
          out: output(capacity, rank),
        }))
        const norm = to && { gain, eps: 1e-5, out: to }
        return { capacity, numbers: [1, 3, capacity - 1], run: (rows) => loraDown(gpu, x, rows, k, rank, parts, { norm }) }
      })
    }
  }
})
