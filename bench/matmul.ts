/**
 * How fast are the products of a linear layer? SmolLM2's shapes, from one decoded token to a training batch.
 *
 *     node bench/matmul.ts [--rows 1,8,32,256] [--shapes 576x576,1536x576,576x1536] [--forms nt,lora,nn,tn] [--repeats 3]
 *
 * Forms: nt (forward), lora (forward with rank 8), nn (backward to the input), tn (backward to the weight). A shape is N x K.
 * Prints GFLOP/s by the device's timestamps (best of the repeats) and, on a software adapter, by the processor time of the driver's threads times
 * the cores: that is what an idle machine would give, whatever else runs. Ends with one line of JSON.
 */
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { Random } from '../src/common/random.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { releaseWeight, uploadWeight } from '../src/kernels/common/weight.ts'
import { linear, linearBackwardInput, linearBackwardWeight } from '../src/kernels/matmul/matmul.ts'

const text = (value: string) => ({ type: 'string', default: value }) as const
const { values } = parseArgs({
  options: {
    rows: text('1,8,32,256'),
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

/** Seconds of processor time that threads other than this one took. */
function driverSeconds(since?: { process: NodeJS.CpuUsage; thread: NodeJS.CpuUsage }) {
  const [all, own] = [process.cpuUsage(since?.process), process.threadCpuUsage(since?.thread)]
  return { process: all, thread: own, seconds: (all.user + all.system - own.user - own.system) / 1e6 }
}

interface Row {
  form: string
  rows: number
  n: number
  k: number
  gflops: number
  /** On a software adapter. */
  idleGflops: number | undefined
}

async function measure(form: string, rows: number, n: number, k: number): Promise<Row> {
  const weight = uploadWeight(
    gpu,
    'w',
    n,
    k,
    Uint16Array.from({ length: n * k }, () => 0x3c00 + random.int(256)),
  )
  const [x, y, xa, b, dw] = [
    fresh(rows * k, 'x'),
    fresh(rows * n, 'y'),
    fresh(rows * rank, 'xa'),
    fresh(n * rank, 'b'),
    fresh(n * k, 'dw'),
  ]
  const run = {
    nt: () => linear(gpu, x, rows, weight, y),
    lora: () => linear(gpu, x, rows, weight, y, { lora: { x: xa, matrix: b, rank } }),
    nn: () => linearBackwardInput(gpu, y, rows, weight, x),
    tn: () => linearBackwardWeight(gpu, y, x, rows, n, k, dw, { accumulate: false }),
  }[form]
  if (!run) throw new Error(`'${form}' is none of nt, lora, nn, tn`)
  const work = 2 * rows * n * (k + (form === 'lora' ? rank : 0))
  // A quarter of a second on a slow adapter, at least 3 dispatches.
  const calls = Math.max(3, Math.ceil((gpu.facts.software ? 1e10 : 1e12) / work / 100) * 25)
  run()
  await gpu.sync('warm up')
  let [best, idle] = [0, 0]
  for (let repeat = 0; repeat < Number(values.repeats); repeat++) {
    const times = await gpu.profile(async () => {
      for (let i = 0; i < calls; i++) run()
    })
    best = Math.max(best, (work * calls) / (times.reduce((sum, t) => sum + t.milliseconds, 0) / 1000) / 1e9)
    const before = driverSeconds()
    for (let i = 0; i < calls; i++) run()
    await gpu.sync(`${form} ${rows} ${n} ${k}`)
    idle = Math.max(idle, ((work * calls) / driverSeconds(before).seconds / 1e9) * availableParallelism())
  }
  for (const buffer of [x, y, xa, b, dw]) buffer.release()
  releaseWeight(weight)
  return { form, rows, n, k, gflops: best, idleGflops: gpu.facts.software ? idle : undefined }
}

console.log(`${gpu.facts.name}${gpu.facts.software ? ` on ${availableParallelism()} cores` : ''}; GFLOP/s`)
console.log('form    rows     N     K    timed' + (gpu.facts.software ? '   idle machine' : ''))
const results: Row[] = []
for (const form of values.forms.split(',')) {
  for (const shape of values.shapes.split(',')) {
    const [n, k] = shape.split('x').map(Number)
    for (const rows of values.rows.split(',').map(Number)) {
      const row = await measure(form, rows, n, k)
      results.push(row)
      const idle = row.idleGflops === undefined ? '' : row.idleGflops.toFixed(1).padStart(12)
      console.log(
        `${form.padEnd(5)} ${[rows, n, k].map((v) => String(v).padStart(5)).join(' ')} ${row.gflops.toFixed(1).padStart(8)}${idle}`,
      )
    }
  }
}
console.log(JSON.stringify({ adapter: gpu.facts.name, results }))
gpu.close()
