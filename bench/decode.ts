/**
 * How fast does the engine generate? The quickstart's load: 32 sequences, 4 prompts of about 40 tokens shared by 8 each, 24 new tokens.
 *
 *     node bench/decode.ts [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--sequences 32] [--shared 8] [--prompt 40] [--tokens 24]
 *
 * Prints tokens a second (twice: the first round compiles kernels), what the parts of a decode step took, which kernels took it, buffers and
 * bind groups made after the first round, and one line of JSON.
 */
import { parseArgs } from 'node:util'
import { hashSeed, Random } from '../src/common/random.ts'
import type { SamplingParams } from '../src/common/types.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { Engine } from '../src/inference/engine.ts'
import { loadDecoder } from '../src/model/decoder-load.ts'
import { openModel } from '../src/model/open.ts'

const text = (value: string) => ({ type: 'string', default: value }) as const
const { values } = parseArgs({
  options: {
    model: text('models/SmolLM2-135M-Instruct.Q4_1.gguf'),
    sequences: text('32'),
    shared: text('8'),
    prompt: text('40'),
    tokens: text('24'),
    rank: text('8'),
    rounds: text('2'),
  },
})
const [sequences, shared, promptTokens, tokens, rank, rounds] = [
  values.sequences,
  values.shared,
  values.prompt,
  values.tokens,
  values.rank,
  values.rounds,
].map(Number)

const gpu = await Gpu.open()
const files = await openModel(values.model)
const targetModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
const lora = rank > 0 ? { rank, alpha: 4 * rank, dropout: 0, targetModules, seed: 0 } : undefined
const decoder = await loadDecoder(gpu, files, { round: true, lora })
const engine = new Engine(decoder, {
  maxSequences: sequences,
  maxLength: promptTokens + tokens,
  eosTokenIds: [],
  decode: () => '',
})
const sampling: SamplingParams = {
  temperature: 0.8,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  max_tokens: tokens,
  stop: [],
  stop_token_ids: [],
  seed: 0,
}

/** All requests at once; the prompts of each round are new. */
async function round(index: number, max_tokens = tokens): Promise<void> {
  const all = Array.from({ length: sequences }, (_, i) => {
    const random = new Random(hashSeed(index, Math.floor(i / shared)))
    const promptIds = Array.from({ length: promptTokens }, () => random.int(decoder.config.vocabSize))
    return engine.generate({ promptIds, sampling: { ...sampling, seed: hashSeed(index, i), max_tokens } })
  })
  await Promise.all(all)
}

const speeds: number[] = []
let [buffers, groups] = [0, 0]
for (let i = 0; i < rounds; i++) {
  ;[buffers, groups] = [gpu.pool.buffersMade, gpu.bindGroups]
  const begin = performance.now()
  await round(i)
  const seconds = (performance.now() - begin) / 1000
  speeds.push((sequences * tokens) / seconds)
  console.log(`round ${i}: ${((sequences * tokens) / seconds) | 0} tokens/s (${seconds.toFixed(2)} s, prompts included)`)
}
const made = { buffers: gpu.pool.buffersMade - buffers, bindGroups: gpu.bindGroups - groups }
console.log(`buffers made in the last round: ${made.buffers}, bind groups: ${made.bindGroups}`)

// One decode step of all sequences, by kernel: timestamps around the kernels of steps in which no prompt is computed.
const timed = round(99)
const until = async (steps: number) => {
  while (engine.stats().decodeSteps < steps) await new Promise((resolve) => setTimeout(resolve, 5))
}
await until(engine.stats().decodeSteps + 2)
const times = await gpu.profile(() => until(engine.stats().decodeSteps + Math.min(8, tokens - 6)))
await timed
const steps = times.find(({ label }) => label.startsWith('sampling/draw'))!.calls
const kernels = times.map(({ label, calls, milliseconds }) => ({
  label,
  calls: calls / steps,
  milliseconds: milliseconds / steps,
}))
const total = kernels.reduce((sum, k) => sum + k.milliseconds, 0)
const dispatches = kernels.reduce((sum, k) => sum + k.calls, 0)
console.log(`\na decode step of ${sequences} sequences: ${total.toFixed(1)} ms in ${dispatches} kernels (mean of ${steps} steps)`)
console.log('     ms     %  calls  kernel')
for (const { label, calls, milliseconds } of kernels) {
  if (milliseconds < total / 500) continue
  const share = ((100 * milliseconds) / total).toFixed(1)
  console.log(`${milliseconds.toFixed(2).padStart(7)} ${share.padStart(5)} ${calls.toFixed(0).padStart(6)}  ${label}`)
}

// A whole round without timestamps, a step of it on the clock and in CPU time (which other processes do not disturb).
const before = engine.stats().decodeSteps
const cpu = process.cpuUsage()
const begin = performance.now()
await round(100)
const stepMs = (performance.now() - begin) / (engine.stats().decodeSteps - before)
const used = process.cpuUsage(cpu)
console.log(
  `\n${stepMs.toFixed(1)} ms a step in all (prompts included); CPU time ${((used.user + used.system) / 1000 / (engine.stats().decodeSteps - before)).toFixed(1)} ms a step`,
)

const kinds: Record<string, number> = {}
for (const { label, milliseconds } of kernels) {
  const kind = label.split('/')[0]
  kinds[kind] = (kinds[kind] ?? 0) + milliseconds
}
const result = {
  bench: 'decode',
  adapter: gpu.facts.name,
  model: decoder.name,
  sequences,
  shared,
  promptTokens,
  tokens,
  tokensPerSecond: Math.round(Math.max(...speeds)),
  stepKernelMs: Number(total.toFixed(1)),
  stepMs: Number(stepMs.toFixed(1)),
  kernelMsByKind: Object.fromEntries(Object.entries(kinds).map(([kind, ms]) => [kind, Number(ms.toFixed(2))])),
  madeAfterWarmUp: made,
}
console.log(JSON.stringify(result))
await engine.close()
decoder.release()
files.close()
gpu.close()
