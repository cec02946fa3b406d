/** The phases of a training loop, as its timeline and its trace tell of them: those that metrics have as `time/...` are called so. */
import type { PolicyVersion } from '../common/types.ts'
import type { LoopParts } from '../orchestrator/loop.ts'

/** Resolves where weights have arrived that must travel first. */
export type Pushed = ReturnType<LoopParts['publish']>

/** Who is told of them. */
export interface Phases {
  /** A step begins, and the one before it has ended: to be called before anything is done for it. */
  begin(step: number): void
  /** A phase of the step. */
  during<T>(name: string, work: () => Promise<T>): Promise<T>
  /** Weights go to the sampler, and arrive there while the loop goes on. */
  publish(version: PolicyVersion, push: () => Pushed): Pushed
}

/** The parts of a training loop, telling of what they do. */
export function withPhases(parts: LoopParts, phases: Phases): LoopParts {
  const { orchestrator, monitor } = parts
  let between = true
  return {
    ...parts,
    orchestrator: {
      prepare: (step) => {
        // The loop prepares the step that it makes first, then those ahead.
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
