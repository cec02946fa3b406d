/**
 * What do training and generation cost each other on one device? An optimizer step and the rollouts of a step, each alone, then both at once.
 *
 *     node bench/share.ts [--model tiny|smollm2-135m|DIR] [--sequences 16] [--length 96] [--turns 3] [--tokens 12] [--waits 0,2] [--rounds 3] [--save]
 *
 * A rollout has turns: `tokens` new tokens each, and after each turn the environment takes `waits` seconds (0: it never waits, so both are bound by the device).
 * Where the environment waits, both at once should take little more than the longer one (aim: 1.1 x); where it does not, no more than their sum (1.02 x).
 * `--save` writes bench/results/share.json. Ends with one line of JSON.
 */
import { writeFileSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { benchTrainer, loraOptions, randomSamples } from '../src/bench/step.ts'
import { plainSampling } from '../src/bench/data.ts'
import { modelFor } from '../src/bench/shapes.ts'
import type { TrainingBatch } from '../src/common/types.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { Engine } from '../src/inference/engine.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import { text, wordsOf } from './words.ts'

const { values } = wordsOf(import.meta.filename, {
  options: {
    model: text('smollm2-135m'),
    sequences: text('16'),
    length: text('96'),
    turns: text('3'),
    tokens: text('12'),
    waits: text('0,2'),
    rounds: text('3'),
    save: { type: 'boolean', default: false },
  },
})
const [sequences, length, turns, tokens, rounds] = [
  values.sequences,
  values.length,
  values.turns,
  values.tokens,
  values.rounds,
].map(Number)

const gpu = await Gpu.open()
const files = await modelFor(values.model)
const decoder = await loadDecoder(gpu, files, { round: true, lora: loraOptions })
const engine = new Engine(decoder, { maxSequences: sequences, maxLength: 32 + turns * tokens, eosTokenIds: [], decode: () => '' })
const trainer = benchTrainer(decoder, {
  microBatchTokens: 2048,
  checkpointing: true,
  learningRate: 1e-5,
  runFolder: join(tmpdir(), 'dawn-rl-bench'),
})
const samples = randomSamples({ sequences, length }, files.config.vocabSize)
const batch: TrainingBatch = { step: 1, samples, lossTokenCount: sequences * length }

const train = async (): Promise<void> => void (await trainer.trainStep(batch))
/** Rollouts whose turns end one after the other, as an environment's do: each waits for its own. */
const sample = async (wait: number): Promise<void> => {
  const rollout = async (seed: number): Promise<void> => {
    const promptIds = [...samples[seed].ids.subarray(0, 24)]
    for (let turn = 0; turn < turns; turn++) {
      const request = { promptIds, sampling: { ...plainSampling, temperature: 1, max_tokens: tokens, seed } }
      promptIds.push(...(await engine.generate(request)).ids)
      // From half to one and a half of the wait, the same in every round.
      if (wait > 0) await sleep(wait * 1000 * (0.5 + seed / sequences))
    }
  }
  await Promise.all(samples.map((_, seed) => rollout(seed)))
}
const seconds = async (...work: (() => Promise<void>)[]): Promise<number> => {
  const begin = performance.now()
  await Promise.all(work.map((fn) => fn()))
  return (performance.now() - begin) / 1000
}

await train()
await sample(0)
const rows = []
for (const wait of values.waits.split(',').map(Number)) {
  const all: { train: number; sample: number; both: number }[] = []
  for (let round = 0; round < rounds; round++) {
    all.push({
      train: await seconds(train),
      sample: await seconds(() => sample(wait)),
      both: await seconds(train, () => sample(wait)),
    })
  }
  const median = (of: (r: (typeof all)[number]) => number) => all.map(of).toSorted((a, b) => a - b)[Math.floor(all.length / 2)]
  const ofLonger = median((r) => r.both / Math.max(r.train, r.sample))
  const ofSum = median((r) => r.both / (r.train + r.sample))
  const row = {
    wait,
    train: median((r) => r.train),
    sample: median((r) => r.sample),
    both: median((r) => r.both),
    ofLonger,
    ofSum,
  }
  rows.push(row)
  const s = (n: number) => n.toFixed(2)
  console.log(
    `environment waits ${wait} s: train ${s(row.train)} s, sample ${s(row.sample)} s, both ${s(row.both)} s = ${s(ofLonger)} x the longer, ${s(ofSum)} x the sum`,
  )
}
const report = { adapter: gpu.facts.name, cores: cpus().length, date: new Date().toISOString().slice(0, 10), model: files.name, sequences, length, turns, tokens, rounds, rows } // prettier-ignore
if (values.save) writeFileSync(new URL('results/share.json', import.meta.url), `${JSON.stringify(report, null, 2)}\n`)
console.log(JSON.stringify(report))
await engine.close()
trainer.release()
decoder.release()
gpu.close()
