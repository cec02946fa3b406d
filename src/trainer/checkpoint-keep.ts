/**
 * Which checkpoints stay: the newest ones, those of every so many steps, and the one with the best value of a metric, which `checkpoints/best` points
 * at. What the best value is stands in state.json of every checkpoint, so that it survives a resume.
 */
import { readdirSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { moveToSync } from '../common/renames.ts'
import type { Metrics } from '../common/types.ts'
import { pointAt } from '../monitor/run-folder.ts'

export interface KeepRules {
  /** Number of newest checkpoints to keep. */
  last: number
  /** Keep checkpoints of steps that are multiples of it. */
  interval?: number
  /** Keep the checkpoint with the highest value of this metric; with '-' before it the lowest. */
  best?: string
}

/** The best step so far, by one metric. */
export interface Best {
  /** As in KeepRules. */
  metric: string
  value: number
  step: number
}

/** The name of the pointer beside the steps. */
const BEST = 'best'

/** The best step after one whose row of metrics is `row`; unchanged where that row has no such value, or none that is better. */
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

/** The steps whose checkpoint no rule keeps, ascending. @param steps those with a whole checkpoint */
export function stepsToDelete(steps: readonly number[], { last, interval }: KeepRules, best: Best | undefined): number[] {
  const ascending = steps.toSorted((a, b) => a - b)
  return ascending.slice(0, -last).filter((step) => step !== best?.step && !(interval && step % interval === 0))
}

/** Makes `<root>/best` point at the best step's folder; takes it away where there is none. */
export function pointAtBest(root: string, best: Best | undefined): void {
  const link = join(root, BEST)
  if (best && statSync(join(root, `step_${best.step}`), { throwIfNoEntry: false })) pointAt(link, `step_${best.step}`)
  else rmSync(link, { force: true })
}

/** Out of the way under another name first: a process that is killed in between leaves no folder that looks like a damaged checkpoint. */
export function removeFolder(dir: string): void {
  const aside = `${dir}.gone-${process.pid}`
  moveToSync(dir, aside)
  rmSync(aside, { recursive: true, force: true })
}

/**
 * Removes what a process that was killed while it saved left behind, and brings back the folder that it was about to replace. The run's lock says that
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
 * Removes what a rewind set aside (`step_N.superseded`) once the run has saved step N, or a later one, again: until then it is the furthest that the run
 * ever came, and a user who went back by mistake gets it back by renaming it. No sampler reads one (the engine has the weights, a vLLM server gets copies).
 * @param reached the newest step with a whole checkpoint
 */
export function clearSuperseded(root: string, reached: number): void {
  for (const name of statSync(root, { throwIfNoEntry: false }) ? readdirSync(root) : []) {
    const step = /^step_(\d+)\.superseded$/.exec(name)?.[1]
    if (step !== undefined && Number(step) <= reached) removeFolder(join(root, name))
  }
}
