/**
 * The folder of a run: `outputs/<run_name>/`
 *
 *   config.toml                  the resolved configuration (config.attempt_<n>.toml: that of an earlier attempt, where it differed)
 *   metrics.jsonl                one flat object for each step
 *   rollouts/step_N.jsonl        every rollout of step N, training and evaluation (field `split`)
 *   rollouts/step_N.tokens.jsonl their token ids, log-probabilities and versions, so that the file above stays readable
 *   checkpoints/step_N/          written by the trainer
 *   reference/                   the reference model, once it was synced (trainer/reference-sync.ts)
 *   logs/attempt_<n>.log         one for each start; logs/latest points at the newest
 *   logs/attempt_<n>.versions.json, .diff  versions and uncommitted changes (cli/run-origin.ts)
 *   logs/timeline.jsonl          what ran when, a line for each step (timeline-writer.ts)
 *   report.html                  written at the end (report/html.ts)
 *   sinks/NAME.json              how much of metrics.jsonl was sent to each sink of report_to
 *   trace.json                   the newest trace (--trace)
 *   fork.json                    the checkpoint that a fork began with
 *   run.lock                     while a process holds the folder
 *
 * A run is never overwritten by accident: a folder with anything in it is opened only to resume it, and by one process at a time.
 */
import { randomBytes } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  rmdirSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { isSystemError, messageOf, UserError } from '../common/errors.ts'
import { FOLDER_NAME, makeFolder, numbersIn, stepFolders, syncFolder } from '../common/folders.ts'
import { isAlive } from '../common/processes.ts'
import { moveToSync } from '../common/renames.ts'
import { writeFileAtomic } from '../common/atomic.ts'
import { dropLaterRows, dropRows, jsonLines, textOf } from './files.ts'
import { acquireLock } from './run-lock.ts'
import type { ReleaseLock } from './run-lock.ts'
import { rewindCursors } from './sinks/cursor.ts'

const lockName = 'run.lock'
const originName = 'fork.json'

export interface RunFolderOptions {
  /** The folder for runs; made when missing. */
  outputDir: string
  runName: string
  /** The resolved configuration as TOML text. */
  configText: string
  /** Go on with an existing run; then call `rewind`. */
  resume?: boolean
  /** Of a fork: where it begins. Written before anything else: a fork that is killed before its first checkpoint begins there again. */
  origin?: Origin
}

/** Where a fork came from: the folder of a run, and a step that it saved. */
export interface Origin {
  from: string
  step: number
}

/** What a rewind removed: rows of metrics and files of rollouts, and the checkpoints that it renamed. */
export interface RewindReport {
  metricsRows: number
  rolloutFiles: number
  checkpoints: number[]
}

/** `<env>--<model>--<6 hex digits>`, in characters that are safe in file names. The model may be a path or a hub id. */
export function defaultRunName(env: string, model: string, id: string = randomBytes(3).toString('hex')): string {
  const lastPart =
    model
      .replace(/[\\/]+$/, '')
      .split(/[\\/]/)
      .at(-1) ?? ''
  return [safe(env) || 'env', safe(lastPart) || 'model', id].join('--')
}

function safe(text: string): string {
  return text
    .toLowerCase()
    .replace(/\.gguf$/, '')
    .replace(/[^a-z0-9._]+/g, '-')
    .replace(/^[-.]+|[-.]+$/g, '')
    .slice(0, 48)
}

/**
 * Makes or opens the folder of a run and takes its lock.
 * @throws UserError when the name cannot be a folder, the folder holds something and `resume` is off, there is no run to resume, or
 *   another process holds it
 */
export function openRunFolder(options: RunFolderOptions): RunFolder {
  const { outputDir, runName, configText, resume = false, origin } = options
  if (!FOLDER_NAME.test(runName)) {
    throw new UserError(
      `run_name ${JSON.stringify(runName)} cannot be the name of a folder: use letters, digits, '-', '_' and '.', at most 200.`,
    )
  }
  const path = join(outputDir, runName)
  if (existsSync(path) && !statSync(path).isDirectory()) {
    throw new UserError(`${path} is a file, not a folder: choose another run_name or output_dir, or move the file.`)
  }
  const before = existsSync(path)
  let release: ReleaseLock | undefined
  let made = false
  try {
    if (resume) checkRun(path)
    made = makeFolder(path).includes(resolve(path))
    release = acquireLock(join(path, lockName), path)
    // Processes that are trying to get the lock may have files beside it.
    if (!resume && readdirSync(path).some((name) => !name.startsWith(lockName))) {
      throw new UserError(
        `${path} already holds a run: choose another run_name, continue it with --resume, or delete the folder.`,
      )
    }
    if (origin) writeOrigin(path, origin)
    return new RunFolder(path, runName, configText, release, made)
  } catch (error) {
    // On a full disk, remove the incomplete new folder, which would block the name. After a UserError it belongs to another run.
    if (release && made && !(error instanceof UserError)) rmSync(path, { recursive: true, force: true })
    release?.()
    if (!isSystemError(error)) throw error
    throw new UserError(
      `Cannot ${before ? 'write into' : 'make'} the run folder ${path}: ${messageOf(error)}. Choose another output_dir, or fix this.`,
    )
  }
}

const writeOrigin = (path: string, origin: Origin): void =>
  writeFileAtomic(join(path, originName), `${JSON.stringify(origin, null, 2)}\n`)

/** @throws UserError where there is no run to resume */
export function checkRun(path: string): void {
  if (!existsSync(path))
    throw new UserError(`Nothing to resume: ${path} does not exist. Leave --resume out to start it, or correct run_name.`)
  if (!isOfRun(path))
    throw new UserError(
      `Nothing to resume: ${path} is not the folder of a run, as it has no config.toml. Give the folder outputs/<run_name>, or for one of its checkpoints --run-name <run_name> --resume step N.`,
    )
}

/** Whether a folder is a run's, and not one of its checkpoints or the folder of all runs. A run that was killed at once may have no config.toml yet. */
function isOfRun(path: string): boolean {
  const names = readdirSync(path)
  const early = (name: string) =>
    ['logs', 'checkpoints', 'rollouts'].includes(name) || /^(run\.lock|config\.toml|fork\.json)/.test(name)
  return names.includes('config.toml') || names.includes('metrics.jsonl') || names.every(early)
}

/** An open run folder. Made by `openRunFolder`; holds the folder's lock until `close` or the end of the process. */
export class RunFolder {
  readonly path: string
  readonly runName: string
  /** 1 for the first start of the run, plus 1 for each resume. */
  readonly attempt: number
  readonly configPath: string
  readonly metricsPath: string
  readonly timelinePath: string
  readonly checkpointsPath: string
  readonly logPath: string
  readonly #configText: string
  readonly #release: ReleaseLock
  /** The text of the lock, and the identity of its folder. */
  readonly #lock: string
  readonly #inode: number
  readonly #madeHere: boolean
  #closed = false

  constructor(path: string, runName: string, configText: string, release: ReleaseLock, madeHere: boolean) {
    this.path = path
    this.runName = runName
    this.#configText = configText
    this.#release = release
    this.#lock = textOf(join(path, lockName))
    this.#inode = statSync(path).ino
    this.#madeHere = madeHere
    this.configPath = join(path, 'config.toml')
    this.metricsPath = join(path, 'metrics.jsonl')
    this.checkpointsPath = join(path, 'checkpoints')
    const logs = join(path, 'logs')
    this.timelinePath = join(logs, 'timeline.jsonl')
    const wrong = [this.configPath, this.metricsPath, this.timelinePath].find((file) =>
      statSync(file, { throwIfNoEntry: false })?.isDirectory(),
    )
    if (wrong) throw new UserError(`${wrong} is a folder, but a run writes a file there. Move it away.`)
    const rollouts = join(path, 'rollouts')
    for (const folder of [path, logs, rollouts]) clearAside(folder)
    for (const folder of [logs, this.checkpointsPath, rollouts]) mkdirSync(folder, { recursive: true })
    this.attempt = 1 + Math.max(0, ...numbersIn(namesIn(logs), /^attempt_(\d+)\.log$/))
    this.logPath = join(logs, `attempt_${this.attempt}.log`)
    writeFileSync(this.logPath, '')
    pointAt(join(logs, 'latest'), `attempt_${this.attempt}.log`)
    if (!existsSync(this.configPath)) writeFileAtomic(this.configPath, configText)
  }

  /**
   * Writes the configuration of this start; that of an earlier start is kept under another name. Called after all input was checked, so that a failed
   * start does not change config.toml.
   * @returns both texts, the earlier one first
   */
  keepConfig(): [string, string] {
    const old = readFileSync(this.configPath, 'utf8')
    if (old !== this.#configText) {
      writeFileAtomic(join(this.path, `config.attempt_${this.attempt - 1}.toml`), old)
      writeFileAtomic(this.configPath, this.#configText)
    }
    return [old, this.#configText]
  }

  /** The file with a step's rollouts, one for each line. */
  rolloutsPath(step: number): string {
    return join(this.path, 'rollouts', `step_${step}.jsonl`)
  }

  /** Token ids and log-probabilities of a step's rollouts, one a line, in the order of `rolloutsPath`. */
  tokensPath(step: number): string {
    return join(this.path, 'rollouts', `step_${step}.tokens.jsonl`)
  }

  /** What fork.json says; undefined where the run is no fork. */
  get origin(): Origin | undefined {
    const text = textOf(join(this.path, originName))
    return text === '' ? undefined : (JSON.parse(text) as Origin)
  }

  set origin(origin: Origin) {
    writeOrigin(this.path, origin)
  }

  checkpointPath(step: number): string {
    return join(this.checkpointsPath, `step_${step}`)
  }

  /** Steps that have a `checkpoints/step_N` folder, ascending; they may be incomplete. */
  checkpointSteps(): number[] {
    return stepFolders(this.checkpointsPath)
  }

  /**
   * Rewinds the folder to the end of `step` (-1: to before the first evaluation): removes later rows of metrics.jsonl and of the timeline and later
   * rollouts, and renames later checkpoints to `step_N.superseded`, so that they are neither lost nor taken for the newest; the trainer deletes them
   * once they are made again (trainer/checkpoint-keep.ts).
   */
  rewind(step: number): RewindReport {
    // Checkpoints first, newest first: after a kill in between there is never a checkpoint whose rows are gone.
    const late = this.checkpointSteps().filter((n) => n > step)
    for (const n of late.toReversed()) {
      const aside = `${this.checkpointPath(n)}.superseded`
      rmSync(aside, { recursive: true, force: true })
      moveToSync(this.checkpointPath(n), aside)
    }
    const report: RewindReport = { metricsRows: dropLaterRows(this.metricsPath, step), rolloutFiles: 0, checkpoints: late }
    rewindCursors(this.path)
    dropLaterRows(this.timelinePath, step)
    for (const n of numbersIn(namesIn(join(this.path, 'rollouts')), /^step_(\d+)(?:\.tokens)?\.jsonl$/)) {
      if (n <= step) continue
      for (const file of [this.rolloutsPath(n), this.tokensPath(n)]) {
        if (existsSync(file)) report.rolloutFiles++
        rmSync(file, { force: true })
      }
    }
    return report
  }

  /**
   * Removes the rollouts of evaluations after `step` that have no metrics and are made again: the run was killed, or failed, before the last environment
   * was evaluated.
   */
  dropEvaluations(step: number, envs: readonly string[]): void {
    const isTheirs = ({ split, env }: { split: string; env: string }) => split === 'eval' && envs.includes(env)
    const groups = new Set<string>()
    for (const { row } of jsonLines<{ split: string; env: string; group: string }>(this.rolloutsPath(step)))
      if (isTheirs(row)) groups.add(row.group)
    if (groups.size === 0) return
    // The tokens first: their rows are found by those of the other file.
    dropRows<{ split: string; group: string }>(this.tokensPath(step), (row) => row.split !== 'eval' || !groups.has(row.group))
    dropRows<{ split: string; env: string }>(this.rolloutsPath(step), (row) => !isTheirs(row))
  }

  /**
   * To be called before each write. If the folder was moved during the run, another run may have taken its name, and their files would mix.
   * @throws Error where another run has the folder now
   */
  check(): void {
    const inode = statSync(this.path, { throwIfNoEntry: false })?.ino
    const lock = textOf(join(this.path, lockName))
    // Without a lock (a run that has ended, or a lock deleted by hand) it is another run's if it is another folder with a run in it.
    const isOurs = lock === '' ? inode === this.#inode || !existsSync(this.configPath) : lock === this.#lock
    if (isOurs) return
    throw new Error(
      `The run folder ${this.path} now belongs to another run (it was moved, or its run.lock was deleted, while this run was writing into it): this run ends, and writes nothing more there.`,
    )
  }

  /** An error of writing, as what it is if the folder is no longer there. */
  explain(error: unknown): unknown {
    if (!isSystemError(error) || existsSync(this.path)) return error
    return new Error(`The run folder ${this.path} was deleted or moved while the run wrote into it.`, { cause: error })
  }

  /** Syncs the folders, so that the names of all files so far are on disk. */
  async settle(): Promise<void> {
    for (const path of [join(this.path, 'rollouts'), this.path, dirname(this.path)]) await syncFolder(path)
  }

  /** Releases the lock. */
  close(): void {
    this.#closed = true
    this.#release()
  }

  /**
   * For a start that failed (bad input found while loading): closes the folder, and removes it if this process made it and it has no
   * metrics, rollouts or checkpoints.
   */
  discard(): void {
    if (!this.#madeHere || !existsSync(this.path)) return this.close()
    const release = this.#closed ? this.#lockAgain() : this.#release
    this.#closed = true
    if (!release) return
    if (!this.#hasResults()) {
      for (const name of ['config.toml', 'metrics.jsonl', originName, 'logs', 'rollouts', 'checkpoints']) {
        rmSync(join(this.path, name), { recursive: true, force: true })
      }
    }
    release()
    // If it holds anything else, that is not ours and the folder stays.
    if (readdirSync(this.path).length === 0) rmdirSync(this.path)
  }

  /** Takes the lock again; undefined where another process has taken the folder since it was closed. */
  #lockAgain(): ReleaseLock | undefined {
    try {
      return acquireLock(join(this.path, lockName), this.path)
    } catch (error) {
      if (error instanceof UserError) return undefined
      throw error
    }
  }

  #hasResults(): boolean {
    if (existsSync(this.metricsPath) && statSync(this.metricsPath).size > 0) return true
    return namesIn(join(this.path, 'rollouts')).length + namesIn(this.checkpointsPath).length > 0
  }
}

/** Removes temporary files of a killed process. We hold the lock, so no other process is writing. */
function clearAside(folder: string): void {
  for (const name of namesIn(folder)) {
    const pid = /\.(\d+)\.(tmp|stale)$/.exec(name)?.[1]
    if (pid === undefined) continue
    // Temporary files of the lock may belong to another process that wants it.
    if (name.startsWith(lockName) && isAlive(Number(pid))) continue
    rmSync(join(folder, name), { force: true })
  }
}

/** The names in a folder; none where it is missing. */
const namesIn = (folder: string): string[] => (existsSync(folder) ? readdirSync(folder) : [])

/** Makes a relative link or, where links are not allowed (Windows without developer mode), a text file with the name. */
export function pointAt(link: string, target: string): void {
  const aside = `${link}.${process.pid}.tmp`
  rmSync(aside, { force: true })
  try {
    symlinkSync(target, aside)
  } catch {
    writeFileSync(aside, `${target}\n`)
  }
  // Windows takes a link to a folder for a folder, and replaces none.
  if (process.platform === 'win32') rmSync(link, { force: true })
  moveToSync(aside, link)
}
