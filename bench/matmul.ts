/**
 * How fast are the matrix products of a linear layer? SmolLM2's shapes, from one decoded token to a training batch.
 *
 *     node bench/matmul.ts [--rows 1,16,32,512] [--shapes 576x576,1536x576,576x1536] [--forms nt,lora,nn,tn] [--repeats 3]
 *
 * Forms: nt (forward), lora (forward with rank 8), nn (backward to the input), tn (backward to the weight). A shape is N x K.
 * Cases, checks and timing are those of `node cli.js bench matmul` (src/bench/matmul.ts); here any shape can be given.
 * `x plain` is how many times as fast as a plain kernel with one output an invocation at 32 rows. Ends with one line of JSON.
 */
import { runCase, type KernelRow } from '../src/bench/case.ts'
import { matmulCase, matmulForms, plainRate, type MatmulForm } from '../src/bench/matmul.ts'
import { measurePeaks } from '../src/bench/peaks.ts'
import { peakLines, tablesOf, textOf } from '../src/bench/report.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { text, wordsOf } from './words.ts'

const { values: options } = wordsOf(import.meta.filename, {
  options: {
    rows: text('1,16,32,512'),
    shapes: text('576x576,1536x576,576x1536'),
    forms: text('nt,lora,nn,tn'),
    repeats: text('3'),
  },
})
const forms = options.forms.split(',') as MatmulForm[]
for (const form of forms) if (!matmulForms.includes(form)) throw new Error(`'${form}' is none of ${matmulForms.join(', ')}`)
const timing = { repeats: Number(options.repeats), seconds: 0.2 }

const gpu = await Gpu.open()
const peaks = await measurePeaks(gpu)
const rows: KernelRow[] = []
for (const shape of options.shapes.split(',')) {
  const [n, k] = shape.split('x').map(Number)
  const plain = await plainRate(gpu, { n, k, of: shape })
  for (const form of forms) {
    for (const count of options.rows.split(',').map(Number)) {
      const row = await runCase(gpu, matmulCase(form, count, { n, k, of: shape }), peaks, timing)
      rows.push({ ...row, timesPlain: row.gflops / plain })
    }
  }
}
const { software } = gpu.facts
console.log([gpu.facts.name, ...peakLines(peaks), ...tablesOf({ rows, software }).flatMap(textOf)].join('\n'))
console.log(JSON.stringify({ adapter: gpu.facts.name, peaks, results: rows }))
gpu.close()
