/**
 * The training loop: sample ahead, train, publish, evaluate, save. Everything it drives is handed in, so it reads like the recipe.
 * Steps are counted from 1; the weights after step n are policy version n.
 */
import type { Metrics, PolicyVersion, Rollout, TrainingBatch } from '../common/types.ts'
import type { Monitor } from '../monitor/monitor.ts'
import type { Orchestrator } from './orchestrator.ts'
import type { RunEnvironment } from './tasks.ts'

export interface LoopParts {
  orchestrator: Orchestrator
  monitor: Monitor
  /** One optimizer step; `published` must be called as soon as the new weights are in place. */
  train(batch: TrainingBatch, published: () => void): Promise<{ metrics: Metrics; skipped: boolean }>
  /** Tells the sampler that the weights of `version` are in place. */
  publish(version: PolicyVersion): void
  save(step: number): Promise<void>
  /** Held-out environments; empty where nothing is evaluated. */
  evaluated: readonly RunEnvironment[]
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
  /** True once the user asked to stop: the step under way is finished and saved. */
  stopRequested: () => boolean
}

/** An evaluation of one environment. */
export interface Evaluation {
  step: number
  env: string
  rollouts: Rollout[]
}

export interface LoopResult {
  lastStep: number
  /** The first and the last evaluation of each environment. */
  before: Evaluation[]
  after: Evaluation[]
}

export async function trainingLoop(parts: LoopParts, options: LoopOptions): Promise<LoopResult> {
  const { orchestrator, monitor, publish, train, save } = parts
  const { maxSteps, maxAsyncLevel } = options
  let done = options.firstStep
  const before = await evaluate(parts, options, done)
  let after = before
  if (done === 0 && before.length > 0) monitor.writeRow(0, metricsOf(before))

  while (done < maxSteps && !options.stopRequested()) {
    const step = done + 1
    // One step off-policy: what is sampled from here on is trained on one step later.
    for (let ahead = step; ahead <= Math.min(step + maxAsyncLevel, maxSteps); ahead++) orchestrator.prepare(ahead)
    const begin = performance.now()
    const { batch, rollouts, dropped, waitSeconds } = await orchestrator.batch(step, done)
    const { metrics, skipped } = await train(batch, () => publish(step))
    if (skipped) publish(step)
    done = step

    const seconds = (performance.now() - begin) / 1000
    const times = { 'time/step': seconds, 'time/wait_for_batch': waitSeconds }
    const last = step === maxSteps || options.stopRequested()
    const evaluations = isEvalStep(step, options, last) ? await evaluate(parts, options, step) : []
    if (evaluations.length > 0) after = evaluations
    monitor.finishStep({
      step,
      rollouts,
      version: step - 1,
      dropped,
      metrics: { ...times, ...metrics, ...metricsOf(evaluations) },
    })
    if (last || (options.saveSteps > 0 && step % options.saveSteps === 0)) await save(step)
  }
  await orchestrator.close()
  return { lastStep: done, before: before.map(plain), after: after.map(plain) }
}

interface Evaluated extends Evaluation {
  metrics: Metrics
}

const plain = ({ step, env, rollouts }: Evaluated): Evaluation => ({ step, env, rollouts })
const metricsOf = (evaluations: Evaluated[]): Metrics => Object.assign({}, ...evaluations.map((e) => e.metrics)) as Metrics

function isEvalStep(step: number, options: LoopOptions, last: boolean): boolean {
  return last || step % options.evalSteps === 0
}

async function evaluate(parts: LoopParts, options: LoopOptions, step: number): Promise<Evaluated[]> {
  const results: Evaluated[] = []
  for (const source of parts.evaluated) {
    const begin = performance.now()
    const rollouts = await parts.orchestrator.evaluate(source, {
      step,
      examples: options.evalExamples,
      rolloutsPerExample: options.evalRolloutsPerExample,
      temperature: options.evalTemperature,
    })
    const seconds = (performance.now() - begin) / 1000
    const metrics = parts.monitor.finishEval({ step, env: source.name, rollouts, version: step, seconds })
    results.push({ step, env: source.name, rollouts, metrics })
  }
  return results
}
