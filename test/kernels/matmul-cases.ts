/** One case of each product of a linear layer, against float64. */
import { weightView, type Weight } from '../../src/kernels/common/weight.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../../src/kernels/matmul/matmul.ts'
import { bounds, type Bench } from './harness.ts'

/** sum_t a(i, t) b(j, t) for a (rows x columns) output, in float64. */
export function product(
  rows: number,
  columns: number,
  depth: number,
  a: (i: number, t: number) => number,
  b: (j: number, t: number) => number,
): Float64Array {
  const out = new Float64Array(rows * columns)
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) {
      let sum = 0
      for (let t = 0; t < depth; t++) sum += a(i, t) * b(j, t)
      out[i * columns + j] = sum
    }
  }
  return out
}

export interface Case {
  rows: number
  n: number
  k: number
  bf16?: boolean
  rank?: number
  bias?: boolean
  residual?: boolean
  alpha?: number
  slice?: { row: number; rows: number }
  /** The weight lies in a plain buffer although this adapter would take a texture. */
  buffer?: boolean
}

/** Functions that run one case on random inputs and compare it with float64. */
export function casesOf(bench: Bench) {
  const { gpu } = bench

  function place(c: Case): { weight: Weight; values: Float32Array } {
    const made = bench.weight(c.n, c.k, c.bf16 ?? true)
    if (!c.buffer) return made
    const weight = weightView('view', bench.up(made.values), c.n, c.k)
    return { weight: { ...weight, bf16: false }, values: made.values }
  }

  async function forward(c: Case): Promise<void> {
    const { rows, n, k, rank = 0, alpha = 1 } = c
    const { weight, values } = place(c)
    const slice = c.slice ?? { row: 0, rows: n }
    const x = bench.normals(rows * k)
    const [xa, b] = [bench.normals(rows * rank), bench.normals(n * rank)]
    const [bias, residual] = [bench.normals(n), bench.normals(rows * slice.rows)]
    const y = bench.out(rows * slice.rows)
    linear(gpu, bench.up(x), rows, weight, y, {
      alpha,
      slice: c.slice,
      lora: rank ? { x: bench.up(xa), matrix: bench.up(b), rank } : undefined,
      bias: c.bias ? bench.up(bias) : undefined,
      residual: c.residual ? bench.up(residual) : undefined,
    })
    const want = product(
      rows,
      slice.rows,
      k,
      (i, t) => x[i * k + t],
      (j, t) => values[(slice.row + j) * k + t],
    )
    const low = product(
      rows,
      slice.rows,
      rank,
      (i, t) => xa[i * rank + t],
      (j, t) => b[(slice.row + j) * rank + t],
    )
    want.forEach((v, e) => {
      const biased = v + low[e] + (c.bias ? bias[slice.row + (e % slice.rows)] : 0)
      want[e] = biased * alpha + (c.residual ? residual[e] : 0)
    })
    await bench.check(JSON.stringify(c), y, want, bounds.sum)
  }

  async function backwardInput(c: Case & { accumulate?: boolean }): Promise<void> {
    const { rows, n, k, rank = 0, alpha = 1, accumulate = false } = c
    const { weight, values } = place(c)
    const slice = c.slice ?? { row: 0, rows: n }
    const dy = bench.normals(rows * slice.rows)
    const [dxa, a] = [bench.normals(rows * rank), bench.normals(rank * k)]
    const before = bench.normals(rows * k)
    const dx = accumulate ? bench.upOut(before) : bench.out(rows * k)
    const lora = rank ? { x: bench.up(dxa), matrix: bench.up(a), rank } : undefined
    linearBackwardInput(gpu, bench.up(dy), rows, weight, dx, { alpha, lora, accumulate, slice: c.slice })
    const want = product(
      rows,
      k,
      slice.rows,
      (i, t) => dy[i * slice.rows + t],
      (j, t) => values[(slice.row + t) * k + j],
    )
    const low = product(
      rows,
      k,
      rank,
      (i, t) => dxa[i * rank + t],
      (j, t) => a[t * k + j],
    )
    want.forEach((v, e) => {
      want[e] = (v + low[e]) * alpha + (accumulate ? before[e] : 0)
    })
    await bench.check(JSON.stringify(c), dx, want, bounds.sum)
  }

  async function backwardWeight(
    c: Case & { accumulate?: boolean; row?: number; dyStride?: number; dyColumn?: number },
  ): Promise<void> {
    const { rows, n, k, alpha = 1, accumulate = false, row = 0, dyStride = n, dyColumn = 0 } = c
    const [dy, x] = [bench.normals(rows * dyStride), bench.normals(rows * k)]
    const total = (row + n) * k
    const before = bench.normals(total)
    const dw = bench.upOut(before)
    linearBackwardWeight(gpu, bench.up(dy), bench.up(x), rows, n, k, dw, { alpha, accumulate, row, dyStride, dyColumn })
    const sum = product(
      n,
      k,
      rows,
      (i, t) => dy[t * dyStride + dyColumn + i],
      (j, t) => x[t * k + j],
    )
    const want = Float64Array.from(before, (v, e) => (e < row * k ? v : sum[e - row * k] * alpha + (accumulate ? v : 0)))
    await bench.check(JSON.stringify(c), dw, want, bounds.sum)
  }
  return { forward, backwardInput, backwardWeight }
}
