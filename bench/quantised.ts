/**
 * What does it cost to hold the layers in few bits, and what does it save? Decode steps and an optimizer step of one model in both forms, in turn.
 *
 *     node bench/quantised.ts [--model FILE.gguf|DIR|SHAPE] [--quantization gguf|q8_0] [--sequences 1,8,32] [--tokens 16] [--train 8] [--length 128] [--rounds 3]
 *       [--save]
 *
 * The least time of each counts. With `gguf` both must sample the same tokens. `--save` writes bench/results/quantised.json. Ends with one line of JSON.
 */
import { writeFileSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { plainSampling } from '../src/bench/data.ts'
import { modelFor } from '../src/bench/shapes.ts'
import { benchTrainer, loraOptions, randomSamples } from '../src/bench/step.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { Engine } from '../src/inference/engine.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import { QUANTIZATIONS, type Quantization } from '../src/model/types.ts'
import { text, wordsOf } from './words.ts'

const { values } = wordsOf(import.meta.filename, {
  options: {
    model: text('models/SmolLM2-135M-Instruct.Q4_1.gguf'),
    quantization: text('gguf'),
    sequences: text('1,8,32'),
    tokens: text('16'),
    train: text('8'),
    length: text('128'),
    rounds: text('3'),
    save: { type: 'boolean', default: false },
  },
})
const [tokens, train, length, rounds] = [values.tokens, values.train, values.length, values.rounds].map(Number)
const sequences = values.sequences.split(',').map(Number)
const quantization = values.quantization as Quantization
if (!QUANTIZATIONS.includes(quantization)) throw new Error(`--quantization is ${QUANTIZATIONS.join(' or ')}`)

const gpu = await Gpu.open()
const files = await modelFor(values.model)
const promptTokens = 8

/** The model in one form, with an engine and a trainer, and its memory. */
async function open(held: Quantization | undefined) {
  const before = gpu.pool.bytesInUse
  const decoder = await loadDecoder(gpu, files, { round: true, lora: loraOptions, quantization: held })
  const modelBytes = gpu.pool.bytesInUse - before
  const room = { maxSequences: Math.max(...sequences), maxLength: promptTokens + tokens }
  const engine = new Engine(decoder, { ...room, eosTokenIds: [], decode: () => '' })
  const trainer = benchTrainer(decoder, { microBatchTokens: 1024, checkpointing: true, learningRate: 0, runFolder: tmpdir() })
  const samples = randomSamples({ sequences: train, length }, files.config.vocabSize)
  return {
    modelBytes,
    async decode(count: number) {
      const begin = performance.now()
      const ask = (seed: number) => {
        const promptIds = Array.from({ length: promptTokens }, (_, i) => (seed * 31 + i * 7) % files.config.vocabSize)
        return engine.generate({ promptIds, sampling: { ...plainSampling, seed, max_tokens: tokens } })
      }
      const answers = await Promise.all(Array.from({ length: count }, (_, seed) => ask(seed)))
      return { ms: (performance.now() - begin) / tokens, ids: answers.map(({ ids }) => ids.join()).join(';') }
    },
    async step() {
      const begin = performance.now()
      await trainer.trainStep({ step: 1, samples, lossTokenCount: train * length })
      return { ms: performance.now() - begin, ids: '' }
    },
  }
}

const [plain, held] = [await open(undefined), await open(quantization)]
const rows: { what: string; plain: number; held: number }[] = []
for (const what of [...sequences.map((count) => `decode of ${count}`), `training step of ${train} x ${length}`]) {
  const count = Number(/^decode of (\d+)/.exec(what)?.[1])
  const run = async (one: typeof plain) => (count ? await one.decode(count) : await one.step())
  const best = { what, plain: Infinity, held: Infinity }
  // One more than is counted, as the first one compiles.
  for (let round = 0; round <= rounds; round++) {
    const [a, b] = [await run(plain), await run(held)]
    if (quantization === 'gguf' && a.ids !== b.ids) throw new Error(`${what}: other tokens than in bf16`)
    if (round > 0) [best.plain, best.held] = [Math.min(best.plain, a.ms), Math.min(best.held, b.ms)]
  }
  rows.push(best)
  console.log(
    `${what}: bf16 ${best.plain.toFixed(1)} ms, ${quantization} ${best.held.toFixed(1)} ms = ${(best.held / best.plain).toFixed(2)} x`,
  )
}
const mib = (bytes: number) => (bytes / 2 ** 20).toFixed(1)
console.log(`model and adapter: bf16 ${mib(plain.modelBytes)} MiB, ${quantization} ${mib(held.modelBytes)} MiB`)
const bytes = { plain: plain.modelBytes, held: held.modelBytes }
const about = { adapter: gpu.facts.name, cores: cpus().length, date: new Date().toISOString().slice(0, 10), model: values.model }
const result = { ...about, quantization, tokens, rounds, bytes, rows }
if (values.save) writeFileSync(new URL('results/quantised.json', import.meta.url), `${JSON.stringify(result, null, 2)}\n`)
console.log(JSON.stringify(result))
process.exit(0)
