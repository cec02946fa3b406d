/**
 * How fast are the products of a linear layer? SmolLM2's shapes, from one decoded token to a training batch.
 *
 *     node bench/matmul.ts [--rows 1,16,32,512] [--shapes 576x576,1536x576,576x1536] [--forms nt,lora,nn,tn] [--repeats 3]
 *
 * Forms: nt (forward), lora (forward with rank 8), nn (backward to the input), tn (backward to the weight). A shape is N x K.
 * Each case is first held against a plain kernel with one output an invocation, at 400 points against float64 sums, then timed: GFLOP/s by the clock and,
 * on a software adapter, by the processor time of the driver's threads times the cores: that is what an idle machine would give, whatever else runs. `of
 * peak` is the share of the register-only multiply-add loop of the same run (peaks.ts), `x plain` how many times as fast as the plain kernel at 32 rows.
 * Activations count as just written, so what staging them costs is in the figures. Ends with one line of JSON.
 */
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { Random } from '../src/common/random.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { releaseWeight, uploadWeight } from '../src/kernels/common/weight.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../src/kernels/matmul/matmul.ts'
import { measurePeaks, peakOf, rateOf, type Rate } from './peaks.ts'

const text = (value: string) => ({ type: 'string', default: value }) as const
const { values: options } = parseArgs({
  options: {
    rows: text('1,16,32,512'),
    shapes: text('576x576,1536x576,576x1536'),
    forms: text('nt,lora,nn,tn'),
    repeats: text('3'),
  },
})
const rank = 8
const gpu = await Gpu.open()
const random = new Random(1)
const fresh = (n: number, label: string) =>
  gpu.upload(
    Float32Array.from({ length: n }, () => random.next() - 0.5),
    label,
  )

interface Row extends Rate {
  form: string
  rows: number
  n: number
  k: number
  share: number
  timesPlain?: number
}

const plain = fileURLToPath(new URL('naive.wgsl', import.meta.url))

/** Throws where `got` (rows x columns) differs from sums of `terms` at any of 400 points. */
function check(
  name: string,
  got: Float32Array,
  columns: number,
  terms: number,
  term: (i: number, j: number, t: number) => number,
) {
  for (let point = 0; point < 400; point++) {
    const at = random.int(got.length)
    let [sum, size] = [0, 0]
    for (let t = 0; t < terms; t++) {
      const value = term(Math.floor(at / columns), at % columns, t)
      sum += value
      size += value * value
    }
    if (!(Math.abs(got[at] - sum) <= 1e-5 * Math.sqrt(size * terms)))
      throw new Error(`${name}: output ${at} is ${got[at]} instead of ${sum}`)
  }
}

async function measure(form: string, rows: number, n: number, k: number, peak: number, slow: Rate): Promise<Row> {
  const bits = Uint16Array.from({ length: n * k }, () => 0x3c00 + random.int(256))
  const values = new Float32Array(Uint32Array.from(bits, (b) => b << 16).buffer)
  const weight = uploadWeight(gpu, 'w', n, k, bits)
  const host = [rows * k, rows * n, rows * rank, n * rank].map((length) =>
    Float32Array.from({ length }, () => random.next() - 0.5),
  )
  const [x, dy, xa, b] = host.map((data) => gpu.upload(data, 'operand'))
  const [y, dx, dw] = [rows * n, rows * k, n * k].map((length) => gpu.pool.acquire(length * 4, 'output'))
  const [hx, hdy, hxa, hb] = host
  const forms: Record<string, { run: () => void; check: () => Promise<void> }> = {
    nt: {
      run: () => linear(gpu, x, rows, weight, y),
      check: async () => check('nt', await gpu.readF32(y, rows * n), n, k, (i, j, t) => hx[i * k + t] * values[j * k + t]),
    },
    lora: {
      run: () => linear(gpu, x, rows, weight, y, { lora: { x: xa, matrix: b, rank } }),
      check: async () =>
        check('lora', await gpu.readF32(y, rows * n), n, k + rank, (i, j, t) =>
          t < k ? hx[i * k + t] * values[j * k + t] : hxa[i * rank + t - k] * hb[j * rank + t - k],
        ),
    },
    nn: {
      run: () => linearBackwardInput(gpu, dy, rows, weight, dx),
      check: async () => check('nn', await gpu.readF32(dx, rows * k), k, n, (i, j, t) => hdy[i * n + t] * values[t * k + j]),
    },
    tn: {
      run: () => linearBackwardWeight(gpu, dy, x, rows, n, k, dw, { accumulate: false }),
      check: async () => check('tn', await gpu.readF32(dw, n * k), k, rows, (i, j, t) => hdy[t * n + i] * hx[t * k + j]),
    },
  }
  if (!(form in forms)) throw new Error(`'${form}' is none of nt, lora, nn, tn`)
  const { run } = forms[form]
  run()
  await forms[form].check()
  const work = 2 * rows * n * (k + (form === 'lora' ? rank : 0))
  const calls = Math.max(3, Math.ceil((gpu.facts.software ? 1e10 : 1e12) / work / 100) * 25)
  const rate = await rateOf(gpu, `${form} ${rows} ${n} ${k}`, work, calls, Number(options.repeats), () => {
    // As if they had just been made
    for (const operand of [x, dy]) operand.writes++
    run()
  })
  for (const buffer of [x, dy, xa, b, y, dx, dw]) buffer.release()
  releaseWeight(weight)
  return { form, rows, n, k, ...rate, share: peakOf(rate) / peak, timesPlain: peakOf(rate) / peakOf(slow) }
}

/** The plain kernel at 32 rows. */
async function measurePlain(n: number, k: number): Promise<Rate> {
  const rows = 32
  const [x, y] = [fresh(rows * k, 'x'), gpu.pool.acquire(rows * n * 4, 'y')]
  const w = gpu.upload(new Uint32Array(Math.ceil((n * k) / 2)).fill(0x3c803c80), 'w')
  const run = () => gpu.dispatch(gpu.kernel(plain), [x, w, y], { rows, n, k }, [Math.ceil(n / 8), Math.ceil(rows / 8)])
  const rate = await rateOf(gpu, `plain ${n} ${k}`, 2 * rows * n * k, gpu.facts.software ? 2 : 100, 2, run)
  for (const buffer of [x, y, w]) buffer.release()
  return rate
}

const { fma } = await measurePeaks(gpu)
const peak = peakOf(fma)
console.log(`${gpu.facts.name}; multiply-adds in registers: ${peak.toFixed(1)} GFLOP/s`)
console.log('form    rows     N     K    clock' + (gpu.facts.software ? '  idle machine' : '') + '  of peak  x plain')
const results: Row[] = []
for (const shape of options.shapes.split(',')) {
  const [n, k] = shape.split('x').map(Number)
  const slow = await measurePlain(n, k)
  for (const form of options.forms.split(',')) {
    for (const rows of options.rows.split(',').map(Number)) {
      const row = await measure(form, rows, n, k, peak, slow)
      results.push(row)
      const idle = row.idle === undefined ? '' : row.idle.toFixed(1).padStart(14)
      const shares = `${(100 * row.share).toFixed(0).padStart(7)}%${row.timesPlain!.toFixed(1).padStart(8)}`
      console.log(
        `${form.padEnd(5)} ${[rows, n, k].map((v) => String(v).padStart(5)).join(' ')} ${row.timed.toFixed(1).padStart(8)}${idle} ${shares}`,
      )
    }
  }
}
console.log(JSON.stringify({ adapter: gpu.facts.name, fma, results }))
gpu.close()
