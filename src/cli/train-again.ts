/** What a run does when its device is lost (a driver restarts, a GPU is removed): it opens the device again and resumes from the newest checkpoint. */
import { setTimeout as sleep } from 'node:timers/promises'
import { AT, CLI, TRAIN } from '../common/commands.ts'
import { messageOf, strayError } from '../common/errors.ts'
import { LOST_DEVICE, pauseMs } from '../common/faults.ts'
import type { Loaded } from '../config/load.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { DeviceLostError } from '../gpu/errors.ts'
import { shellWord } from '../monitor/format.ts'
import { readMetrics } from '../monitor/metrics-writer.ts'
import type { RunFolder } from '../monitor/run-folder.ts'
import { checkSinks } from '../monitor/sinks/index.ts'
import { outliveReaders, stopOnSignal, stopOnStray } from './stop.ts'

/** Thrown when the device is lost after the run's folder was opened. */
export class LostRun extends Error {
  override name = 'LostRun'
  readonly folder: RunFolder
  /** The resolved config; "auto" is replaced by its number. */
  readonly config: RunConfig | SftConfig
  constructor(folder: RunFolder, lost: DeviceLostError, config: RunConfig | SftConfig) {
    super(lost.message)
    this.folder = folder
    this.config = config
  }
}

/** Runs `attempt` to its end, surviving lost devices and closed outputs. `stop` fires when the user asks the run to stop. */
export async function untilOver<Config extends RunConfig | SftConfig>(
  loaded: Loaded<Config>,
  attempt: (loaded: Loaded<Config>, stop: AbortSignal) => Promise<void>,
): Promise<void> {
  checkSinks(loaded.config.trainer.args.report_to)
  outliveReaders()
  const stop = stopOnSignal()
  const strays = stopOnStray(() => stop.stop())
  let stray: { error: unknown } | undefined
  try {
    await outliveDevice(loaded, stop.signal, (now) => attempt(now, stop.signal))
  } finally {
    stop.release()
    stray = strays.release()
  }
  if (stray) throw strayError(stray.error)
}

/**
 * Runs `attempt`. If its device is lost, waits and runs it again, resumed from the newest checkpoint; each pause is longer than the last.
 * @param stop ends the pause, and the run with it
 * @throws any other error of an attempt; Error with the command that resumes, when devices are lost again and again without a finished step
 * in between
 */
export async function outliveDevice<Config extends RunConfig | SftConfig>(
  loaded: Loaded<Config>,
  stop: AbortSignal,
  attempt: (loaded: Loaded<Config>) => Promise<void>,
  pauses = LOST_DEVICE,
): Promise<void> {
  let now = loaded
  let [failed, furthest] = [0, 0]
  while (true) {
    try {
      return await attempt(now)
    } catch (error) {
      if (!(error instanceof LostRun || error instanceof DeviceLostError)) throw error
      const folder = error instanceof LostRun ? error.folder : undefined
      if (folder) {
        const reached = readMetrics(folder.metricsPath).at(-1)?.step ?? 0
        if (reached > furthest) [furthest, failed] = [reached, 0]
        // The attempt was given a config of this type.
        const config = (error as LostRun).config as Config
        // --trace refuses steps that the resumed run will not make.
        const trace = (loaded.trace?.steps?.[0] ?? Infinity) > furthest ? loaded.trace : undefined
        now = { ...loaded, config, autoMicroBatch: false, fork: undefined, trace, resume: { kind: 'dir', dir: folder.path } }
      }
      const ms = pauseMs(failed++, pauses)
      if (failed > pauses.tries) throw over(error, `${failed} times without a finished step in between`, folder, mend)
      if (!stop.aborted) {
        console.error(
          `${error.message}. It is opened again in ${ms / 1000} s, and the run continues from its last checkpoint (attempt ${failed} of ${pauses.tries}).`,
        )
        await sleep(ms, undefined, { signal: stop }).catch(() => {})
      }
      if (stop.aborted) throw over(error, 'and the run was asked to stop', folder)
    }
  }
}

/** What may help if the device is lost again and again. */
const mend =
  ' Operating systems reset a GPU that works for seconds without a pause; a smaller trainer.args.micro_batch_tokens shortens its work (docs/troubleshooting.md, "The GPU device is lost").'

function over(error: unknown, why: string, folder: RunFolder | undefined, help = ''): Error {
  const verb = error instanceof LostRun && 'data' in error.config ? `${CLI} sft` : TRAIN
  const on = folder
    ? ` What was saved is intact: ${verb} ${AT} ${shellWord(folder.configPath)} --resume continues from there.`
    : ''
  return new Error(`${messageOf(error)} (${why}).${help}${on}`, { cause: error })
}
