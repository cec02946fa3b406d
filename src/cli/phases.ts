/** The phases of a training loop for its timeline and its trace. Phases that have a metric `time/NAME` are called NAME. */
import type { PolicyVersion } from '../common/types.ts'
import type { LoopParts } from '../orchestrator/loop.ts'

/** Resolves when the weights have arrived at the sampler; undefined where they need not travel. */
export type Pushed = ReturnType<LoopParts['publish']>

/** Receives the phases. */
export interface Phases {
  /** A step begins, and the one before it has ended; called before any work for it. */
  begin(step: number): void
  /** A phase of the step. */
  during<T>(name: string, work: () => Promise<T>): Promise<T>
  /** Weights are sent to the sampler and arrive there while the loop goes on. */
  publish(version: PolicyVersion, push: () => Pushed): Pushed
}

/** The same parts of a training loop, reporting their phases. */
export function withPhases(parts: LoopParts, phases: Phases): LoopParts {
  const { orchestrator, monitor } = parts
  let between = true
  return {
    ...parts,
    orchestrator: {
      prepare: (step) => {
        // The loop first prepares the step that it is about to train, then later ones.
        if (between) phases.begin(step)
        between = false
        orchestrator.prepare(step)
      },
      batch: async (step, version) => {
        between = true
        return await phases.during('wait_for_batch', () => orchestrator.batch(step, version))
      },
      evaluate: (source, options) => phases.during(`eval ${source.name}`, () => orchestrator.evaluate(source, options)),
      abandonAfter: (step) => orchestrator.abandonAfter(step),
      close: () => orchestrator.close(),
    },
    monitor: {
      console: monitor.console,
      finishStep: (done) => phases.during('log', () => monitor.finishStep(done)),
      finishEval: (done) => monitor.finishEval(done),
      writeRow: (step, metrics) => monitor.writeRow(step, metrics),
    },
    publish: (version) => phases.publish(version, () => parts.publish(version)),
    save: (step, row) => phases.during('save_ckpt', () => parts.save(step, row)),
  }
}
