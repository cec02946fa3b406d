/** `train`: reinforcement learning from one TOML file. This file is the order of things; what is built is in train-setup.ts. */
import type { Command } from 'commander'
import { UserError } from '../common/errors.ts'
import type { TraceWish } from '../config/load.ts'
import { reportAtEnd } from './report.ts'
import { outliveReaders, stopOnSignal } from './stop.ts'
import type { StepTrace } from './trace.ts'
import type { Run } from './train-setup.ts'

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('train')
    .description(
      'Train by reinforcement: train @ config.toml [@ overlay.toml] [--trainer.args.learning_rate 1e-4] [--dry-run] [--resume]',
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
  const { openRun } = await import('./train-setup.ts')
  const { trainingLoop } = await import('../orchestrator/loop.ts')
  const { reportRun } = await import('./train-report.ts')
  const { checkSinks, followRun } = await import('../monitor/sinks/index.ts')
  const reportTo = loaded.config.trainer.args.report_to
  checkSinks(reportTo)
  outliveReaders()
  const stop = stopOnSignal()
  try {
    const run = await openRun(loaded)
    let keep = false
    let trace: StepTrace | undefined
    const { folder, config, parts } = run
    const about = { path: folder.path, name: folder.runName, config }
    const sinks = followRun(reportTo, about, { warn: (line) => parts.monitor.console.warn(line) })
    try {
      trace = loaded.trace && (await openTrace(loaded.trace, run))
      const result = await trainingLoop(trace?.around(run.parts) ?? run.parts, { ...run.loop, stop: stop.signal })
      keep = result.lastStep > 0
      if (keep) await reportAtEnd(folder.path, (line) => parts.monitor.console.warn(line))
      reportRun(run, result)
    } catch (error) {
      // A mistake of the user's leaves no folder behind where nothing was made yet.
      keep = !(error instanceof UserError)
      throw error
    } finally {
      await trace?.close()
      await sinks.close()
      await run.close()
      if (!keep) run.folder.discard()
    }
  } finally {
    stop.release()
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
