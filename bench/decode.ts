/**
 * How fast does the engine generate? The quickstart's load: prompts of about 40 tokens, each shared by 8 sequences, 24 new tokens, at several
 * batch sizes.
 *
 *     node bench/decode.ts [--model models/SmolLM2-135M-Instruct.Q4_1.gguf] [--sequences 1,16,32] [--shared 8] [--prompt 40] [--tokens 24]
 *                          [--rank 8] [--rounds 3] [--save]
 *
 * Prints for each batch size tokens a second (prompts included, and of decode steps alone), wall, CPU and JavaScript time of a step, which kernels
 * took it, what was made after the first round, and one line of JSON. `--save` writes bench/results/decode.json.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
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

const gpu = await Gpu.open()
const files = await openModel(values.model)
const targetModules = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
const lora = rank > 0 ? { rank, alpha: 4 * rank, dropout: 0, targetModules, seed: 0 } : undefined
const decoder = await loadDecoder(gpu, files, { round: true, lora })
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
async function round(engine: Engine, sequences: number, index: number): Promise<void> {
  const all = Array.from({ length: sequences }, (_, i) => {
    const random = new Random(hashSeed(index, Math.floor(i / shared)))
    const promptIds = Array.from({ length: promptTokens }, () => random.int(decoder.config.vocabSize))
    return engine.generate({ promptIds, sampling: { ...sampling, seed: hashSeed(index, i) } })
  })
  await Promise.all(all)
}

async function until(engine: Engine, steps: number): Promise<void> {
  while (engine.stats().decodeSteps < steps) await new Promise((resolve) => setTimeout(resolve, 2))
}

const made = (): number => gpu.pool.buffersMade + gpu.readBuffersMade + gpu.bindGroups + gpu.kernels.size

/** Rounds without timestamps: the best of each figure, since other processes only take away. */
async function timed(engine: Engine, sequences: number) {
  const best = { tokensPerSecond: 0, decodeTokensPerSecond: 0, stepMs: Infinity, stepCpuMs: Infinity, stepJavaScriptMs: Infinity }
  const counts = { dispatches: 0, submits: 0, madeAfterWarmUp: 0 }
  for (let i = 0; i < rounds; i++) {
    const begin = performance.now()
    const running = round(engine, sequences, i + 1)
    // Past the prompts, which all come in the first steps, and the steps that end nothing but decode.
    await until(engine, engine.stats().decodeSteps + 2)
    const steps = engine.stats().decodeSteps
    const [wall, cpu, script] = [performance.now(), process.cpuUsage(), process.threadCpuUsage()]
    const [dispatches, submits, before] = [gpu.dispatches, gpu.submits, made()]
    await running
    const count = engine.stats().decodeSteps - steps
    const end = performance.now()
    const [allCpu, allScript] = [process.cpuUsage(cpu), process.threadCpuUsage(script)].map((t) => (t.user + t.system) / 1000)
    best.tokensPerSecond = Math.max(best.tokensPerSecond, (sequences * tokens * 1000) / (end - begin))
    best.stepMs = Math.min(best.stepMs, (end - wall) / count)
    best.stepCpuMs = Math.min(best.stepCpuMs, allCpu / count)
    best.stepJavaScriptMs = Math.min(best.stepJavaScriptMs, allScript / count)
    best.decodeTokensPerSecond = (sequences * 1000) / best.stepMs
    Object.assign(counts, { dispatches: (gpu.dispatches - dispatches) / count, submits: (gpu.submits - submits) / count })
    counts.madeAfterWarmUp = made() - before
  }
  return { ...best, ...counts }
}

/** Milliseconds of a decode step by kernel; timestamps around a kernel add some 20 us to it on a software adapter. */
async function profiled(engine: Engine, sequences: number) {
  const running = round(engine, sequences, 99)
  await until(engine, engine.stats().decodeSteps + 2)
  const times = await gpu.profile(() => until(engine, engine.stats().decodeSteps + Math.min(8, tokens - 6)))
  await running
  const steps = times.find(({ label }) => label.startsWith('sampling/draw'))!.calls
  return times.map(({ label, calls, milliseconds }) => ({ label, calls: calls / steps, milliseconds: milliseconds / steps }))
}

const rounded = (t: Record<string, number>): Record<string, number> =>
  Object.fromEntries(Object.entries(t).map(([name, value]) => [name, Number(value.toPrecision(4))]))

const results = []
for (const sequences of values.sequences.split(',').map(Number)) {
  const engine = new Engine(decoder, {
    maxSequences: sequences,
    maxLength: promptTokens + tokens,
    eosTokenIds: [],
    decode: () => '',
  })
  await round(engine, sequences, 0)
  const figures = rounded(await timed(engine, sequences))
  const kernels = gpu.facts.timestamps ? await profiled(engine, sequences) : []
  await engine.close()
  console.log(
    `\n${sequences} sequences: ${figures.tokensPerSecond} tokens/s with prompts, ${figures.decodeTokensPerSecond} without`,
  )
  console.log(
    `a step: ${figures.stepMs} ms, CPU ${figures.stepCpuMs} ms (JavaScript ${figures.stepJavaScriptMs}), ${figures.dispatches} dispatches, ` +
      `${figures.submits} submits; made after warm-up: ${figures.madeAfterWarmUp}`,
  )
  const total = kernels.reduce((sum, k) => sum + k.milliseconds, 0)
  console.log('     ms     %  calls  kernel (timed one by one)')
  const kinds: Record<string, number> = {}
  for (const { label, calls, milliseconds } of kernels) {
    const kind = label.split('/')[0]
    kinds[kind] = (kinds[kind] ?? 0) + milliseconds
    if (milliseconds < total / 200) continue
    const share = ((100 * milliseconds) / total).toFixed(1)
    console.log(`${milliseconds.toFixed(2).padStart(7)} ${share.padStart(5)} ${calls.toFixed(0).padStart(6)}  ${label}`)
  }
  results.push({ sequences, ...figures, kernelMsByKind: rounded(kinds) })
}
const about = { adapter: gpu.facts.name, date: new Date().toISOString().slice(0, 10), model: decoder.name, rank }
const result = { bench: 'decode', ...about, shared, promptTokens, tokens, results }
console.log(JSON.stringify(result))
if (values.save) writeFileSync(join(import.meta.dirname, 'results/decode.json'), `${JSON.stringify(result, undefined, 1)}\n`)
decoder.release()
files.close()
gpu.close()
