/**
 * dawn-rl beside its peers on this machine, in one run: PyTorch with transformers and PEFT, TRL's GRPO, vLLM, torchlette.
 *
 *     node bench/peers/run.ts [--only generate,score,lora,rl,rl-tiny-lora,rl-tiny-full,matmul,small-step] [--quick] [--rounds 2]
 *                             [--torchlette DIR] [--out bench/results/peers.json]
 *
 * Sets up what is missing (SmolLM2 as a folder, .venv-bench-peers, .venv-vllm); a peer that cannot be had is skipped, and why is said. `--torchlette` is a
 * checkout of github vinhowe/torchlette with its packages (npm install --ignore-scripts); without it, torchlette is skipped.
 *
 * First both sides must agree: log-probabilities of the same ids to 1e-3, greedy answers to the token. Then each case runs in fresh processes one after
 * the other, ours, theirs, ours, theirs; a figure is the median over rounds, memory the peak of a process. float32 on both sides; our weights
 * are as stored (bf16, widened in the kernels), with a LoRA adapter of rank 8 where a run has one. About 12 minutes on 2 cores; `--quick` is smaller and
 * has one round: it shows that everything works. Prints a table and one line of JSON.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, loadavg, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { openModel } from '../../src/model/files/open.ts'
import { GROUPS, MICRO_BATCH, type Group, type Peer } from './cases.ts'
import { ChildError, runJob, type Job, type Result } from './job.ts'
import { Differences, agreement } from './same.ts'
import { rowOf, tableLines, type Row, type Side } from './table.ts'
import { wordsOf } from '../words.ts'

const root = join(import.meta.dirname, '../..')
process.chdir(root)
const MODELS = { smollm2: 'models/SmolLM2-135M-Instruct', tiny: 'models/tiny' }
const GGUF = 'models/SmolLM2-135M-Instruct.Q4_1.gguf'
const SECONDS_AT_MOST = 900
const QUESTIONS = [
  'What is the capital of France?',
  'Name a primary colour.',
  'What is the opposite of hot?',
  'How many legs does a spider have?',
  'In which country is Kyoto?',
  'What do bees make?',
  'Which planet is closest to the sun?',
  'What is the opposite of early?',
]

const { values } = wordsOf(import.meta.filename, {
  options: {
    only: { type: 'string', default: GROUPS.map(({ name }) => name).join() },
    quick: { type: 'boolean', default: false },
    rounds: { type: 'string' },
    torchlette: { type: 'string' },
    out: { type: 'string' },
  },
})
// A job leads a process group of its own: it ends with this process (job.ts), which no signal may end without its 'exit'.
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(name, () => process.exit(130))
const only = values.only.split(',')
const unknown = only.find((name) => !GROUPS.some((group) => group.name === name))
if (unknown !== undefined) {
  console.error(`--only: there is no case '${unknown}'; there are ${GROUPS.map(({ name }) => name).join(', ')}.`)
  process.exit(2)
}
const rounds = Number(values.rounds ?? (values.quick ? 1 : 2))
const begin = performance.now()
const load = loadavg()[0]
// PyTorch's threads spin while they wait for each other, so other work slows it down most.
const busy = load > availableParallelism() / 4
const say = (line: string) => console.log(`${((performance.now() - begin) / 1000).toFixed(0).padStart(5)} s  ${line}`)

/** Runs a program to its end; returns its last output if it failed. */
function setUp(program: string, ...words: string[]): string | undefined {
  const done = spawnSync(program, words, { encoding: 'utf8' })
  if (done.status === 0) return undefined
  return done.stderr?.trim().split('\n').at(-1) || `${words[0]} ended with ${done.status}`
}

const groups = GROUPS.filter(({ name }) => only.includes(name))
const missing = new Map<Peer | 'smollm2', string>()
const commands: Record<Peer, string[]> = {
  transformers: ['.venv-bench-peers/bin/python', 'bench/peers/transformers_peer.py'],
  trl: ['.venv-bench-peers/bin/python', 'bench/peers/trl_peer.py'],
  vllm: ['.venv-vllm/bin/python', 'bench/peers/vllm_peer.py'],
  torchlette: [join(values.torchlette ?? '', 'node_modules/.bin/tsx'), 'bench/peers/torchlette.ts'],
}

/** Installs what the cases need; what cannot be installed goes into `missing`. */
function prepare(): void {
  const peers = new Set(groups.flatMap((group) => group.peers))
  if (groups.some(({ model }) => model === 'smollm2') && !existsSync(join(MODELS.smollm2, 'config.json'))) {
    say(`${MODELS.smollm2} is made once`)
    const why =
      (existsSync(GGUF) ? undefined : setUp('bash', 'scripts/get-smollm2.sh')) ??
      setUp(process.execPath, 'cli.js', 'merge', '--model', GGUF, '--out', MODELS.smollm2)
    if (why) missing.set('smollm2', why)
  }
  if (peers.has('transformers') || peers.has('trl')) {
    say('PyTorch, transformers, PEFT, TRL: .venv-bench-peers')
    const why = setUp('bash', 'scripts/setup-bench-peers.sh')
    if (why) for (const peer of ['transformers', 'trl'] as const) missing.set(peer, why)
  }
  if (peers.has('vllm')) {
    say('vLLM: .venv-vllm')
    const why = setUp('bash', 'scripts/setup-vllm.sh')
    if (why) missing.set('vllm', why)
  }
  if (peers.has('torchlette')) {
    if (!values.torchlette) missing.set('torchlette', 'no checkout was given (--torchlette DIR)')
    else if (!existsSync(commands.torchlette[0]))
      missing.set('torchlette', `${values.torchlette} has no packages: run npm install --ignore-scripts there`)
  }
  for (const [what, why] of missing) say(`skipped: ${what}: ${why}`)
}

/** Ids of real text in pieces of `length`, starting over at the end of the text. */
function piecesOf(ids: number[], count: number, length: number): number[][] {
  return Array.from({ length: count }, (_, i) => Array.from({ length }, (__, j) => ids[(i * length + j) % ids.length]))
}

async function baseJob(model: keyof typeof MODELS): Promise<Omit<Job, 'work'>> {
  const files = await openModel(MODELS[model])
  const tokenizer = await files.tokenizer()
  const ids = tokenizer.encode(readFileSync('LICENSE', 'utf8'), { addSpecialTokens: false })
  files.close()
  return {
    model: MODELS[model],
    device: 'cpu',
    prompts: QUESTIONS,
    windows: piecesOf(ids, 32, 32),
    sequences: piecesOf(ids, 16, 128),
    batches: [],
    tokens: 24,
    repeats: 1,
    steps: 1,
    rollouts: 1,
    group: 1,
    lora: true,
    // Off on both sides: that is faster, and there is enough memory.
    checkpointing: false,
    microBatch: MICRO_BATCH,
    torchlette: values.torchlette,
  }
}

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-peers-'))
const ours = [process.execPath, 'bench/peers/ours.ts']
const run = (command: string[], job: Job) => runJob(command, job, folder, SECONDS_AT_MOST * 1000)

/** Compares both sides on a few prompts and sequences, and returns the adapter that we ran on. Throws where they differ. */
async function check(job: Omit<Job, 'work'>, differences: Differences): Promise<{ device: Job['device']; on: string }> {
  const small: Job = { ...job, work: 'check', prompts: QUESTIONS.slice(0, 4), sequences: job.sequences.slice(0, 4) }
  const [mine] = await run(ours, small)
  const found = { device: mine.device!, on: mine.on! }
  if (!missing.has('transformers')) {
    const [theirs] = await run(commands.transformers, { ...small, device: found.device })
    differences.compare(mine, theirs)
    say(`the same: ${differences.line()}`)
  }
  return found
}

interface Measured {
  rows: Row[]
  notes: string[]
  about: Record<string, { on?: string; threads?: number; versions?: Record<string, string> }>
}

/** All rounds of a group: ours, then each peer. A peer that fails is left out of it, and why is noted. */
async function measure(group: Group, base: Omit<Job, 'work'>, into: Measured): Promise<void> {
  const job: Job = { ...base, ...group.job, ...(values.quick ? group.quick : {}), work: group.work }
  // Each step has the same prompts; both sides only shuffle their order.
  if (group.peers.includes('trl')) job.prompts = QUESTIONS.slice(0, job.rollouts / job.group)
  const sides = new Map<string, Map<string, Side>>()
  const last = new Map<string, Result[]>()
  const failed = new Set<string>()
  for (let round = 1; round <= rounds; round++) {
    for (const name of ['ours', ...group.peers.filter((peer) => !missing.has(peer))] as const) {
      if (failed.has(name) || failed.has('ours')) continue
      try {
        const results = await run(name === 'ours' ? ours : commands[name], job)
        last.set(name, results)
        into.about[name] = { ...into.about[name], on: results[0].on, threads: results[0].threads }
        into.about[name].versions = { ...into.about[name].versions, ...results[0].versions }
        for (const result of results) add(sides, name, result)
        const figures = results.map(({ name: figure, value }) => `${figure} ${value!.toPrecision(3)}`).join(', ')
        say(`${group.name}, round ${round}, ${name}: ${figures}`)
      } catch (error) {
        if (!(error instanceof ChildError)) throw error
        failed.add(name)
        into.notes.push(`${group.name}: ${name} gave no figure: ${error.message}`)
        say(into.notes.at(-1)!)
      }
    }
  }
  for (const peer of group.peers) {
    for (const [figure, targets] of Object.entries(group.targets)) {
      const [mine, theirs] = [sides.get('ours')?.get(figure), sides.get(peer)?.get(figure)]
      if (mine && theirs && !failed.has(peer)) into.rows.push(rowOf(figure, peer, targets[peer]!, mine, theirs))
    }
    const note = last.has('ours') && last.has(peer) && agreement(last.get('ours')!, last.get(peer)!)
    if (note) into.notes.push(`${group.name}, ${peer}: ${note}`)
  }
}

function add(sides: Map<string, Map<string, Side>>, name: string, result: Result): void {
  const figures = sides.get(name) ?? new Map<string, Side>()
  const side = figures.get(result.name) ?? { values: [], peakBytes: [], generation: [] }
  side.values.push(result.value!)
  side.peakBytes.push(result.peakBytes)
  if (result.generation !== undefined) side.generation.push(result.generation)
  sides.set(name, figures.set(result.name, side))
}

try {
  prepare()
  const measured: Measured = { rows: [], notes: [...missing].map(([what, why]) => `${what} is skipped: ${why}`), about: {} }
  const possible = groups.filter(({ model }) => model === 'tiny' || !missing.has('smollm2'))
  const models = [...new Set(possible.map(({ model }) => model))]
  const differences = new Differences()
  const bases = new Map<string, Omit<Job, 'work'>>()
  let adapter = ''
  for (const model of models) {
    const base = await baseJob(model)
    const { device, on } = await check(base, differences)
    bases.set(model, { ...base, device })
    adapter = on
  }
  for (const group of possible) await measure(group, bases.get(group.model)!, measured)

  console.log(
    `\n${adapter}; ${rounds} rounds${values.quick ? ', quick' : ''}; load before: ${load.toFixed(1)}${busy ? ': THE MACHINE WAS BUSY, compare nothing' : ''}`,
  )
  for (const line of tableLines(measured.rows)) console.log(line)
  for (const { name, oursGeneration, theirsGeneration } of measured.rows) {
    if (oursGeneration === null || theirsGeneration === null) continue
    console.log(
      `${name}: of a step, generation took ours ${oursGeneration.toFixed(2)} s, theirs ${theirsGeneration.toFixed(2)} s`,
    )
  }
  for (const note of measured.notes) console.log(note)
  const seconds = Math.round((performance.now() - begin) / 1000)
  const machine = { adapter, cores: availableParallelism(), load, busy, date: new Date().toISOString().slice(0, 10) }
  const summary = { bench: 'peers', ...machine, quick: values.quick, rounds, seconds, same: differences.worst, ...measured }
  console.log(JSON.stringify(summary))
  if (values.out) {
    mkdirSync(dirname(values.out), { recursive: true })
    writeFileSync(values.out, `${JSON.stringify(summary, undefined, 1)}\n`)
  }
} catch (error) {
  if (!(error instanceof ChildError)) throw error
  console.error(error.message)
  process.exitCode = 1
} finally {
  rmSync(folder, { recursive: true, force: true })
}
