/**
 * What this adapter can do at best, measured (src/bench/peaks.ts): multiply-adds in registers, matrix units where there are some, and a copy.
 *
 *     node bench/peaks.ts
 *
 * On a software adapter each figure is printed twice: by wall-clock time, and by the processor time of the driver's threads divided by the cores, which
 * is what an idle machine would reach.
 */
import { measurePeaks } from '../src/bench/peaks.ts'
import { peakLines } from '../src/bench/report.ts'
import { Gpu } from '../src/gpu/gpu.ts'

const gpu = await Gpu.open()
const peaks = await measurePeaks(gpu)
console.log([gpu.facts.name, ...peakLines(peaks)].join('\n'))
console.log(JSON.stringify({ adapter: gpu.facts.name, peaks }))
gpu.close()
