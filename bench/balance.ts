/**
 * How much time a software adapter's threads are idle in each dispatch: wall-clock time less processor time divided by the cores. Rates by processor time do not show it. The driver gives each of its threads
 * the same number of consecutive workgroups, so a dispatch whose last workgroups take longer than its first wastes time; and each wastes 20 to 60 us for waking the threads, and about 20 for the timestamps here.
 *
 *     node bench/balance.ts decode|prompts|lora|full [--model models/tiny] [--sequences 32] [--prompt 32] [--tokens 24] [--top 15]
 *
 * Runs the work twice, then once more to see which plans it replays; each kind of their dispatches is then replayed by itself, in the order of the layers, so that weights come from memory as they do in a step.
 * Prints milliseconds of the work by kind, most lost first, and one line of JSON.
 */
import { availableParallelism, tmpdir } from 'node:os'
import { plainSampling } from '../src/bench/data.ts'
import { modelFor } from '../src/bench/shapes.ts'
import { benchTrainer, loraOptions, randomSamples } from '../src/bench/step.ts'
import { driverSeconds } from '../src/common/cpu-time.ts'
import { Random } from '../src/common/random.ts'
import { beginWait } from '../src/gpu/cores.ts'
import { Gpu } from '../src/gpu/gpu.ts'
import { emptyPlan, fill, isEmpty, type Plan } from '../src/gpu/plan.ts'
import { Engine } from '../src/inference/engine.ts'
import { loadDecoder } from '../src/model/decoder/load.ts'
import type { Decoder } from '../src/model/decoder/decoder.ts'
import { gainsByWideVectors } from '../src/model/decoder/wide-vectors.ts'
import { rounded, text, wordsOf } from './words.ts'

const works = ['decode', 'prompts', 'lora', 'full'] as const
const { values: flags, positionals } = wordsOf(import.meta.filename, {
  allowPositionals: true,
  options: { model: text('models/tiny'), sequences: text('32'), prompt: text('32'), tokens: text('24'), top: text('15') },
})
const work = works.find((name) => name === positionals[0])
const [sequences, promptTokens, tokens, top] = [flags.sequences, flags.prompt, flags.tokens, flags.top].map(Number)
if (!work) {
  console.error(`The work is one of ${works.join(', ')}: node bench/balance.ts decode`)
  process.exit(2)
}

// Cores are kept awake all the time: the trial whether that pays would switch it on and off during the measurement, and kinds could not be compared.
process.env.DAWN_RL_AWAKE ??= '1'
const files = await modelFor(flags.model)
const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([files.config], { trains: true }) })
if (!gpu.facts.software) {
  console.error(`${gpu.facts.name} is no software adapter: it has no threads of this process that could lose anything.`)
  process.exit(2)
}
const lora = work === 'lora' ? loraOptions : undefined
const decoder = await loadDecoder(gpu, files, { round: true, full: work === 'full', lora })

/** All requests at once, each with a prompt of its own. */
function generation(model: Decoder, newTokens: number): () => Promise<void> {
  const maxLength = promptTokens + newTokens
  const engine = new Engine(model, {
    maxSequences: sequences,
    full: true,
    prefixCaching: false,
    maxLength,
    eosTokenIds: [],
    decode: () => '',
  })
  const random = new Random(0)
  const promptOf = () => Array.from({ length: promptTokens }, () => random.int(files.config.vocabSize))
  const sampling = { ...plainSampling, max_tokens: newTokens }
  const requests = () => Array.from({ length: sequences }, () => engine.generate({ promptIds: promptOf(), sampling }))
  return async () => void (await Promise.all(requests()))
}

function training(model: Decoder): () => Promise<void> {
  const size = { sequences, length: tokens }
  const trainer = benchTrainer(model, { microBatchTokens: 1024, checkpointing: false, runFolder: tmpdir() })
  const samples = randomSamples(size, files.config.vocabSize)
  let step = 0
  return async () => void (await trainer.trainStep({ step: step++, samples, lossTokenCount: sequences * tokens }))
}

const run = work === 'lora' || work === 'full' ? training(decoder) : generation(decoder, work === 'decode' ? tokens : 1)
await run()
await run()

/** Which plans were replayed, with which counts, and how often. */
const seen: { plan: Plan; counts: Record<string, number>; times: number }[] = []
const replay = gpu.replay.bind(gpu)
gpu.replay = (plan, values, section) => {
  const counts = { ...values }
  const known = seen.find((one) => one.plan === plan && JSON.stringify(one.counts) === JSON.stringify(counts))
  // The sections of a plan are replayed in turn, from the first on.
  if (!section && known) known.times++
  else if (!section) seen.push({ plan, counts, times: 1 })
  replay(plan, values, section)
}
await run()

const nobody = new Int32Array(new SharedArrayBuffer(4))
/** Wall-clock and processor milliseconds of dispatches that are replayed alone: of five runs, the one with the least idle time. */
async function alone(commands: Plan['commands']): Promise<{ ms: number; cpuMs: number }> {
  let best = { ms: Infinity, cpuMs: 0 }
  let pause = 50
  for (let i = 0; i < 6; i++) {
    const before = driverSeconds()
    const times = await gpu.profile(() => {
      replay({ ...emptyPlan(), commands })
      gpu.flush()
      // As in a run, and so that this thread uses no core meanwhile.
      const wait = beginWait()
      Atomics.wait(nobody, 0, 0, pause)
      wait.rest()
      return Promise.resolve()
    })
    const cpuMs = (driverSeconds(before).seconds * 1000) / availableParallelism()
    const ms = times.reduce((sum, { milliseconds }) => sum + milliseconds, 0)
    pause = 20 + 2 * ms
    if (i > 0 && ms - cpuMs < best.ms - best.cpuMs) best = { ms, cpuMs }
  }
  return best
}

/** Commands of a kind are repeated up to at least this number, so that the time can be measured. */
const fewest = 8
const kinds = new Map<string, { calls: number; ms: number; cpuMs: number }>()
for (const { plan, counts, times } of seen) {
  fill(plan, counts)
  const groups = new Map<string, Plan['commands']>()
  for (const command of plan.commands) {
    if (!('kernel' in command) || isEmpty(command)) continue
    const kind = `${command.workgroups.join(' x ').padEnd(14)} ${command.kernel.label}`
    groups.set(kind, [...(groups.get(kind) ?? []), command])
  }
  for (const [kind, commands] of groups) {
    const repeats = Math.ceil(fewest / commands.length)
    const { ms, cpuMs } = await alone(Array.from({ length: repeats }, () => commands).flat())
    const sum = kinds.get(kind) ?? { calls: 0, ms: 0, cpuMs: 0 }
    sum.calls += commands.length * times
    sum.ms += (ms / repeats) * times
    sum.cpuMs += (cpuMs / repeats) * times
    kinds.set(kind, sum)
  }
}

const rows = [...kinds].map(([kind, sum]) => ({ kind, ...sum, lostMs: sum.ms - sum.cpuMs }))
rows.sort((a, b) => b.lostMs - a.lostMs)
console.log('    ms  lost ms  calls  us/call  lost us/call  workgroups     kernel')
for (const { kind, calls, ms, lostMs } of rows.slice(0, top)) {
  const each = (value: number, width: number) => ((1000 * value) / calls).toFixed(0).padStart(width)
  console.log(
    `${ms.toFixed(1).padStart(6)} ${lostMs.toFixed(2).padStart(8)} ${String(calls).padStart(6)} ${each(ms, 8)} ${each(lostMs, 13)}  ${kind.slice(0, 120)}`,
  )
}
const total = (key: 'ms' | 'cpuMs' | 'lostMs' | 'calls') => rows.reduce((sum, row) => sum + row[key], 0)
const sums = { ms: total('ms'), cpuMs: total('cpuMs'), lostMs: total('lostMs'), calls: total('calls') }
console.log(`all: ${sums.ms.toFixed(1)} ms, of them lost ${sums.lostMs.toFixed(1)}, in ${sums.calls} dispatches`)
const about = { bench: 'balance', adapter: gpu.facts.name, date: new Date().toISOString().slice(0, 10), work, model: files.name }
console.log(JSON.stringify({ ...about, sequences, tokens, ...sums, rows }, rounded))
process.exit(0)
