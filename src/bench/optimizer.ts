/** Benchmarks of what an optimizer step runs over all parameters: AdamW, the sum of squares, and rounding masters into working copies. */
import { Random } from '../common/random.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { allocateWeight, releaseWeight } from '../kernels/common/weight.ts'
import { linear } from '../kernels/matmul/matmul.ts'
import { BLOCK, decode } from '../kernels/optimizer/codes.ts'
import { adamw, adamw8bit, roundWeight, sumSquares, sumSquaresBlocks } from '../kernels/optimizer/optimizer.ts'
import { roundToBf16, widenBf16 } from '../model/bf16.ts'
import type { KernelCase, OpenCase } from './case.ts'
import { checkPoints, tolerances } from './check.ts'
import { poisoned, randomBf16, randomFloats } from './data.ts'

export const optimizerForms = ['AdamW', 'AdamW, 8 bits', 'sum of squares', 'rounding'] as const
type OptimizerForm = (typeof optimizerForms)[number]

/**
 * Bytes per parameter: AdamW reads four values and writes three, with moments of 8 bits in the second form; rounding reads float32 and writes bf16.
 */
const bytesEach: Record<OptimizerForm, number> = { AdamW: 28, 'AdamW, 8 bits': 16, 'sum of squares': 4, rounding: 6 }
/** Width of the matrix that is rounded. */
const width = 1024

/** `count` parameters, a multiple of 1024. */
export function optimizerCase(form: OptimizerForm, count: number, of: string): KernelCase {
  const shape = `${count}`
  const name = `optimizer ${form} ${shape} (${of})`
  const binding = 4 * count
  return {
    group: 'optimizer',
    name: form,
    shape,
    of,
    flops: 0,
    bytes: bytesEach[form] * count,
    binding,
    open: (gpu) =>
      ({ AdamW: openAdamW, 'AdamW, 8 bits': openAdamW8bit, 'sum of squares': openSquares, rounding: openRounding })[form](
        gpu,
        name,
        count,
      ),
  }
}

const settings = { learningRate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.01, step: 3, clip: 0.5 }

function openAdamW(gpu: Gpu, name: string, count: number): OpenCase {
  const host = ['w', 'g', 'm', 'v'].map((label) => randomFloats(count, label))
  host[3] = host[3].map((v) => v * v)
  const [w, g, m, v] = host
  const [parameters, gradients, m1, m2] = host.map((data) => gpu.upload(data, 'optimizer', { exact: true }))
  // (norm, clip, finite), as the kernel of the norm writes it.
  const norm = gpu.upload(Float32Array.of(1, settings.clip, 1), 'norm')
  const tensors = { parameters, gradients, m: m1, v: m2, norm }
  let calls = 0
  return {
    run() {
      calls++
      adamw(gpu, tensors, { first: 0, count }, settings)
    },
    check: async () => await checkAdamW(gpu, name, parameters, { w, g, m, v }, calls),
    release: () => [parameters, gradients, m1, m2, norm].forEach((buffer) => buffer.release()),
  }
}

/** Compares the parameters after `calls` equal steps from (w, g, m, v) with float64. */
async function checkAdamW(
  gpu: Gpu,
  name: string,
  parameters: GpuBuffer,
  { w, g, m, v }: Record<'w' | 'g' | 'm' | 'v', Float32Array>,
  calls: number,
): Promise<number> {
  const { learningRate: lr, beta1, beta2, eps, weightDecay, step, clip } = settings
  const want = (i: number) => {
    let [value, first, second] = [w[i], m[i], v[i]]
    for (let call = 0; call < calls; call++) {
      first += (1 - beta1) * (clip * g[i] - first)
      second = beta2 * second + (1 - beta2) * (clip * g[i]) ** 2
      const denominator = Math.sqrt(second) / Math.sqrt(1 - beta2 ** step) + eps
      value = value * (1 - lr * weightDecay) - ((lr / (1 - beta1 ** step)) * first) / denominator
    }
    // The size is at least that of the change: a moment near 0 makes a large step.
    return { value, size: Math.max(1, Math.abs(w[i] - value)) }
  }
  const got = await gpu.readF32(parameters, w.length)
  return checkPoints(name, got, want, { random: new Random(5), tolerance: tolerances.sum })
}

/** Moments are random codes, with scales of 1. Only the first step is checked, as moments are then rounded. */
function openAdamW8bit(gpu: Gpu, name: string, count: number): OpenCase {
  const [w, g] = ['w', 'g'].map((label) => randomFloats(count, label))
  const [mCodes, vCodes] = ['m', 'v'].map((label) => new Uint8Array(randomBf16(count / 2, label).buffer))
  const scales = new Float32Array(count / BLOCK).fill(1)
  const [m, v] = [decode({ codes: mCodes, scales }, true), decode({ codes: vCodes, scales }, false)]
  const buffers = [w, g, mCodes, vCodes, new Float32Array(scales.length * 2).fill(1), Float32Array.of(1, settings.clip, 1)]
  const [parameters, gradients, m1, m2, scale, norm] = buffers.map((data) => gpu.upload(data, 'optimizer', { exact: true }))
  const tensors = { parameters, gradients, m: m1, v: m2, scale, norm }
  return {
    run: () => adamw8bit(gpu, tensors, count, settings),
    check: async () => await checkAdamW(gpu, name, parameters, { w, g, m, v }, 1),
    release: () => [parameters, gradients, m1, m2, scale, norm].forEach((buffer) => buffer.release()),
  }
}

function openSquares(gpu: Gpu, name: string, count: number): OpenCase {
  const host = randomFloats(count, 'g')
  const blocks = sumSquaresBlocks(count)
  const [x, partial] = [gpu.upload(host, 'gradients', { exact: true }), poisoned(gpu, blocks, 'partial sums')]
  return {
    run: () => sumSquares(gpu, x, partial, count),
    async check() {
      const got = (await gpu.readF32(partial, blocks)).reduce((sum, part) => sum + part, 0)
      const value = host.reduce((sum, g) => sum + g * g, 0)
      return checkPoints(name, [got], () => ({ value, size: value }), {
        random: new Random(6),
        tolerance: tolerances.sum,
        points: 1,
      })
    },
    release: () => [x, partial].forEach((buffer) => buffer.release()),
  }
}

/** Rounds a matrix of `width` columns, and reads it back by multiplying unit vectors with it. */
function openRounding(gpu: Gpu, name: string, count: number): OpenCase {
  const rows = count / width
  const host = randomFloats(count, 'master')
  const master = gpu.upload(host, 'master', { exact: true })
  const weight = allocateWeight(gpu, 'copy', rows, width, true)
  const units = new Float32Array(4 * width)
  const random = new Random(7)
  const columns = [0, width - 1, random.int(width), random.int(width)]
  columns.forEach((column, row) => (units[row * width + column] = 1))
  const x = gpu.upload(units, 'unit vectors')
  const y = poisoned(gpu, 4 * rows, 'columns')
  return {
    run: () => roundWeight(gpu, master, weight, 0, rows),
    async check() {
      linear(gpu, x, 4, weight, y)
      const got = await gpu.readF32(y, 4 * rows)
      const want = (i: number) => {
        const at = (i % rows) * width + columns[Math.floor(i / rows)]
        return { value: widenBf16(roundToBf16(host.slice(at, at + 1)))[0], size: 1 }
      }
      return checkPoints(name, got, want, { random, tolerance: 0 })
    },
    release() {
      for (const buffer of [master, x, y]) buffer.release()
      releaseWeight(weight)
    },
  }
}
