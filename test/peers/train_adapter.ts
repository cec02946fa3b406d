/**
 * Trains an adapter for a few steps and saves it as a run does, for test_adapter.py to load in PEFT.
 *
 *     node test/peers/train_adapter.ts --model REF --batch batch.json --out DIR [--steps 3] [--rank 8] [--base DIR]
 *
 * The adapter is DIR/step_<steps>. `--base` also writes the model itself as a Hugging Face folder: for PEFT, which reads no GGUF.
 */
import { parseArgs } from 'node:util'
import { Gpu } from '../../src/gpu/gpu.ts'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { writeModelFolder } from '../../src/model/files/export.ts'
import { openModel } from '../../src/model/files/open.ts'
import { adapterModules, LINEAR_MODULES } from '../../src/model/decoder/shapes.ts'
import { saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { Trainer } from '../../src/trainer/trainer.ts'

const text = { type: 'string' } as const
const { values } = parseArgs({
  options: { model: text, batch: text, out: text, base: text, steps: { ...text, default: '3' }, rank: { ...text, default: '8' } },
})
const files = await openModel(values.model!)
const tokenizer = await files.tokenizerOrNull()
if (values.base) {
  const tensors = files.tensors.names().map((name) => {
    const { tensors: source } = files
    return { name, dtype: 'bf16' as const, shape: source.shape(name), read: () => source.read(name, { round: true }) }
  })
  await writeModelFolder(values.base, { rawConfig: files.rawConfig(), tensors, tokenizer })
}
const [steps, rank] = [Number(values.steps), Number(values.rank)]
const samples = await readBatch(values.batch!)
const lossTokenCount = samples.reduce((sum, s) => sum + s.lossMask.reduce((a, b) => a + b, 0), 0)
const gpu = await Gpu.open()
const targetModules = adapterModules(files.config, LINEAR_MODULES)
const decoder = await loadDecoder(gpu, files, { lora: { rank, alpha: 2 * rank, dropout: 0.05, targetModules, seed: 1 } })
const trainer = new Trainer(decoder, {
  loss: await loadLoss('cispo', { mask_ratio_low: 0.125, mask_ratio_high: 8 }),
  temperature: 1,
  microBatchTokens: 256,
  checkpointing: true,
  // Large, so that a few steps change the log-probabilities well above the bound of the comparison.
  optimizer: { beta1: 0.9, beta2: 0.999, eps: 1e-8, weightDecay: 0.01, maxGradNorm: 1 },
  schedule: { type: 'constant', learningRate: 0.005, warmupSteps: 0, maxSteps: steps },
  seed: 1,
  runFolder: values.out!,
})
for (let step = 1; step <= steps; step++) {
  const { metrics, skipped } = await trainer.trainStep({ step, samples, lossTokenCount })
  if (skipped) throw new Error(`step ${step} was skipped: ${JSON.stringify(metrics)}`)
}
const lora = { r: rank, loraAlpha: 2 * rank, loraDropout: 0.05, targetModules, useRslora: false, baseModel: null }
const dir = await saveCheckpoint(values.out!, trainer, { lora, rawConfig: files.rawConfig(), tokenizer }, { keep: { last: 1 } })
console.log(dir)
process.exit(0)
