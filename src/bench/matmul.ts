/** Benchmarks of a linear layer's products: forward (with and without LoRA), gradient of the input, gradient of the weight. */
import { fileURLToPath } from 'node:url'
import { Random } from '../common/random.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { fittingUnit, useMatrixUnits } from '../kernels/common/matrix-units.ts'
import { releaseWeight, uploadWeight } from '../kernels/common/weight.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../kernels/matmul/matmul.ts'
import { linearShapes } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { caseName, type KernelCase, type OpenCase } from './case.ts'
import { checkPoints, sumOf, tolerances } from './check.ts'
import { valueOfBf16 } from '../common/bf16.ts'
import { poisoned, randomBf16, randomFloats } from './data.ts'
import { bestSeconds, timeCalls } from './timing.ts'

/** nt: forward; lora: forward with LoRA of rank 8; nn: gradient of the input; tn: gradient of the weight. */
export const matmulForms = ['nt', 'lora', 'nn', 'tn'] as const
export type MatmulForm = (typeof matmulForms)[number]

const formWords: Record<MatmulForm, string> = { nt: 'forward', lora: 'forward, LoRA', nn: 'dX', tn: 'dW' }

const rank = 8
const plain = fileURLToPath(new URL('plain.wgsl', import.meta.url))

/** Size of a linear layer, with N outputs and K inputs, and the model that has it. */
interface LinearShape {
  n: number
  k: number
  of: string
}

/** The sizes of a model's linear layers, each listed once. */
export function linearShapesOf(name: string, config: ModelConfig): LinearShape[] {
  const found = new Map<string, LinearShape & { modules: Set<string> }>()
  for (const [path, [n, k]] of linearShapes(config)) {
    const key = `${n}x${k}`
    const one = found.get(key) ?? { n, k, of: '', modules: new Set<string>() }
    one.modules.add(path.split('.').at(-1)!.replace('_proj', ''))
    found.set(key, one)
  }
  return [...found.values()].map(({ n, k, modules }) => ({ n, k, of: `${name} ${[...modules].join(', ')}` }))
}

/** The case of one product. `units`: on the adapter's matrix units. */
export function matmulCase(form: MatmulForm, rows: number, { n, k, of }: LinearShape, units = false): KernelCase {
  const inner = k + (form === 'lora' ? rank : 0)
  const weightBytes = n * k * (form === 'tn' ? 4 : 2)
  const one: KernelCase = {
    group: 'matmul',
    name: formWords[form],
    shape: `${rows} x ${n} x ${k}`,
    of,
    flops: 2 * rows * n * inner,
    bytes: weightBytes + 4 * rows * (n + k),
    binding: Math.max(form === 'tn' ? weightBytes : 0, 4 * rows * Math.max(n, k)),
    ...(units ? { units } : {}),
    open: (gpu) => openMatmul(gpu, form, rows, n, k, caseName(one), units),
  }
  return one
}

function openMatmul(gpu: Gpu, form: MatmulForm, rows: number, n: number, k: number, name: string, units: boolean): OpenCase {
  const weightBits = randomBf16(n * k, 'weight', 1)
  const [hx, hdy] = [randomFloats(rows * k, 'x'), randomFloats(rows * n, 'dy')]
  const [hxa, hb] = [randomFloats(rows * rank, 'xa'), randomFloats(n * rank, 'b')]
  // With matrix units in use, the weight is put in a buffer, which they read.
  if (units) useMatrixUnits(gpu)
  const weight = uploadWeight(gpu, 'w', n, k, weightBits)
  if (units) useMatrixUnits(gpu, false)
  const [x, dy, xa, b] = [hx, hdy, hxa, hb].map((data) => gpu.upload(data, 'operand'))
  const w = (i: number) => valueOfBf16(weightBits[i])
  const length = form === 'tn' ? n * k : form === 'nn' ? rows * k : rows * n
  const columns = form === 'nt' || form === 'lora' ? n : k
  const out = poisoned(gpu, length, 'output')
  const forms: Record<MatmulForm, { run: () => void; terms: number; term: (i: number, j: number, t: number) => number }> = {
    nt: { run: () => linear(gpu, x, rows, weight, out), terms: k, term: (i, j, t) => hx[i * k + t] * w(j * k + t) },
    lora: {
      run: () => linear(gpu, x, rows, weight, out, { lora: { x: xa, matrix: b, rank } }),
      terms: k + rank,
      term: (i, j, t) => (t < k ? hx[i * k + t] * w(j * k + t) : hxa[i * rank + t - k] * hb[j * rank + t - k]),
    },
    nn: {
      run: () => linearBackwardInput(gpu, dy, rows, weight, out),
      terms: n,
      term: (i, j, t) => hdy[i * n + t] * w(t * k + j),
    },
    tn: {
      run: () => linearBackwardWeight(gpu, dy, x, rows, n, k, out, { accumulate: false }),
      terms: rows,
      term: (i, j, t) => hdy[t * n + i] * hx[t * k + j],
    },
  }
  const { run, terms, term } = forms[form]
  return {
    run() {
      // Marks the operands as newly written, so that the time includes staging them.
      for (const operand of [x, dy]) operand.writes++
      if (units) useMatrixUnits(gpu)
      run()
      if (units) useMatrixUnits(gpu, false)
    },
    async check() {
      const got = await gpu.readF32(out, length)
      const want = (at: number) => sumOf(terms, (t) => term(Math.floor(at / columns), at % columns, t))
      return checkPoints(name, got, want, { random: new Random(1), tolerance: units ? tolerances.f16 : tolerances.sum })
    },
    release() {
      for (const buffer of [x, dy, xa, b, out]) buffer.release()
      releaseWeight(weight)
    },
  }
}

/** Whether the adapter's matrix units could take forward products of this width. */
export function hasUnits(gpu: Gpu, k: number): boolean {
  return fittingUnit(gpu) !== undefined && k % 8 === 0
}

/** GFLOP/s of a plain kernel with one output per invocation, at 32 rows. */
export async function plainRate(gpu: Gpu, { n, k }: LinearShape, repeats = 2): Promise<number> {
  const rows = 32
  const [x, y] = [gpu.upload(randomFloats(rows * k, 'x'), 'x'), gpu.pool.acquire(rows * n * 4, 'y')]
  const bits = randomBf16(n * k + ((n * k) % 2), 'weight', 1)
  const w = gpu.upload(bits, 'w')
  const run = () => gpu.dispatch(gpu.kernel(plain), [x, w, y], { rows, n, k }, [Math.ceil(n / 8), Math.ceil(rows / 8)])
  const timing = await timeCalls(gpu, `plain ${n} ${k}`, run, { repeats, seconds: 0.05 })
  for (const buffer of [x, y, w]) buffer.release()
  return (2 * rows * n * k) / bestSeconds(timing) / 1e9
}
