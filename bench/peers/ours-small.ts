/** Our side of the comparison with torchlette: one product, and a full training step of a small decoder. */
import { hashSeed, Random } from '../../src/common/random.ts'
import type { TrainingSample } from '../../src/common/types.ts'
import { releaseWeight, uploadWeight } from '../../src/kernels/common/weight.ts'
import { linear } from '../../src/kernels/matmul/matmul.ts'
import { loadDecoder, type ModelTensors } from '../../src/model/decoder/load.ts'
import { madeTensors } from '../../src/model/decoder/shapes.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { MATMUL, SMALL } from './cases.ts'
import { secondsOf, type Bench } from './ours-shared.ts'
import { supervisedTrainer } from './ours-trainer.ts'

/** Products recorded before one wait, so that the wait is a small part of the time. */
const CALLS = 8

/** GFLOP/s of rows x k times k x columns in float32, of a weight in bf16. */
export async function matmul({ job, gpu, report }: Bench): Promise<void> {
  const { rows, k, columns } = MATMUL
  const random = new Random(1)
  const fresh = (length: number) => Float32Array.from({ length }, () => random.next() - 0.5)
  // A weight as models have it, in bf16.
  const bits = Uint16Array.from({ length: columns * k }, () => 0x3c00 + random.int(256))
  const weight = uploadWeight(gpu, 'w', columns, k, bits)
  const x = gpu.upload(fresh(rows * k), 'x')
  const y = gpu.pool.acquire(rows * columns * 4, 'y')
  const seconds = await secondsOf(async () => {
    for (let i = 0; i < CALLS; i++) {
      // As if x had just been computed: a copy that was staged of it is not used again.
      x.writes++
      linear(gpu, x, rows, weight, y)
    }
    await gpu.sync('matmul')
  }, job.repeats)
  report({ name: 'matmul', value: (2 * CALLS * rows * k * columns) / seconds / 1e9 })
  for (const buffer of [x, y]) buffer.release()
  releaseWeight(weight)
}

/** A Qwen3 with random weights, of the layers, width and heads that torchlette's GPT-2 has. */
function smallModel(): ModelTensors {
  const { layers, width, heads, vocabulary, tokens } = SMALL
  const config: ModelConfig = {
    family: 'qwen3',
    hiddenSize: width,
    // Three matrices where GPT-2 has two of 4 x width: a little more to compute.
    intermediateSize: 3 * width,
    layers,
    heads,
    kvHeads: heads,
    headDim: width / heads,
    vocabSize: vocabulary,
    rmsNormEps: 1e-6,
    ropeTheta: 10_000,
    ropeScaling: { type: 'default' },
    tieWordEmbeddings: true,
    qkvBias: false,
    outputBias: false,
    qkNorm: true,
    maxPositionEmbeddings: tokens,
    eosTokenIds: [],
    bosTokenId: null,
    padTokenId: null,
  }
  const tensors = madeTensors(config, (name, shape) => {
    const random = new Random(hashSeed('small', name))
    const data = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () =>
      shape.length === 1 ? 1 : random.normal() * 0.02,
    )
    return { dtype: 'f32', shape, data }
  })
  return { name: 'small', config, tensors }
}

/** Seconds of a step of full training with AdamW. */
export async function smallStep({ job, gpu, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, smallModel(), { full: true })
  const { sequences, tokens, vocabulary } = SMALL
  const trainer = supervisedTrainer(decoder, sequences * tokens, false)
  const random = new Random(2)
  // One token more than the inputs: the last one is only predicted.
  const samples = Array.from({ length: sequences }, (): TrainingSample => {
    const lossMask = new Uint8Array(tokens + 1).fill(1, 1)
    const ids = Int32Array.from({ length: tokens + 1 }, () => random.int(vocabulary))
    return { ids, lossMask, inferenceLogprobs: new Float32Array(tokens + 1), advantages: Float32Array.from(lossMask) }
  })
  const losses: number[] = []
  const seconds = await secondsOf(async () => {
    const { metrics } = await trainer.trainStep({ step: losses.length + 1, samples, lossTokenCount: sequences * tokens })
    losses.push(metrics['loss/mean']!)
  }, job.repeats)
  report({ name: 'small step', value: seconds, losses })
}
