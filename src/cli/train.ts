/** `train`: reinforcement learning from one TOML file. This file sets the order of the work; train-setup.ts builds the parts. */
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import type { Loaded, TraceWish } from '../config/load.ts'
import type { RunConfig } from '../config/schema.ts'
import { reportAtEnd } from './report.ts'
import { watchLoop } from './stuck.ts'
import type { StepTrace } from './trace.ts'
import type { Run } from './train-setup.ts'

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('train')
    .description(
      'Train with reinforcement learning: train @ config.toml [@ overlay.toml] [--trainer.args.learning_rate 1e-4] [--dry-run] [--resume]',
    )
    .argument('[words...]', '@ config files, --dotted.key overrides; --help lists every key')
    .helpOption(false)
    .allowUnknownOption()
    .passThroughOptions()
    .action(train)
}

async function train(words: string[]): Promise<void> {
  const { loadConfig } = await import('../config/load.ts')
  const loaded = loadConfig(words)
  if ('help' in loaded) {
    console.log(loaded.help)
    return
  }
  for (const notice of loaded.notices) console.error(`note: ${notice}`)
  if (loaded.dryRun) {
    const { dryRun } = await import('./dry-run.ts')
    await dryRun(loaded)
    return
  }
  const { untilOver } = await import('./train-again.ts')
  const watch = watchLoop()
  try {
    await untilOver(loaded, runOnce)
  } finally {
    watch.close()
  }
}

/** A run on one device, from start to end. */
async function runOnce(loaded: Loaded<RunConfig>, stop: AbortSignal): Promise<void> {
  const { openRun } = await import('./train-setup.ts')
  const { trainingLoop } = await import('../orchestrator/loop.ts')
  const { reportRun } = await import('./train-report.ts')
  const { followRun } = await import('../monitor/sinks/index.ts')
  const { LostRun } = await import('./train-again.ts')
  const { withPhases } = await import('./phases.ts')
  const { closeAll, giveUp } = await import('./opening.ts')
  const { StepTimeline } = await import('./timeline.ts')
  const { writeOrigin } = await import('./run-origin.ts')
  const run = await openRun(loaded)
  let keep = false
  let failed = false
  let trace: StepTrace | undefined
  const { folder, config, parts } = run
  const about = { path: folder.path, name: folder.runName, config }
  const origin = writeOrigin(folder.logPath, run.adapter)
  const timeline = new StepTimeline({ ...run.loop, path: folder.timelinePath, warn: (line) => parts.monitor.console.warn(line) })
  const sinks = followRun(config.trainer.args.report_to, about, { warn: (line) => parts.monitor.console.warn(line) })
  try {
    trace = loaded.trace && (await openTrace(loaded.trace, run))
    const traced = trace ? withPhases(run.parts, trace) : run.parts
    const result = await trainingLoop(withPhases(traced, timeline), { ...run.loop, stop })
    keep = result.lastStep > 0
    if (keep) await reportAtEnd(folder.path, (line) => parts.monitor.console.warn(line))
    reportRun(run, result)
  } catch (error) {
    failed = true
    const lost = run.lost()
    // After a user's mistake the folder is removed, unless it holds results.
    keep = lost !== undefined || !(error instanceof UserError)
    throw lost ? new LostRun(folder, lost, config) : error
  } finally {
    const opened = [run, { close: () => sinks.close(failed ? 'failed' : 'finished') }, { close: () => trace?.close() }, { close: () => origin }, timeline]
    await (failed ? giveUp : closeAll)(opened)
    if (!keep) run.folder.discard()
  }
}

async function openTrace(wish: TraceWish, { folder, parts, loop, adapter }: Run): Promise<StepTrace> {
  const { StepTrace } = await import('./trace.ts')
  const { console: out } = parts.monitor
  return new StepTrace(wish, {
    ...loop,
    folder: folder.path,
    adapter,
    print: (line) => out.print(line),
    warn: (line) => out.warn(line),
  })
}
