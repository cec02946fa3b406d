/** Loads a model; prints the most memory that the process held, and what it holds now, in MB. */
import { readFileSync } from 'node:fs'
import { Gpu } from '../../src/gpu/gpu.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { openModel } from '../../src/model/files/open.ts'

const gpu = await Gpu.open()
await loadDecoder(gpu, await openModel(process.argv[2]))
const status = readFileSync('/proc/self/status', 'utf8')
const [most, now] = ['VmHWM', 'VmRSS'].map((key) => Number(new RegExp(`${key}:\\s+(\\d+)`).exec(status)![1]) / 1024)
console.log(JSON.stringify({ most, now }))
process.exit(0)
