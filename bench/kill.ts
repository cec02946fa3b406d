/**
 * Kills training runs, resumes them, and compares the results with runs that were never killed (bench/kill-runs.ts).
 *
 *     node bench/kill.ts --kills 1000 [--async 0|1] [--seed S] [--parallel N] [--only TRIAL] [--keep DIR] [--out bench/results/kills.json]
 *
 * With max_async_level 0 metrics, rollouts, adapters and optimizer must be equal to the bit; with 1 the tasks, groups and counts, and no rollout
 * may be there twice. A difference is printed, its run is kept, and the exit code is 1; --seed and --only repeat the same kills (what they
 * hit depends on the machine's speed). Figures are added to those in the --out file. On a shared machine start it with `nice`.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { hashSeed, Random } from '../src/common/random.ts'
import { drawKill, KINDS, KillRuns, type Left, type Trial } from './kill-runs.ts'
import { wordsOf } from './words.ts'

/** The most kills of one run. */
const MOST = 12

interface Chunk {
  date: string
  seed: number
  max_async_level: number
  runs: number
  kills: number
  kills_by_instant: Record<string, number>
  /** Kills before the first checkpoint was there, while one was written or deleted, with a row cut off, with a file aside. */
  before_first_checkpoint: number
  half_saved: number
  cut_row: number
  file_aside: number
  most_kills_of_a_run: number
  kinds: Record<string, number>
  differences: string[]
  minutes: number
}

const { values } = wordsOf(import.meta.filename, {
  options: {
    kills: { type: 'string', default: '100' },
    async: { type: 'string', default: '0' },
    seed: { type: 'string', default: String(Date.now() % 1e6) },
    parallel: { type: 'string', default: '1' },
    only: { type: 'string' },
    keep: { type: 'string' },
    out: { type: 'string' },
  },
})
const [target, asyncLevel, seed, parallel] = [values.kills, values.async, values.seed, values.parallel].map(Number)
const dir = values.keep ?? mkdtempSync(join(tmpdir(), 'dawn-rl-kill-'))
const runs = new KillRuns(dir, { asyncLevel })
await runs.prepare()
const trials: Trial[] = []
const begin = performance.now()
const killsOf = (all: Trial[]): Left[] => all.flatMap((trial) => trial.kills)

/** Everything about a trial follows from its number. */
async function play(number: number): Promise<void> {
  const random = new Random(hashSeed(seed, asyncLevel, number))
  const kind = KINDS[number % KINDS.length]
  const trial = await runs.trial(kind, `killed ${number}`, 2 + random.int(MOST - 1), (seconds) => drawKill(random, seconds))
  trials.push(trial)
  const total = killsOf(trials).length
  const hits = trial.kills.map(({ how, rows, checkpoint }) => `${how}@${rows}/${checkpoint}`).join(' ')
  console.log(
    `${trial.differences.length ? 'DIFFERENT' : 'same'} run ${number} (${trial.kind}): ${trial.kills.length} kills [${hits}], ${trial.seconds.toFixed(0)}s | ${total} of ${target} kills`,
  )
  if (trial.differences.length === 0) rmSync(trial.folder, { recursive: true, force: true })
  else for (const text of [...trial.differences.slice(0, 12), `kept: ${trial.folder}`]) console.log(`  ${text}`)
}

let next = 0
async function worker(): Promise<void> {
  while (killsOf(trials).length < target) await play(next++)
}

if (values.only !== undefined) await play(Number(values.only))
else await Promise.all(Array.from({ length: parallel }, worker))

const kills = killsOf(trials)
const count = (test: (left: Left) => boolean) => kills.filter(test).length
const tally = (names: string[]) =>
  Object.fromEntries([...Map.groupBy(names, (name) => name)].map(([name, all]) => [name, all.length]))
const chunk: Chunk = {
  date: new Date().toISOString(),
  seed,
  max_async_level: asyncLevel,
  runs: trials.length,
  kills: kills.length,
  kills_by_instant: tally(kills.map(({ how }) => how)),
  before_first_checkpoint: count(({ checkpoint }) => checkpoint === 0),
  half_saved: count(({ halfSaved }) => halfSaved),
  cut_row: count(({ cutRow }) => cutRow),
  file_aside: count(({ aside }) => aside),
  most_kills_of_a_run: Math.max(0, ...trials.map((trial) => trial.kills.length)),
  kinds: tally(trials.map(({ kind }) => kind)),
  differences: trials.flatMap(({ folder, differences }) => differences.map((text) => `${folder}: ${text}`)),
  minutes: (performance.now() - begin) / 60_000,
}
console.log(JSON.stringify(chunk, null, 1))
if (values.out) {
  const chunks = existsSync(values.out) ? (JSON.parse(readFileSync(values.out, 'utf8')) as { chunks: Chunk[] }).chunks : []
  chunks.push(chunk)
  const total = { kills: 0, runs: 0, differences: 0 }
  for (const one of chunks) {
    total.kills += one.kills
    total.runs += one.runs
    total.differences += one.differences.length
  }
  writeFileSync(values.out, `${JSON.stringify({ total, chunks }, null, 1)}\n`)
}
const failed = chunk.differences.length > 0
if (!failed && !values.keep) rmSync(dir, { recursive: true, force: true })
process.exit(failed ? 1 : 0)
