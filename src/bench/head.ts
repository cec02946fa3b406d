/** Output head benchmarks: log-probabilities of given tokens, with and without the gradient of the hidden rows. */
import { logprobHead } from '../autograd/ops/head.ts'
import { Tape } from '../autograd/tape.ts'
import { Random } from '../common/random.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { releaseWeight, uploadWeight } from '../kernels/common/weight.ts'
import type { KernelCase, OpenCase } from './case.ts'
import { checkPoints, tolerances } from './check.ts'
import { valueOfBf16 } from '../common/bf16.ts'
import { poisoned, randomBf16, randomFloats } from './data.ts'

export const headForms = ['log-probabilities', 'with gradient'] as const
type HeadForm = (typeof headForms)[number]

/** The head for `rows` scored tokens over a vocabulary, from hidden rows of `width` values. */
export function headCase(form: HeadForm, rows: number, vocabulary: number, width: number, of: string): KernelCase {
  const shape = `${rows} x ${vocabulary} x ${width}`
  const products = form === 'with gradient' ? 2 : 1
  return {
    group: 'head',
    name: form,
    shape,
    of,
    flops: products * 2 * rows * vocabulary * width,
    bytes: products * 2 * vocabulary * width + 4 * rows * width * products,
    binding: 4 * rows * width,
    open: (gpu) => open(gpu, `head ${form} ${shape} (${of})`, form, { rows, vocabulary, width }),
  }
}

function open(
  gpu: Gpu,
  name: string,
  form: HeadForm,
  { rows, vocabulary, width }: { rows: number; vocabulary: number; width: number },
): OpenCase {
  const bits = randomBf16(vocabulary * width, 'head', 1 / Math.sqrt(width))
  const hidden = randomFloats(rows * width, 'hidden')
  const weight = uploadWeight(gpu, 'head', vocabulary, width, bits)
  const random = new Random(4)
  const ids = Uint32Array.from({ length: rows }, () => random.int(vocabulary))
  const [targets, source] = [gpu.upload(ids, 'targets'), gpu.upload(hidden, 'hidden')]
  const [logprobs, gradient] = [poisoned(gpu, rows, 'log-probabilities'), poisoned(gpu, rows * width, 'gradient')]
  const ones = gpu.upload(new Float32Array(rows).fill(1), 'ones')
  const withGradient = form === 'with gradient'
  const run = () => {
    const tape = new Tape(gpu, withGradient)
    const rowsIn = tape.tensor(rows, width, 'hidden', withGradient)
    gpu.copy(source, 0, rowsIn.buffer, 0, rows * width * 4)
    const out = logprobHead(tape, rowsIn, { weight }, targets, 1, withGradient ? () => ones : undefined)
    gpu.copy(out.logprobs.buffer, 0, logprobs, 0, rows * 4)
    if (rowsIn.grad) {
      gpu.copy(rowsIn.grad.buffer, 0, gradient, 0, rows * width * 4)
      rowsIn.grad.drop()
    }
    out.release()
    tape.done(rowsIn)
  }
  /** Logits of some rows in float64. The weight's rows are widened one by one. */
  const logitsOf = (wanted: number[]): Float64Array[] => {
    const all = wanted.map(() => new Float64Array(vocabulary))
    const words = new Uint32Array(width)
    const values = new Float32Array(words.buffer)
    for (let v = 0; v < vocabulary; v++) {
      for (let t = 0; t < width; t++) words[t] = bits[v * width + t] << 16
      wanted.forEach((row, i) => {
        let sum = 0
        for (let t = 0; t < width; t++) sum += hidden[row * width + t] * values[t]
        all[i][v] = sum
      })
    }
    return all
  }
  /** Only a few rows, as each is a product with the whole vocabulary. */
  const sampled = [...new Set([0, rows - 1])]
  return {
    run,
    async check() {
      const got = await gpu.readF32(logprobs, rows)
      const slope = withGradient ? await gpu.readF32(gradient, rows * width) : undefined
      const errors: number[] = []
      const exact = logitsOf(sampled)
      for (const [i, row] of sampled.entries()) {
        const logits = exact[i]
        const high = logits.reduce((a, b) => Math.max(a, b), -Infinity)
        const lse = high + Math.log(logits.reduce((sum, z) => sum + Math.exp(z - high), 0))
        const want = { value: logits[ids[row]] - lse, size: Math.max(1, Math.abs(lse)) }
        const options = { random, tolerance: tolerances.softmax, points: 1 }
        errors.push(checkPoints(`${name} row ${row}`, [got[row]], () => want, options))
        if (!slope) continue
        for (const column of [0, width - 1, random.int(width)]) {
          let value = 0
          for (let v = 0; v < vocabulary; v++) {
            value += (Number(v === ids[row]) - Math.exp(logits[v] - lse)) * valueOfBf16(bits[v * width + column])
          }
          const size = 1
          errors.push(
            checkPoints(`${name} gradient of row ${row}`, [slope[row * width + column]], () => ({ value, size }), options),
          )
        }
      }
      return Math.max(...errors)
    },
    release() {
      for (const buffer of [targets, source, logprobs, gradient, ones]) buffer.release()
      releaseWeight(weight)
    },
  }
}
