/** The checkpoints of a training run: the one it begins with (its own, another run's, or none), and those it writes. */
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { UserError } from '../common/errors.ts'
import { whenThereIsRoom } from '../common/faults.ts'
import { stepFolders } from '../common/folders.ts'
import type { Metrics } from '../common/types.ts'
import type { Fork, Loaded, Resume } from '../config/load.ts'
import type { CkptConfig } from '../config/ckpt-schema.ts'
import { counted, formatNumber } from '../monitor/format.ts'
import { readMetrics } from '../monitor/metrics-writer.ts'
import type { Origin, RewindReport, RunFolder } from '../monitor/run-folder.ts'
import {
  loadCheckpoint,
  newestCheckpoint,
  newestIntact,
  saveCheckpoint,
  tidyCheckpoints,
  type CheckpointState,
  type Newest,
  type WeightsAbout,
} from '../trainer/checkpoint.ts'
import { bestAfter, clearLeftovers, type Best, type KeepRules } from '../trainer/checkpoint-keep.ts'
import type { ReferenceSync } from '../trainer/reference-sync.ts'
import { learningRateAt } from '../trainer/schedule.ts'
import type { Trainer } from '../trainer/trainer.ts'

/**
 * An entry of state.json beside the caller's own: the micro-batch tokens that the config asks for, and those in use, which are fewer if memory was too
 * small for them.
 */
interface MicroBatchTokens {
  asked: number
  used: number
}

interface CheckpointParts {
  folder: RunFolder
  trainer: Trainer
  /** Only in a run that syncs its reference model. */
  reference?: ReferenceSync
  weights: WeightsAbout
  ckpt: CkptConfig
  /** Takes metrics and rollouts back to the end of a step. */
  rewind: (step: number) => RewindReport
  /** Waits until everything written so far is on disk. */
  settle: () => Promise<void>
  print: (line: string) => void
  warn: (line: string) => void
}

/** Loads and saves the checkpoints of one run. */
export class RunCheckpoints {
  readonly #parts: CheckpointParts
  #best: Best | undefined
  #toldUnmeasured = false
  /** Of a fork; each state.json has it as `forked_from`. */
  #origin: Origin | undefined

  constructor(parts: CheckpointParts) {
    this.#parts = parts
  }

  /**
   * Loads the checkpoint that --resume or --fork asks for into trainer and folder. A fork copies one of another run as its own first checkpoint.
   * A run that ended before its first checkpoint starts over.
   * @returns the loaded state; undefined for a fresh beginning
   * @throws UserError where that checkpoint is missing, incomplete, or of another kind of run
   */
  async begin({ resume, fork }: Pick<Loaded<unknown>, 'resume' | 'fork'>): Promise<CheckpointState | undefined> {
    const origin = fork && this.#parts.folder.origin
    if (origin) return await this.#forkOf(fork, origin)
    return resume && (await this.#resume(resume))
  }

  get #rules(): KeepRules {
    const { keep_last: last, keep_interval: interval, keep_best: best } = this.#parts.ckpt
    return { last, interval, best }
  }

  async #resume(resume: Resume): Promise<CheckpointState | undefined> {
    const { folder, print, warn } = this.#parts
    clearLeftovers(folder.checkpointsPath)
    const { dir, newest, broken } = await checkpointToResume(folder.path, resume)
    if (!dir) {
      const gone = removed(await this.#rewind(-1))
      if (folder.origin) return await this.#fork(folder.origin)
      print(`resumed  nothing was saved yet: starting from the first step${gone}`)
      return undefined
    }
    for (const line of broken) warn(`skipped ${line}`)
    const state = await this.#load(dir, dir === newest?.dir)
    this.#keepMicroBatch(state.extra)
    this.#best = state.best?.metric === this.#parts.ckpt.keep_best ? state.best : undefined
    const gone = removed(await this.#rewind(state.step))
    const metrics = readMetrics(folder.metricsPath)
    const row = Object.assign({}, ...metrics.filter(({ step }) => step === state.step)) as Metrics
    // An evaluation that a resumed run made up for is on disk before its checkpoint: a kill in between must not make it forgotten.
    if (this.#best?.step !== state.step && this.isBest(state.step, row)) await this.#saveAgain(state, row)
    else tidyCheckpoints(folder.checkpointsPath, this.#rules, this.#best)
    print(`resumed  step ${state.step} from ${dir}: ${this.#restored(dir, state)}${gone}`)
    const rows = new Set(metrics.map(({ step }) => step))
    const first = (this.#origin?.step ?? 0) + 1
    const missing = Array.from({ length: state.step + 1 - first }, (_, i) => first + i).filter((step) => !rows.has(step))
    if (missing.length > 0)
      warn(
        `metrics.jsonl has no rows for ${missing.length} of the steps so far (the last of them is step ${missing.at(-1)}): they could not be written, or were removed. Curves and totals lack them.`,
      )
    this.#warnAtTheEnd("a run's", state.step)
    return state
  }

  /** The same where the newest or the best checkpoint was asked for: the other run may go on, and have replaced it since by another. */
  async #forkOf(fork: Fork, origin: Origin): Promise<CheckpointState> {
    const { folder, warn } = this.#parts
    for (let from = origin; ;)
      try {
        return await this.#fork(from)
      } catch (error) {
        if (typeof fork.step === 'number' || this.#origin || existsSync(checkpointOf(from))) throw error
        const next = await originOf(fork, warn)
        if (next.step === from.step) throw error
        folder.origin = from = next
      }
  }

  /** Copies the other run's checkpoint as the first one of the new run, which then needs nothing else of that run. */
  async #fork(origin: Origin): Promise<CheckpointState> {
    const { print } = this.#parts
    const dir = checkpointOf(origin)
    const state = await this.#load(dir)
    this.#origin = origin
    await this.#saveAgain(state, undefined)
    print(`forked   step ${state.step} from ${dir}: ${this.#restored(dir, state)}`)
    this.#warnAtTheEnd("a fork's", state.step)
    return state
  }

  async #rewind(step: number): Promise<RewindReport> {
    const { rewind, warn } = this.#parts
    const what = step < 0 ? 'what is kept of the last start' : `what is kept of the steps up to ${step}`
    return await whenThereIsRoom(what, () => rewind(step), warn)
  }

  /** Saves the checkpoint that the run begins with. */
  async #saveAgain({ step, extra }: CheckpointState, row: Metrics | undefined): Promise<void> {
    await whenThereIsRoom(`the checkpoint of step ${step}`, () => this.save(step, row, extra), this.#parts.warn)
  }

  #warnAtTheEnd(whose: string, step: number): void {
    const { maxSteps } = this.#parts.trainer.options.schedule
    if (step >= maxSteps)
      this.#parts.warn(
        `nothing is left to train: ${whose} steps continue from ${step}, and trainer.args.max_steps is ${maxSteps}. Raise it.`,
      )
  }

  async #load(dir: string, intact = false): Promise<CheckpointState> {
    const { trainer, reference, weights } = this.#parts
    const state = await loadCheckpoint(dir, trainer, weights, intact)
    await reference?.restore(dir)
    const { forked_from: origin } = state.extra as { forked_from?: Origin }
    this.#origin = origin
    return state
  }

  /** Micro-batches that had to become smaller than the config says stay so until the config changes, so that sums keep their order. */
  #keepMicroBatch(extra: Record<string, unknown>): void {
    const { trainer, print } = this.#parts
    const { asked, used } = (extra.micro_batch_tokens ?? {}) as Partial<MicroBatchTokens>
    if (used === undefined || asked !== trainer.options.microBatchTokens || used >= asked) return
    trainer.fitting.shrinkTo(used)
    print(
      `micro    ${used} tokens: more did not fit into memory before. To try another size, set trainer.args.micro_batch_tokens to a number other than ${asked}.`,
    )
  }

  /** What was restored, in words. */
  #restored(dir: string, { step, optimizer_steps: updates, extra }: CheckpointState): string {
    const { trainer, weights } = this.#parts
    const file = join(dir, 'adapter_model.safetensors')
    const hash =
      weights.lora && existsSync(file)
        ? ` (sha256 ${createHash('sha256').update(readFileSync(file)).digest('hex').slice(0, 12)})`
        : ''
    const tasks = extra.tasks_done === undefined ? '' : `, ${Number(extra.tasks_done)} tasks done`
    const next = learningRateAt(trainer.options.schedule, step + 1)
    return `${weights.lora ? 'adapter' : 'weights'}${hash}, optimizer of ${updates} updates, learning rate ${formatNumber(next)} next${tasks}`
  }

  /** Whether a step's evaluation is the best so far: the step is then saved at once. */
  isBest(step: number, row: Metrics): boolean {
    const { keep_best: metric } = this.#parts.ckpt
    return /^-?eval\//.test(metric ?? '') && bestAfter(step, row, metric, this.#best)?.step === step
  }

  /** Warns once where keep_best names a metric that a step lacks: the config's checks do not know which reward functions there are. */
  #tellUnmeasured(step: number, row: Metrics | undefined): void {
    const { keep_best: best } = this.#parts.ckpt
    const metric = best?.replace(/^-/, '')
    if (metric === undefined || !row || this.#best || this.#toldUnmeasured || metric in row) return
    // Not every step is evaluated.
    if (metric.startsWith('eval/') && !Object.keys(row).some((key) => key.startsWith('eval/'))) return
    this.#toldUnmeasured = true
    this.#parts.warn(
      `trainer.ckpt.keep_best is ${JSON.stringify(best)}, which step ${step} has not measured (its metrics are in metrics.jsonl). As long as no step that is saved has it, no checkpoint is kept as the best.`,
    )
  }

  /**
   * Saves a step and deletes checkpoints that no rule keeps.
   * @param row the step's metrics, for keep_best
   * @param extra entries of state.json beside the trainer's
   */
  async save(step: number, row: Metrics | undefined, extra: Record<string, unknown>): Promise<void> {
    const { folder, trainer, reference, weights, ckpt, settle } = this.#parts
    folder.check()
    // Rows and rollouts must be on disk before the checkpoint is whole.
    await settle()
    this.#best = bestAfter(step, row, ckpt.keep_best, this.#best)
    this.#tellUnmeasured(step, row)
    const sizes: MicroBatchTokens = { asked: trainer.options.microBatchTokens, used: trainer.fitting.size.microBatchTokens }
    await saveCheckpoint(folder.checkpointsPath, trainer, weights, {
      keep: this.#rules,
      best: this.#best,
      fill: (aside) => reference?.saveTo(aside),
      extra: { ...extra, micro_batch_tokens: sizes, ...(this.#origin && { forked_from: this.#origin }) },
    })
  }
}

const checkpointOf = ({ from, step }: Origin): string => join(from, 'checkpoints', `step_${step}`)

/**
 * Where a fork begins: the latest intact checkpoint and the best one are looked up.
 * @throws UserError where that checkpoint does not exist
 */
export async function originOf({ dir, step }: Fork, warn: (line: string) => void): Promise<Origin> {
  const root = join(dir, 'checkpoints')
  if (!existsSync(root)) throw new UserError(`--fork ${dir}: this is not the folder of a run: it has no checkpoints.`)
  const named = step === 'best' ? bestStep(dir) : step
  if (named === undefined)
    throw new UserError(`--fork ${dir}@best: that run has no best checkpoint (trainer.ckpt.keep_best was not set).`)
  if (named !== 'latest') {
    stepFolder(dir, named, '--fork')
    return { from: resolve(dir), step: named }
  }
  const { newest, broken } = await newestIntact(root)
  if (!newest) throw new UserError(`--fork ${dir}: ${broken[0] ?? 'it has no checkpoint'}.`)
  for (const line of broken) warn(`skipped ${line}`)
  return { from: resolve(dir), step: newest.step }
}

/**
 * The checkpoint that a resumed run starts from; no `dir` if it has none yet. `newest` only if it is the newest that is intact, which was looked for.
 * @throws UserError where that checkpoint is missing, or none is intact
 */
export async function checkpointToResume(
  run: string,
  resume: Resume,
): Promise<{ dir?: string; newest?: Newest['newest']; broken: string[] }> {
  if (resume.kind === 'step') return { dir: stepFolder(run, resume.step, '--resume'), broken: [] }
  const { newest, broken } = await newestIntact(join(run, 'checkpoints'))
  if (!newest && broken.length > 0)
    throw new UserError(
      `${run} has no intact checkpoint to resume from. ${broken[0]} Start a new run without --resume, under another run_name.`,
    )
  return { dir: newest?.dir, newest, broken }
}

/** @throws UserError where a run has no checkpoint of this step, naming the ones it has */
function stepFolder(dir: string, step: number, word: string): string {
  const root = join(dir, 'checkpoints')
  const steps = stepFolders(root)
  if (steps.includes(step)) return join(root, `step_${step}`)
  const there = steps.length > 0 ? `It has those of steps ${steps.join(', ')}` : 'It has none'
  throw new UserError(`${word}: ${dir} has no checkpoint of step ${step}. ${there}.`)
}

/** The steps of a run that have a whole checkpoint: the marker file is written last. */
export function checkpointSteps(dir: string): number[] {
  const root = join(dir, 'checkpoints')
  return stepFolders(root).filter((step) => existsSync(join(root, `step_${step}`, 'STABLE')))
}

/** The step of a run's best checkpoint, as the newest state.json records it. Undefined where none is kept. */
export function bestStep(dir: string): number | undefined {
  for (let end = Infinity; ;) {
    const { newest } = newestCheckpoint(join(dir, 'checkpoints'), end)
    if (!newest) return undefined
    try {
      return (JSON.parse(readFileSync(join(newest.dir, 'state.json'), 'utf8')) as CheckpointState).best?.step
    } catch {
      // This one is damaged: the checkpoint before it names the best step up to then.
      end = newest.step
    }
  }
}

/** What a rewind removed, in words. */
function removed({ metricsRows, rolloutFiles, checkpoints }: RewindReport): string {
  const parts = [
    metricsRows > 0 && `${counted(metricsRows, 'later row')} of metrics removed`,
    rolloutFiles > 0 && `${counted(rolloutFiles, 'later file')} of rollouts removed`,
    checkpoints.length > 0 && `checkpoint${checkpoints.length === 1 ? '' : 's'} of step ${checkpoints.join(', ')} set aside`,
  ].filter((part) => part !== false)
  return parts.length > 0 ? `; ${parts.join(', ')}` : ''
}

interface Data {
  seed: number
  /** Absent in older checkpoints, which means true. */
  shuffle_dataset?: boolean
  /** Absent in supervised training, which may start from a checkpoint of a run that has them. */
  environments?: { name: string; weight: number; rows: number }[]
}

/** What has changed since the checkpoint of a resumed run and what follows from it, one sentence each. */
export function dataChanges(before: Record<string, unknown>, now: Data): string[] {
  const { seed, environments, shuffle_dataset: shuffled = true } = before as Partial<Data>
  const { shuffle_dataset: shuffles = true } = now
  const changes: string[] = []
  if (seed !== undefined && seed !== now.seed)
    changes.push(
      `the seed was ${seed} and is now ${now.seed}: from here on, tasks come in another order, and some of this pass may come twice.`,
    )
  if (seed !== undefined && shuffled !== shuffles)
    changes.push(
      `shuffle_dataset was ${shuffled} and is now ${shuffles}: from here on, rows come in another order, and some of this pass may come twice.`,
    )
  if (environments && now.environments && JSON.stringify(environments) !== JSON.stringify(now.environments)) {
    const words = (all: NonNullable<Data['environments']>) =>
      all.map(({ name, weight, rows }) => `${name} (${rows} rows, weight ${weight})`).join(', ')
    changes.push(
      `the environments were ${words(environments)} and are now ${words(now.environments)}: from here on, the tasks are not those that would have come.`,
    )
  }
  return changes
}
