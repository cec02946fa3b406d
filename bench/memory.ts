/**
 * How many bytes does a training micro-batch take beside the weights? It must grow linearly in tokens: never tokens x tokens (attention) nor
 * tokens x vocabulary (head).
 *
 *     node bench/memory.ts [--models tiny,models/SmolLM2-135M-Instruct.Q4_1.gguf] [--tokens 512,700,1024,1500,2048,3000,4096,6000,8192]
 *                          [--real-tokens 256,400,512,1024] [--sequence 512] [--out bench/results/memory.json]
 *
 * For each model, with and without gradient checkpointing: the peak of bytes in use over a forward and backward pass (LoRA of rank 8 on all
 * linear layers, one packed micro-batch of sequences, every token but the first of each counted by the loss), less what is held before. The line
 * through the points, its worst deviation (buffers are rounded up by up to 14%), and what is still held afterwards. `tiny` is a Qwen3 of 1M
 * random weights (src/bench/shapes.ts). The peak is counted, not timed, so load on the machine does not change it.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { modelFor } from '../src/bench/shapes.ts'
import { loraOptions } from '../src/bench/step.ts'
import { hashSeed, Random } from '../src/common/random.ts'
import type { TrainingSample } from '../src/common/types.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import type { Decoder } from '../src/model/decoder/decoder.ts'
import { accumulateGradients } from '../src/trainer/gradients.ts'
import { loadLoss } from '../src/trainer/losses/index.ts'
import { text, wordsOf } from './words.ts'

const { values } = wordsOf(import.meta.filename, {
  options: {
    models: text('tiny,models/SmolLM2-135M-Instruct.Q4_1.gguf'),
    tokens: text('512,700,1024,1500,2048,3000,4096,6000,8192'),
    'real-tokens': text('256,400,512,1024'),
    sequence: text('512'),
    out: text('bench/results/memory.json'),
  },
})
const numbers = (list: string) => list.split(',').map(Number)
const sequence = Number(values.sequence)

/** Sequences of `sequence` tokens, the last one shorter, that take `tokens` rows together (a last token has no row). */
function samplesOf(tokens: number, vocabulary: number): TrainingSample[] {
  const random = new Random(hashSeed('samples', tokens))
  const samples: TrainingSample[] = []
  for (let left = tokens; left > 0; left -= sequence) {
    const length = Math.min(sequence, left) + 1
    samples.push({
      ids: Int32Array.from({ length }, () => random.int(vocabulary)),
      lossMask: new Uint8Array(length).fill(1, 1),
      inferenceLogprobs: new Float32Array(length).fill(-5),
      advantages: Float32Array.from({ length }, () => random.normal()),
    })
  }
  return samples
}

interface Point {
  tokens: number
  bytes: number
  /** Bytes in use afterwards less those before: 0. */
  left: number
  seconds: number
}

async function measure(gpu: Gpu, decoder: Decoder, tokens: number, checkpointing: boolean): Promise<Point> {
  const samples = samplesOf(tokens, decoder.config.vocabSize)
  const loss = await loadLoss('cispo', { mask_ratio_low: 0.125, mask_ratio_high: 8 })
  decoder.rotary.table(sequence + 1)
  const before = gpu.pool.bytesInUse
  gpu.pool.peakBytes = before
  const start = performance.now()
  const batch = { step: 0, samples, lossTokenCount: tokens }
  const result = await accumulateGradients(decoder, batch, { loss, temperature: 1, checkpointing, microBatchTokens: tokens })
  if (result.microBatches !== 1 || result.rows !== tokens)
    throw new Error(`${result.rows} rows in ${result.microBatches} micro-batches`)
  const point = {
    tokens,
    bytes: gpu.pool.peakBytes - before,
    left: gpu.pool.bytesInUse - before,
    seconds: (performance.now() - start) / 1000,
  }
  gpu.pool.trim()
  return point
}

/** Least squares: bytes = base + perToken * tokens, and the largest |bytes - line| / line. */
function fit(points: Point[]): { base: number; perToken: number; worstDeviation: number } {
  const mean = (f: (p: Point) => number) => points.reduce((sum, p) => sum + f(p), 0) / points.length
  const [x, y] = [mean((p) => p.tokens), mean((p) => p.bytes)]
  const perToken = mean((p) => (p.tokens - x) * (p.bytes - y)) / mean((p) => (p.tokens - x) ** 2)
  const base = y - perToken * x
  const worstDeviation = Math.max(...points.map((p) => Math.abs(p.bytes / (base + perToken * p.tokens) - 1)))
  return { base, perToken, worstDeviation }
}

const gpu = await Gpu.open()
const report: object[] = []
for (const ref of values.models.split(',')) {
  const files = await modelFor(ref)
  const decoder = await loadDecoder(gpu, files, { round: true, lora: loraOptions })
  files.tensors.close()
  const { vocabSize, layers, hiddenSize } = files.config
  console.log(
    `\n${files.name}: ${layers} layers of ${hiddenSize}, vocabulary ${vocabSize}; weights and adapter ${mib(gpu.pool.bytesInUse)} MiB`,
  )
  for (const checkpointing of [false, true]) {
    console.log(
      `${checkpointing ? 'with' : 'without'} gradient checkpointing\n${'tokens'.padStart(8)}${'MiB'.padStart(10)}${'bytes/token'.padStart(14)}${'s'.padStart(8)}`,
    )
    const points: Point[] = []
    for (const tokens of numbers(ref === 'tiny' ? values.tokens : values['real-tokens'])) {
      const point = await measure(gpu, decoder, tokens, checkpointing)
      points.push(point)
      const cells = [
        String(tokens).padStart(8),
        mib(point.bytes).padStart(10),
        String(Math.round(point.bytes / tokens)).padStart(14),
      ]
      console.log(
        `${cells.join('')}${point.seconds.toFixed(1).padStart(8)}${point.left === 0 ? '' : `  ${point.left} bytes are left over`}`,
      )
    }
    const line = fit(points)
    console.log(
      `${mib(line.base)} MiB + ${Math.round(line.perToken)} bytes a token; worst deviation ${(100 * line.worstDeviation).toFixed(1)}%`,
    )
    report.push({ model: files.name, layers, hiddenSize, vocabSize, checkpointing, sequence, points, ...line })
  }
  decoder.release()
}
const { name } = gpu.facts
const summary = { bench: 'memory', adapter: name, node: process.version, report }
mkdirSync(dirname(values.out), { recursive: true })
writeFileSync(values.out, `${JSON.stringify(summary, null, 1)}\n`)
console.log(`\n${JSON.stringify(summary)}`)
gpu.close()
process.exit(0)

function mib(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(1)
}
