/**
 * The training loop: sample ahead, train, publish, evaluate, save. Everything it drives is handed in, so it reads like the recipe.
 * Steps are counted from 1; the weights after step n are policy version n, and those after half of its updates n - 1/2.
 */
import { saveAfter } from '../common/faults.ts'
import type { Metrics, PolicyVersion, Rollout, TrainingBatch } from '../common/types.ts'
import type { Monitor } from '../monitor/monitor.ts'
import type { Orchestrator } from './orchestrator.ts'
import type { RunEnvironment } from './tasks.ts'

export interface LoopParts {
  orchestrator: Pick<Orchestrator, 'prepare' | 'batch' | 'evaluate' | 'abandonAfter' | 'close'>
  monitor: Pick<Monitor, 'finishStep' | 'finishEval' | 'writeRow' | 'console'>
  /** Makes one step. Calls `published` as soon as new weights are in place (share 1: those of the whole step); not where the weights are known to stay as they were. */
  train: (batch: TrainingBatch, published: (share: number) => void) => Promise<{ metrics: Metrics }>
  /**
   * Tells the sampler that the weights of `version` are in place, in the same turn of the event loop. Where they must be sent to a server it
   * resolves when they have arrived, with metrics of the transfer.
   */
  publish: (version: PolicyVersion) => void | Promise<Metrics>
  /** `row`: the metrics of that step. */
  save: (step: number, row: Metrics | undefined) => Promise<void>
  /** Whether a step is to be saved because its evaluation is the best so far. */
  isBest?: (step: number, row: Metrics) => boolean
  /** Why nothing can be saved any more; undefined while it can. */
  lost?: () => Error | undefined
  /** Held-out environments; empty where nothing is evaluated. `begin`: those before the first step (of a resumed run, what its end cut short). */
  evaluated: Record<'begin' | 'steps', readonly RunEnvironment[]>
}

export interface LoopOptions {
  /** Steps already done (a resumed run). */
  firstStep: number
  maxSteps: number
  maxAsyncLevel: number
  evalSteps: number
  evalExamples: number
  evalRolloutsPerExample: number
  evalTemperature: number
  /** 0: only at the end. */
  saveSteps: number
  /** Aborted once the user asks to stop: the step under way is finished and saved, nothing is evaluated any more. */
  stop: AbortSignal
}

/** An evaluation of one environment. */
export interface Evaluation {
  step: number
  env: string
  rollouts: Rollout[]
}

export interface LoopResult {
  lastStep: number
  /** The last evaluations after a step. */
  after: Evaluation[]
}

/** @throws whatever stopped the run; the last step is saved then too, finished or as far as its updates came */
export async function trainingLoop(parts: LoopParts, options: LoopOptions): Promise<LoopResult> {
  const { orchestrator, monitor, publish, train, save } = parts
  const { firstStep, maxSteps, maxAsyncLevel, saveSteps, stop } = options
  let [done, saved] = [firstStep, firstStep]
  let [after, row]: [Evaluated[], Metrics?] = [[]]
  // What is sampled ahead will not be trained on, and the current step ends sooner without it.
  const abandon = () => orchestrator.abandonAfter(done + 1)
  stop.addEventListener('abort', abandon)
  try {
    const begun = await evaluate(parts, options, firstStep, 'begin')
    if (begun.length > 0) row = await monitor.writeRow(firstStep, metricsOf(begun))
    if (firstStep > 0) after = begun
    if (firstStep > 0 && row && parts.isBest?.(firstStep, row)) await save(firstStep, row)

    while (done < maxSteps && !stop.aborted) {
      const step = done + 1
      const begin = performance.now()
      // One step off-policy: what is sampled from here on is trained on one step later.
      for (let ahead = step; ahead <= Math.min(step + maxAsyncLevel, maxSteps); ahead++) orchestrator.prepare(ahead)
      const { batch, rollouts, dropped, metrics: sampled } = await orchestrator.batch(step, done)
      const pushed = new Map<PolicyVersion, ReturnType<LoopParts['publish']>>()
      const push = (version: PolicyVersion) => void pushed.set(version, publish(version))
      const { metrics: trained } = await train(batch, (share) => push(step - 1 + share)).catch((error: unknown) => {
        // Once an update was made, the weights are those of this step so far, and no longer those of the step before.
        if (pushed.size > 0) [done, row] = [step, undefined]
        throw error
      })
      // A skipped step is a version too, of the same weights.
      if (!pushed.has(step)) push(step)
      done = step
      row = undefined
      // The step is made: errors from here on are thrown only after its row was written.
      const failed: unknown[] = []
      const arrived = await Promise.resolve(pushed.get(step)).catch((e) => void failed.push(e))

      const time = { 'time/step': (performance.now() - begin) / 1000 }
      const isEvalStep = failed.length === 0 && (step === maxSteps || step % options.evalSteps === 0)
      const evaluations = isEvalStep ? await evaluate(parts, options, step, 'steps').catch((e) => (failed.push(e), [])) : []
      if (evaluations.length > 0) after = evaluations
      const metrics = { ...time, ...sampled, ...trained, ...arrived, ...metricsOf(evaluations) }
      row = await monitor.finishStep({ step, rollouts, version: step - 1, dropped, metrics })
      if (failed.length > 0) throw failed[0]
      const isDue = saveSteps > 0 && step % saveSteps === 0
      if (isDue || parts.isBest?.(step, row)) {
        await save(step, row)
        saved = step
      }
    }
    // The last step, or the one after which the run was asked to stop.
    if (done > saved) await save(done, row)
    return { lastStep: done, after: after.map(plain) }
  } catch (error) {
    await orchestrator.close()
    const warn = (line: string) => monitor.console.warn(line)
    if (done > saved && !parts.lost?.()) await saveAfter(done, () => save(done, row), warn)
    throw error
  } finally {
    stop.removeEventListener('abort', abandon)
    await orchestrator.close()
  }
}

interface Evaluated extends Evaluation {
  metrics: Metrics
}

const plain = ({ step, env, rollouts }: Evaluated): Evaluation => ({ step, env, rollouts })
const metricsOf = (evaluations: Evaluated[]): Metrics => Object.assign({}, ...evaluations.map((e) => e.metrics)) as Metrics

/** Evaluates each environment; one that the user cut short counts as not done. */
async function evaluate(parts: LoopParts, options: LoopOptions, step: number, when: 'begin' | 'steps'): Promise<Evaluated[]> {
  const results: Evaluated[] = []
  for (const source of parts.evaluated[when]) {
    if (options.stop.aborted) break
    const begin = performance.now()
    const rollouts = await parts.orchestrator.evaluate(source, {
      step,
      examples: options.evalExamples,
      rolloutsPerExample: options.evalRolloutsPerExample,
      temperature: options.evalTemperature,
      signal: options.stop,
    })
    if (options.stop.aborted) break
    const seconds = (performance.now() - begin) / 1000
    const metrics = await parts.monitor.finishEval({ step, env: source.name, rollouts, version: step, seconds })
    results.push({ step, env: source.name, rollouts, metrics })
  }
  return results
}
