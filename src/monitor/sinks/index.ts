/** Opens the sinks of `trainer.args.report_to` for a run. */
import { UserError } from '../../common/errors.ts'
import { Follower, type FollowOptions } from './follow.ts'
import { mlflowNeeds, openMlflow } from './mlflow.ts'
import { openTensorboard } from './tensorboard.ts'
import { openTrackio } from './trackio.ts'
import type { OpenSink, RunEnd, SinkName, SinkRun } from './types.ts'
import { openWandb, wandbNeeds } from './wandb.ts'

const openers: Record<SinkName, { open: OpenSink; needs?: () => string | undefined }> = {
  wandb: { open: openWandb, needs: wandbNeeds },
  tensorboard: { open: openTensorboard },
  mlflow: { open: openMlflow, needs: mlflowNeeds },
  trackio: { open: openTrackio },
}

/** @throws UserError for a sink that lacks a key or an address, before anything begins */
export function checkSinks(names: readonly (SinkName | 'none')[]): void {
  for (const name of names) {
    const missing = name === 'none' ? undefined : openers[name].needs?.()
    if (missing) throw new UserError(missing)
  }
}

/** The active sinks of a run. */
interface RunSinks {
  /** Sends the rest, for a few seconds, and how the run ended. Never throws; returns the names of sinks that did not get everything. */
  close(end?: RunEnd): Promise<SinkName[]>
}

/** Starts sending rows of metrics.jsonl to each sink: those it lacks, and new ones. This never stops or slows the run. */
export function followRun(reportTo: readonly (SinkName | 'none')[], run: SinkRun, options: FollowOptions): RunSinks {
  const names = [...new Set(reportTo)].filter((name) => name !== 'none')
  const followers = names.map((name) => ({ name, follower: new Follower(name, run, openers[name].open, options) }))
  for (const { follower } of followers) follower.start()
  return {
    close: async (end) => {
      const done = await Promise.all(followers.map(({ follower }) => follower.close(end)))
      return names.filter((_, i) => !done[i])
    },
  }
}
