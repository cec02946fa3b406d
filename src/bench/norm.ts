/** Benchmarks of kernels that mostly move data: RMSNorm with its gradients, and the MLP's gate. */
import { Random } from '../common/random.ts'
import type { Gpu } from '../gpu/gpu.ts'
import type { GpuBuffer } from '../gpu/pool.ts'
import { siluGate } from '../kernels/elementwise/elementwise.ts'
import { rmsNorm, rmsNormBackward, rmsNormGain } from '../kernels/norm/norm.ts'
import type { KernelCase, OpenCase } from './case.ts'
import { checkPoints, sumOf, tolerances, type Expected } from './check.ts'
import { poisoned, randomFloats } from './data.ts'

export const normForms = ['forward', 'backward', 'gain', 'SiLU gate'] as const
type NormForm = (typeof normForms)[number]

/** Number of arrays of rows x channels that a call reads and writes. */
const moved: Record<NormForm, number> = { forward: 2, backward: 4, gain: 2, 'SiLU gate': 3 }

export function normCase(form: NormForm, rows: number, channels: number, of: string): KernelCase {
  const shape = `${rows} x ${channels}`
  const bytes = 4 * rows * channels * moved[form]
  return {
    group: 'norm',
    name: form,
    shape,
    of,
    flops: 0,
    bytes,
    binding: 4 * rows * channels,
    open: (gpu) => open(gpu, `norm ${form} ${shape} (${of})`, form, rows, channels),
  }
}

const eps = 1e-6

function open(gpu: Gpu, name: string, form: NormForm, rows: number, channels: number): OpenCase {
  const n = rows * channels
  const [hx, hdy, hskip] = ['x', 'dy', 'skip'].map((label) => randomFloats(n, label))
  const hgain = randomFloats(channels, 'gain')
  const hrstd = new Float32Array(rows)
  for (let r = 0; r < rows; r++) {
    let squares = 0
    for (let c = 0; c < channels; c++) squares += hx[r * channels + c] ** 2
    hrstd[r] = 1 / Math.sqrt(squares / channels + eps)
  }
  const [x, dy, skip, gain, rstd] = [hx, hdy, hskip, hgain, hrstd].map((data) => gpu.upload(data, 'norm'))
  const out = poisoned(gpu, n, 'norm output')
  const gradient = gpu.pool.acquire(channels * 4, 'gain gradient')
  const mean = (r: number) => {
    const one = sumOf(channels, (c) => hdy[r * channels + c] * hgain[c] * hx[r * channels + c] * hrstd[r])
    return one.value / channels
  }
  const forms: Record<NormForm, { run: () => void; result: GpuBuffer; length: number; want: (i: number) => Expected }> = {
    forward: {
      run: () => rmsNorm(gpu, x, gain, out, rstd, rows, channels, eps),
      result: out,
      length: n,
      want: (i) => ({ value: hx[i] * hrstd[Math.floor(i / channels)] * hgain[i % channels], size: 1 }),
    },
    backward: {
      run: () => rmsNormBackward(gpu, { dy, x, gain, rstd, dx: out, skip }, rows, channels),
      result: out,
      length: n,
      want(i) {
        const r = Math.floor(i / channels)
        const value = hskip[i] + hrstd[r] * (hdy[i] * hgain[i % channels] - hx[i] * hrstd[r] * mean(r))
        return { value, size: 1 }
      },
    },
    gain: {
      run() {
        gpu.clear(gradient)
        rmsNormGain(gpu, dy, x, rstd, gradient, rows, channels)
      },
      result: gradient,
      length: channels,
      want: (c) => sumOf(rows, (r) => hdy[r * channels + c] * hx[r * channels + c] * hrstd[r]),
    },
    'SiLU gate': {
      run: () => siluGate(gpu, x, dy, out, n),
      result: out,
      length: n,
      want: (i) => ({ value: (hx[i] / (1 + Math.exp(-hx[i]))) * hdy[i], size: 1 }),
    },
  }
  const { run, result, length, want } = forms[form]
  return {
    run,
    async check() {
      const got = await gpu.readF32(result, length)
      return checkPoints(name, got, want, { random: new Random(3), tolerance: tolerances.sum })
    },
    release: () => [x, dy, skip, gain, rstd, out, gradient].forEach((buffer) => buffer.release()),
  }
}
