/**
 * Plays the examples of one environment against one model, and writes the results in verifiers' format:
 *
 *   outputs/evals/<env>--<model>/<8 hex digits>/results.jsonl    one row for each answer, with the keys of RolloutOutput
 *                                               metadata.json    settings, averages, pass@k
 *
 * An example's answers are written together when all of them are there, so a killed evaluation has whole examples; `resume` plays the others,
 * and those with an answer that failed.
 */
import { randomBytes } from 'node:crypto'
import { appendFileSync, existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { makeFolder } from '../common/folders.ts'
import { hashSeed } from '../common/random.ts'
import type { ChatClient, Rollout } from '../common/types.ts'
import { runRollout, scoreGroup, type Row } from '../environments/index.ts'
import { mean, reaches } from '../monitor/aggregate.ts'
import { writeFileAtomic } from '../common/atomic.ts'
import { readJsonLines } from '../monitor/files.ts'
import { rolloutRow, type RolloutRow } from '../monitor/rollout-writer.ts'
import { gateOf, type Flight } from '../orchestrator/flights.ts'
import { Meter, Slots } from '../orchestrator/slots.ts'
import type { EvalEnvironment, EvalOptions, EvalPlan } from './eval-plan.ts'
import { passAllK, passKs, type EvalScore } from './eval-score.ts'
import type { EvalTarget } from './eval-targets.ts'
import { unwritten } from './out-file.ts'
import { versionOf } from './version.ts'

interface EvalWork {
  target: EvalTarget
  environment: EvalEnvironment
  plan: EvalPlan
  options: EvalOptions
}

/** The folder of one environment against one model. */
interface EvalFolder {
  path: string
  /** Rows of the examples that are complete. */
  done: RolloutRow[]
}

/** The settings that the rows depend on: an evaluation with the same settings can be resumed. */
function settingsOf({ target, environment, plan, options }: EvalWork): Record<string, unknown> {
  const { seed: _, ...sampling } = plan.sampling
  const { kwargs = {}, python } = environment.load ?? {}
  return {
    env_id: environment.name,
    env_args: environment.args,
    // Absent if none is set, as in evaluations from before this key existed.
    extra_env_kwargs: Object.keys(kwargs).length > 0 ? kwargs : undefined,
    python_path: typeof python === 'string' ? resolve(python) : undefined,
    model: target.model,
    base_url: target.baseUrl ?? null,
    num_examples: environment.rows.length,
    rollouts_per_example: environment.k,
    shuffle: !!options.shuffle,
    shuffle_seed: options.shuffle ? options.seed : null,
    sampling_args: { ...sampling, ...plan.extra },
    pass_threshold: options.solvedAt,
    seed: options.seed,
    split: options.split,
    max_seq_len: plan.maxSeqLen ?? null,
    trajectory_strategy: plan.strategy,
    tool_call_parser: plan.toolCallParser,
    quantization: plan.source.kind === 'endpoint' ? undefined : plan.source.quantization,
    base: baseOf(plan.source),
  }
}

/** What `model` does not tell: the model below an adapter, and which of two runs with the same name. */
function baseOf(source: EvalPlan['source']): string | undefined {
  if (source.kind === 'run') return resolve(source.dir)
  return source.kind === 'model' && source.adapter !== undefined ? source.model : undefined
}

/** The most characters of a name within a folder's name, which file systems limit to 255. Of a longer name the end is kept, which says more. */
const MOST_OF_NAME = 120

const safe = (text: string): string => text.replace(/^[./\\]+/u, '').replace(/[/\\]+/gu, '--').replace(/[^\w.@+=-]+/gu, '-').slice(-MOST_OF_NAME) // prettier-ignore

/** Makes the folder, or with `resume` takes the newest one with the same settings. Says so where only evaluations with other settings are there. */
export function openEvalFolder(work: EvalWork): EvalFolder {
  const root = join(work.options.outputDir, `${safe(work.environment.name)}--${safe(work.target.model)}`)
  const settings = settingsOf(work)
  if (work.options.resume && existsSync(root)) {
    const there = readdirSync(root)
      .map((name) => join(root, name))
      .filter((path) => existsSync(join(path, 'metadata.json')))
      .toSorted((a, b) => statSync(join(b, 'metadata.json')).mtimeMs - statSync(join(a, 'metadata.json')).mtimeMs)
      .map((path) => ({ path, others: otherSettings(join(path, 'metadata.json'), settings) }))
    const same = there.find(({ others }) => others.length === 0)
    if (same) return { path: same.path, done: wholeExamples(same.path, work.environment) }
    if (there.length > 0)
      console.error(
        `note: --resume found no evaluation with the same settings, so a new one begins. In ${there[0].path}, the newest, these differ: ${there[0].others.join(', ')}.`,
      )
  }
  const path = join(root, randomBytes(4).toString('hex'))
  intoFolder(path, () => {
    makeFolder(path)
    writeFileAtomic(join(path, 'metadata.json'), `${JSON.stringify(settings, null, 2)}\n`)
  })
  return { path, done: [] }
}

function intoFolder(path: string, write: () => void): void {
  try {
    write()
  } catch (error) {
    unwritten(path)(error)
  }
}

/** The keys of metadata whose values are not those of `settings`; all of them if it cannot be read. */
function otherSettings(file: string, settings: Record<string, unknown>): string[] {
  const there = metadataIn(file)
  return Object.keys(settings).filter((key) => JSON.stringify(there[key]) !== JSON.stringify(settings[key]))
}

function metadataIn(file: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>
  } catch {
    return {}
  }
}

/** Rows of examples that have all answers and no failed one; the others are removed from the file. */
function wholeExamples(path: string, { rows, k }: EvalEnvironment): RolloutRow[] {
  const wanted = new Set(rows.map((row) => row.exampleId))
  const all = readJsonLines<RolloutRow>(join(path, 'results.jsonl')).filter((row) => wanted.has(row.example_id))
  const whole = [...Map.groupBy(all, (row) => row.example_id).values()]
    .filter((group) => group.length === k && group.every((row) => row.error === null))
    .flat()
  writeFileAtomic(join(path, 'results.jsonl'), linesOf(whole))
  return whole
}

const linesOf = (rows: readonly RolloutRow[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join('')

/** Room for the answers of all environments of an evaluation. */
interface EvalSlots {
  /** Under way. */
  places: Slots
  /** Sampled. */
  samplers: Slots
}

/** @param together how many answers are sampled at once. The answers of one example may wait for one another, so all of them always have places. */
export const slotsOf = ({ environments }: EvalPlan, maxConcurrent: number, together: number): EvalSlots => ({
  places: new Slots(Math.max(maxConcurrent, ...environments.map(({ k }) => k))),
  samplers: new Slots(together),
})

/**
 * Plays the missing examples.
 * @param told called after each example with the answers so far
 * @returns all rows, by example and index; where `signal` ended the evaluation, only those of complete examples
 */
export async function playEval(
  work: EvalWork,
  folder: EvalFolder,
  client: ChatClient,
  { places, samplers }: EvalSlots,
  told: (rows: readonly RolloutRow[]) => void,
  signal: AbortSignal,
): Promise<RolloutRow[]> {
  const { environment, plan, options } = work
  const rows = [...folder.done]
  const done = new Set(rows.map((row) => row.example_id))
  const meter = new Meter()
  const play = async (row: Row): Promise<void> => {
    const group = `eval ${environment.name}.${row.exampleId}`
    const one = async (index: number): Promise<Rollout> => {
      await places.take()
      const flight: Flight = { state: 'queued' }
      try {
        const seed = hashSeed(options.seed, 'eval', row.exampleId, index)
        return await runRollout(environment.env, row, {
          client,
          sampling: { ...plan.sampling, seed },
          group,
          index,
          size: environment.k,
          signal,
          generationTimeoutSeconds: plan.generationTimeout,
          rolloutTimeoutSeconds: plan.rolloutTimeout,
          rewardTimeoutSeconds: plan.rewardTimeout,
          gate: gateOf(flight, samplers, [meter]),
        })
      } finally {
        places.give()
      }
    }
    const played = await Promise.all(Array.from({ length: environment.k }, (_, index) => one(index)))
    const scored = await scoreGroup(environment.env, played, { signal, rewardTimeoutSeconds: plan.rewardTimeout })
    if (signal.aborted) return
    const made = scored.map((rollout) =>
      rolloutRow(0, 'eval', { rollout: { ...rollout, env: environment.name }, advantage: null }),
    )
    intoFolder(folder.path, () => appendFileSync(join(folder.path, 'results.jsonl'), linesOf(made)))
    rows.push(...made)
    told(rows)
  }
  await Promise.all(environment.rows.filter((row) => !done.has(row.exampleId)).map(play))
  return rows.toSorted((a, b) => a.example_id - b.example_id || a.index - b.index)
}

/** Writes the rows in order, and the metadata with the averages. */
export function finishEval(
  work: EvalWork,
  folder: EvalFolder,
  rows: readonly RolloutRow[],
  score: EvalScore,
  seconds: number,
): void {
  intoFolder(folder.path, () => writeFileAtomic(join(folder.path, 'results.jsonl'), linesOf(rows)))
  const scored = rows.filter((row) => row.reward !== null)
  const names = [...new Set(scored.flatMap((row) => Object.keys(row.metrics)))]
  const groups = [...Map.groupBy(scored, (row) => row.example_id).values()]
  const solved = (group: RolloutRow[]) => group.filter((row) => reaches(row.reward!, work.options.solvedAt)).length
  const passAll = passKs(score.k).flatMap((k) => {
    const enough = groups.filter((group) => group.length >= k)
    const value = mean(enough.map((group) => passAllK(group.length, solved(group), k)))
    return value === null ? [] : [[String(k), value] as const]
  })
  const metadata = {
    ...settingsOf(work),
    time: seconds,
    avg_reward: score.avg?.mean ?? null,
    avg_reward_interval: score.avg?.low === undefined ? null : [score.avg.low, score.avg.high],
    avg_metrics: Object.fromEntries(names.map((name) => [name, mean(scored.flatMap((row) => row.metrics[name] ?? []))])),
    avg_error: score.errors / Math.max(1, score.rollouts),
    pass_at_k: Object.fromEntries(Object.entries(score.pass).map(([k, value]) => [k, value.mean])),
    pass_at_k_interval: Object.fromEntries(
      Object.entries(score.pass).map(([k, { low, high }]) => [k, [low ?? null, high ?? null]]),
    ),
    pass_all_k: Object.fromEntries(passAll),
    usage: {
      input_tokens: mean(rows.map((row) => row.token_usage.input_tokens)),
      output_tokens: mean(rows.map((row) => row.token_usage.output_tokens)),
    },
    version_info: { dawn_rl_version: versionOf('dawn-rl') ?? null },
    state_columns: [],
    tools: work.environment.env.tools ?? null,
  }
  intoFolder(folder.path, () => writeFileAtomic(join(folder.path, 'metadata.json'), `${JSON.stringify(metadata, null, 2)}\n`))
}
