/**
 * The training loop: sample ahead, train, publish, evaluate, save. Everything that the loop drives is passed in as `LoopParts`.
 * Steps count from 1. The weights after step n are policy version n, and those after half of the step's updates version n - 1/2.
 */
import { saveAfter } from '../common/faults.ts'
import type { Metrics, PolicyVersion, Rollout, TrainingBatch } from '../common/types.ts'
import type { Monitor } from '../monitor/monitor.ts'
import type { Orchestrator } from './orchestrator.ts'
import type { RunEnvironment } from './tasks.ts'

export interface LoopParts {
  orchestrator: Pick<Orchestrator, 'prepare' | 'batch' | 'evaluate' | 'abandonAfter' | 'close'>
  monitor: Pick<Monitor, 'finishStep' | 'finishEval' | 'writeRow' | 'console'>
  /** Trains one step. Calls `published(share)` once new weights are in place (share 1: after all updates), unless they are known not to change. */
  train: (batch: TrainingBatch, published: (share: number) => void) => Promise<{ metrics: Metrics }>
  /**
   * Tells the sampler, in the same turn of the event loop, that the weights of `version` are in place.
   * If they must be sent to a server, resolves once they have arrived, with metrics of the transfer.
   */
  publish: (version: PolicyVersion) => void | Promise<Metrics>
  /** Saves a checkpoint. `row`: the metrics of that step. */
  save: (step: number, row: Metrics | undefined) => Promise<void>
  /** Whether to save a step because its evaluation is the best so far. */
  isBest?: (step: number, row: Metrics) => boolean
  /** Why nothing can be saved any more (the GPU device is lost); undefined while saving is possible. */
  lost?: () => Error | undefined
  /** What to evaluate before the first step (`begin`; when resuming: evaluations that were not finished) and after steps. May be empty. */
  evaluated: Record<'begin' | 'steps', readonly RunEnvironment[]>
}

export interface LoopOptions {
  /** Steps that are already done (in a resumed run). */
  firstStep: number
  maxSteps: number
  maxAsyncLevel: number
  evalSteps: number
  evalExamples: number
  evalRolloutsPerExample: number
  evalTemperature: number
  /** Steps between two checkpoints; 0: save only at the end. */
  saveSteps: number
  /** Aborted when the user asks to stop: the current step is finished and saved, and nothing more is evaluated. */
  stop: AbortSignal
}

/** The rollouts of one evaluation of one environment. */
export interface Evaluation {
  step: number
  env: string
  rollouts: Rollout[]
}

export interface LoopResult {
  lastStep: number
  /** The most recent evaluations that followed a step. */
  after: Evaluation[]
}

/** Runs the remaining steps. @throws the error that stopped the run, after saving the last step (complete, or up to its last update) */
export async function trainingLoop(parts: LoopParts, options: LoopOptions): Promise<LoopResult> {
  const { orchestrator, monitor, publish, train, save } = parts
  const { firstStep, maxSteps, maxAsyncLevel, saveSteps, stop } = options
  // `current`: the step that is made, evaluated or saved; the last one if the user asks to stop.
  let [done, saved, current] = [firstStep, firstStep, firstStep]
  let [after, row]: [Evaluated[], Metrics?] = [[]]
  // Rollouts of later steps would not be trained on any more, and the current step finishes sooner without them.
  const abandon = () => orchestrator.abandonAfter(current)
  stop.addEventListener('abort', abandon)
  try {
    const begun = await evaluate(parts, options, firstStep, 'begin')
    if (begun.length > 0) row = await monitor.writeRow(firstStep, metricsOf(begun))
    if (firstStep > 0) after = begun
    if (firstStep > 0 && row && parts.isBest?.(firstStep, row)) await save(firstStep, row)

    while (done < maxSteps && !stop.aborted) {
      const step = (current = done + 1)
      const begin = performance.now()
      // With maxAsyncLevel = 1, the rollouts of step n + 1 start before step n is trained, so they are up to one step off-policy.
      for (let ahead = step; ahead <= Math.min(step + maxAsyncLevel, maxSteps); ahead++) orchestrator.prepare(ahead)
      const { batch, rollouts, dropped, metrics: sampled } = await orchestrator.batch(step, done)
      const pushed = new Map<PolicyVersion, ReturnType<LoopParts['publish']>>()
      const push = (version: PolicyVersion) => void pushed.set(version, publish(version))
      const { metrics: trained } = await train(batch, (share) => push(step - 1 + share)).catch((error: unknown) => {
        // After the first update of a step the weights are no longer those of the step before: what is saved now is saved as this step.
        if (pushed.size > 0) [done, row] = [step, undefined]
        throw error
      })
      // A skipped step gets a version of its own, with unchanged weights.
      if (!pushed.has(step)) push(step)
      done = step
      row = undefined
      // The step is done. If something fails from here on, write its row of metrics before throwing the error.
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
    // The last step, or the one during which the user asked to stop.
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

/** Evaluates each environment. An evaluation that the user interrupts is discarded. */
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
