/**
 * Which checkpoints are kept: the newest ones, those at a fixed interval of steps, and the one with the best value of a metric, to which
 * `checkpoints/best` points. The best value so far is in every checkpoint's state.json, so it survives a resume.
 */
import { readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { moveToSync } from '../common/renames.ts'
import type { Metrics } from '../common/types.ts'
import { pointAt } from '../monitor/run-folder.ts'

export interface KeepRules {
  /** How many of the newest checkpoints to keep. */
  last: number
  /** Keep checkpoints of steps that are multiples of this. */
  interval?: number
  /** Keep the checkpoint with the highest value of this metric, or the lowest if '-' precedes the name. */
  best?: string
}

/** The best step so far, by one metric. */
export interface Best {
  /** As in KeepRules. */
  metric: string
  value: number
  step: number
}

/** Name of the pointer beside the step folders. */
const BEST = 'best'

/** The best step after a step with metrics `row`. Unchanged if the row lacks the metric or has no better value. */
export function bestAfter(
  step: number,
  row: Metrics | undefined,
  metric: string | undefined,
  best: Best | undefined,
): Best | undefined {
  if (metric === undefined) return undefined
  const lowest = metric.startsWith('-')
  const value = row?.[lowest ? metric.slice(1) : metric]
  const known = best?.metric === metric ? best : undefined
  if (value === undefined || value === null || !Number.isFinite(value)) return known
  const better = !known || (lowest ? value < known.value : value > known.value)
  return better ? { metric, value, step } : known
}

/** The steps whose checkpoints no rule keeps, ascending. @param steps those with a complete checkpoint */
export function stepsToDelete(steps: readonly number[], { last, interval }: KeepRules, best: Best | undefined): number[] {
  const ascending = steps.toSorted((a, b) => a - b)
  return ascending.slice(0, -last).filter((step) => step !== best?.step && !(interval && step % interval === 0))
}

/** Makes `<root>/best` point to the best step's folder, or removes it if there is none. */
export function pointAtBest(root: string, best: Best | undefined): void {
  const link = join(root, BEST)
  if (best && statSync(join(root, `step_${best.step}`), { throwIfNoEntry: false })) pointAt(link, `step_${best.step}`)
  else rmSync(link, { force: true })
}

/** Removes a folder, after renaming it: if the process is killed in between, no folder is left that looks like a damaged checkpoint. */
export function removeFolder(dir: string): void {
  const aside = `${dir}.gone-${process.pid}`
  moveToSync(dir, aside)
  rmSync(aside, { recursive: true, force: true })
}

/**
 * Removes what a process left that was killed while saving, and restores the folder that it was about to replace. The run's lock guarantees that
 * nobody else is saving.
 */
export function clearLeftovers(root: string): void {
  if (!statSync(root, { throwIfNoEntry: false })) return
  for (const name of readdirSync(root)) {
    const replaced = /^(step_\d+)\.old-\d+$/.exec(name)?.[1]
    if (replaced && !statSync(join(root, replaced), { throwIfNoEntry: false })) moveToSync(join(root, name), join(root, replaced))
    else if (/^step_\d+(\.superseded)?\.(partial|old|gone)-\d+$|^best\.\d+\.tmp$/.test(name))
      rmSync(join(root, name), { recursive: true, force: true })
  }
}

/**
 * Removes the checkpoints that a rewind set aside (`step_N.superseded`) once the run has saved step N or a later one again. Until then they are the
 * furthest that the run ever came, and a user who went back by mistake can rename them back. No sampler reads them (the engine shares the trainer's
 * weights, a vLLM server gets copies).
 * @param reached the newest step with a complete checkpoint
 */
export function clearSuperseded(root: string, reached: number): void {
  for (const name of statSync(root, { throwIfNoEntry: false }) ? readdirSync(root) : []) {
    const step = /^step_(\d+)\.superseded$/.exec(name)?.[1]
    if (step !== undefined && Number(step) <= reached) removeFolder(join(root, name))
  }
}
