/** Going on from a checkpoint: which one, what comes back, and what is said of it. */
import { UserError } from '../common/errors.ts'
import type { Resume } from '../config/load.ts'
import type { Monitor } from '../monitor/monitor.ts'
import type { RewindReport, RunFolder } from '../monitor/run-folder.ts'
import { loadCheckpoint, newestCheckpoint, type WeightsAbout } from '../trainer/checkpoint.ts'
import type { Trainer } from '../trainer/trainer.ts'

export interface ResumeParts {
  folder: RunFolder
  trainer: Trainer
  weights: WeightsAbout
  monitor: Monitor
}

/**
 * Brings trainer and folder to a checkpoint of the run; a run that ended before it saved anything begins anew.
 * @returns the step that is done
 * @throws UserError where the checkpoint that was asked for is not there, is not whole, or is of something else
 */
export async function resumeFrom(resume: Resume, { folder, trainer, weights, monitor }: ResumeParts): Promise<number> {
  const { newest, broken } = newestCheckpoint(folder.checkpointsPath)
  const dir = resume.kind === 'step' ? folder.checkpointPath(resume.step) : newest?.dir
  if (!dir && broken.length > 0) {
    throw new UserError(
      `${folder.path} has no whole checkpoint to resume from. ${broken[0]} Start a new run without --resume, under another run_name.`,
    )
  }
  if (!dir) {
    const gone = removed(monitor.rewind(-1))
    monitor.console.print(`resumed  nothing was saved yet: from the first step on${gone}`)
    return 0
  }
  for (const line of resume.kind === 'step' ? [] : broken) monitor.console.warn(`passed over ${line}`)
  const state = await loadCheckpoint(dir, trainer, weights)
  const gone = removed(monitor.rewind(state.step))
  monitor.console.print(`resumed  step ${state.step} from ${dir}: weights, optimizer, schedule and data position${gone}`)
  return state.step
}

/** What a rewind took out, in words: ' (taken out: 2 rows of metrics, 2 steps of rollouts)'. */
function removed({ metricsRows, rolloutFiles, checkpoints }: RewindReport): string {
  const parts = [
    metricsRows > 0 && `${metricsRows} later row${metricsRows === 1 ? '' : 's'} of metrics`,
    rolloutFiles > 0 && `${rolloutFiles} later file${rolloutFiles === 1 ? '' : 's'} of rollouts`,
    checkpoints.length > 0 && `set aside: checkpoint${checkpoints.length === 1 ? '' : 's'} of step ${checkpoints.join(', ')}`,
  ].filter((part) => part !== false)
  return parts.length > 0 ? `; taken out: ${parts.join(', ')}` : ''
}
