/**
 * How fast does the engine generate? The quickstart's load: prompts of about 40 tokens, each shared by 8 sequences, 24 new tokens, at several
 * batch sizes.
 *
 *     node bench/decode.ts [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--sequences 1,16,32] [--shared 8] [--prompt 40] [--tokens 24]
 *                          [--rank 8] [--rounds 3] [--save]
 *
 * The measurement is that of `node cli.js bench decode` (src/bench/decode.ts); here prompts, tokens and rank can be chosen. Prints for each batch size
 * tokens a second (prompts included, and of decode steps alone), wall, CPU and JavaScript time of a step, which kernels took it, what was made after the
 * first round, and one line of JSON. `--save` writes bench/results/decode.json.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { benchDecode, type DecodeRow } from '../src/bench/decode.ts'
import { measurePeaks } from '../src/bench/peaks.ts'
import { modelFor } from '../src/bench/shapes.ts'
import { loraOptions } from '../src/bench/step.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import { gainsByWideVectors } from '../src/model/decoder/wide-vectors.ts'
import { rounded, text, wordsOf } from './words.ts'

const { values } = wordsOf(import.meta.filename, {
  options: {
    model: text('models/SmolLM2-135M-Instruct.Q4_1.gguf'),
    sequences: text('1,16,32'),
    shared: text('8'),
    prompt: text('40'),
    tokens: text('24'),
    rank: text('8'),
    rounds: text('3'),
    save: { type: 'boolean', default: false },
  },
})
const [shared, promptTokens, tokens, rank, rounds] = [
  values.shared,
  values.prompt,
  values.tokens,
  values.rank,
  values.rounds,
].map(Number)

const files = await modelFor(values.model)
const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([files.config], { trains: true }) })
const peaks = await measurePeaks(gpu)
const lora = rank > 0 ? { ...loraOptions, rank, alpha: 4 * rank } : undefined
const decoder = await loadDecoder(gpu, files, { round: true, lora })

const results: DecodeRow[] = []
for (const sequences of values.sequences.split(',').map(Number)) {
  const row = await benchDecode(decoder, { sequences, shared, promptTokens, tokens }, peaks, rounds)
  results.push(row)
  const figure = (value: number): string => value.toPrecision(4)
  console.log(
    `\n${sequences} sequences: ${figure(row.tokensPerSecond)} tokens/s with prompts, ${figure(row.decodeTokensPerSecond)} without`,
  )
  console.log(
    `a step: ${figure(row.stepMs)} ms, CPU ${figure(row.stepCpuMs)} ms (JavaScript ${figure(row.stepJavaScriptMs)}), ${row.dispatches.toFixed(0)} dispatches, ` +
      `${row.submits.toFixed(0)} submits; made after warm-up: ${row.madeAfterWarmUp}`,
  )
  if (!row.kernels) continue
  console.log('     ms     %  calls  kernel (timed one by one)')
  for (const { label, calls, ms, share } of row.kernels.longest) {
    console.log(`${ms.toFixed(2).padStart(7)} ${(100 * share).toFixed(1).padStart(5)} ${calls.toFixed(0).padStart(6)}  ${label}`)
  }
}
const about = { adapter: gpu.facts.name, date: new Date().toISOString().slice(0, 10), model: decoder.name, rank }
const result = { bench: 'decode', ...about, shared, promptTokens, tokens, results }
console.log(JSON.stringify(result, rounded))
if (values.save) writeFileSync(join(import.meta.dirname, 'results/decode.json'), `${JSON.stringify(result, rounded, 1)}\n`)
decoder.release()
files.tensors.close()
gpu.close()
