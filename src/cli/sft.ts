/** `sft`: supervised training on the answers of a data file or of an environment. It also makes new, small models. */
import type { Command } from 'commander'
import { AT, CLI, TRAIN } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { whenThereIsRoom } from '../common/faults.ts'
import type { Metrics } from '../common/types.ts'
import type { TraceWish } from '../config/load.ts'
import { shellWord } from '../monitor/format.ts'
import type { LoadedSft, SftRun } from './sft-setup.ts'
import { reportAtEnd } from './report.ts'
import { NEVER_BEGAN } from './stop.ts'
import type { StepTimeline } from './timeline.ts'
import type { StepTrace } from './trace.ts'

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('sft')
    .description('Train on given answers: sft @ config.toml [--trainer.args.learning_rate 1e-4] [--dry-run] [--resume]')
    .argument('[words...]', '@ config files, --dotted.key overrides; --help lists every key')
    .helpOption(false)
    .allowUnknownOption()
    .passThroughOptions()
    .action(sft)
}

async function sft(words: string[]): Promise<void> {
  const { loadSftConfig } = await import('../config/load.ts')
  const loaded = loadSftConfig(words)
  if ('help' in loaded) {
    console.log(loaded.help)
    return
  }
  for (const notice of loaded.notices) console.error(`note: ${notice}`)
  if (loaded.dryRun) {
    await dryRun(loaded)
    return
  }
  const { untilOver } = await import('./train-again.ts')
  await untilOver(loaded, runOnce)
}

/** A run on one device, from its opening to its last words. */
async function runOnce(loaded: LoadedSft, stop: AbortSignal): Promise<void> {
  const { closeAll, giveUp } = await import('./opening.ts')
  const { openSft, saveTo } = await import('./sft-setup.ts')
  const { followRun } = await import('../monitor/sinks/index.ts')
  const { LostRun } = await import('./train-again.ts')
  const { StepTimeline } = await import('./timeline.ts')
  const run = await openSft(loaded)
  const { config, console: out, trainer, held, folder } = run
  const { args } = config.trainer
  const warn = (line: string): void => out.warn(line)
  const timeline = new StepTimeline({ path: folder.timelinePath, firstStep: trainer.step, warn })
  const sinks = followRun(args.report_to, { path: folder.path, name: folder.runName, config }, { warn })
  let trace: StepTrace | undefined
  let [failed, keep] = [false, true]
  try {
    const before = stop.aborted ? undefined : await heldOutLoss(run, timeline)
    const begun = trainer.step
    const when = begun === 0 ? 'before training' : `at step ${begun}`
    if (before !== undefined) out.print(`held-out loss ${when} ${before.toFixed(3)} (${held.length} examples)`)
    trace = loaded.trace && (await openTrace(loaded.trace, run))
    await train(run, { timeline, trace, stop })
    // Skipped where the user has asked to stop, and where no step was made since the last one.
    const after = stop.aborted || trainer.step === begun ? undefined : await heldOutLoss(run, timeline)
    if (after !== undefined) out.print(`held-out loss after training ${after.toFixed(3)}`)
    if (trainer.step > 0) out.print(`checkpoint: ${folder.checkpointPath(trainer.step)}`)
    keep = trainer.step > 0
    if (!keep) out.print(NEVER_BEGAN)
    else if (trainer.step < args.max_steps)
      out.print(
        `stopped after step ${trainer.step} of ${args.max_steps}; to continue: ${CLI} sft ${AT} ${shellWord(folder.configPath)} --resume`,
      )
    if (keep) await reportAtEnd(folder.path, warn)
    if (trainer.step === args.max_steps) {
      const { save_to: target } = args
      if (target) {
        await whenThereIsRoom(target, () => saveTo(target, run), warn)
        out.print(`${args.use_lora ? 'adapter' : 'model'}: ${target}`)
      }
      const made = shellWord(target ?? folder.checkpointPath(trainer.step))
      const words =
        args.use_lora && config.model.name
          ? `--model.name ${shellWord(config.model.name)} --model.adapter ${made}`
          : `--model ${made}`
      out.print(`continue with reinforcement learning: ${TRAIN} ${AT} FILE ${words}`)
    }
  } catch (error) {
    failed = true
    const { lost } = trainer.decoder.gpu
    // After a user's mistake the folder is removed, unless it holds results.
    keep = lost !== undefined || !(error instanceof UserError)
    throw lost ? new LostRun(folder, lost, config) : error
  } finally {
    const opened = [run, { close: () => sinks.close(failed ? 'failed' : 'finished') }, { close: () => trace?.close() }, timeline]
    await (failed ? giveUp : closeAll)(opened)
    if (!keep) folder.discard()
  }
}

/** Makes the remaining steps, each with its metrics, its line and, where due, its checkpoint. */
async function train(
  run: SftRun,
  { timeline, trace, stop }: { timeline: StepTimeline; trace?: StepTrace; stop: AbortSignal },
): Promise<void> {
  const { trainSft } = await import('../trainer/sft.ts')
  const { config, console: out, progress, trainer, data, metrics, checkpoints } = run
  const { args, ckpt } = config.trainer
  const warn = (line: string): void => out.warn(line)
  const save = (row?: Metrics): Promise<void> => {
    const work = () => checkpoints.save(trainer.step, row, dataOf(run, trainer.step))
    const wait = () => progress.run('saving', { limitMs: 3_600_000 }, work)
    return timeline.during('save_ckpt', () => whenThereIsRoom(`the checkpoint of step ${trainer.step}`, wait, warn))
  }
  trace?.begin(trainer.step + 1)
  await trainSft(trainer, data, {
    maxSteps: args.max_steps,
    saveSteps: ckpt.interval,
    save: (row) => trace?.during('save_ckpt', () => save(row)) ?? save(row),
    stopRequested: () => stop.aborted,
    warn,
    around: (step, work) => {
      timeline.begin(step)
      return progress.run(`training step ${step}`, { limitMs: 24 * 3_600_000 }, (wait) =>
        work((done, total) => wait.update(total > 1 ? `micro-batch ${Math.min(done + 1, total)} of ${total}` : '')),
      )
    },
    onStep: async (step, row) => {
      run.folder.check()
      const write = async () => {
        try {
          return await whenThereIsRoom(`the metrics of step ${step}`, () => metrics.write(step, row), warn)
        } catch (error) {
          // At once: the last step is saved after an error, which makes the folder again.
          throw run.folder.explain(error)
        }
      }
      out.step(step, await timeline.during('log', write))
      if (step < args.max_steps) trace?.begin(step + 1)
    },
  })
}

/** The data as a checkpoint records it: the order follows from it. */
const dataOf = ({ config, data }: SftRun, step: number) => ({
  seed: config.trainer.args.seed,
  shuffle_dataset: config.trainer.args.shuffle_dataset,
  examples: data.samples.length,
  examples_done: data.examplesBefore(step + 1),
})

/** The loss on held-out examples; undefined where there are none. */
async function heldOutLoss(
  { held, trainer, progress, console: out }: SftRun,
  timeline: StepTimeline,
): Promise<number | undefined> {
  const { meanLoss } = await import('../trainer/sft.ts')
  if (held.length === 0) return undefined
  const limits = { limitMs: 24 * 3_600_000 }
  const work = () => meanLoss(trainer, held, (line) => out.warn(line))
  return await timeline.during('eval held-out', () => progress.run('held-out loss', limits, work))
}

async function openTrace(wish: TraceWish, { folder, trainer, console: out, config }: SftRun): Promise<StepTrace> {
  const { StepTrace } = await import('./trace.ts')
  return new StepTrace(wish, {
    firstStep: trainer.step,
    maxSteps: config.trainer.args.max_steps,
    folder: folder.path,
    adapter: trainer.decoder.gpu.facts.name,
    print: (line) => out.print(line),
    warn: (line) => out.warn(line),
  })
}

/** Prints the resolved config and the memory and disk it would need. Starts nothing. */
async function dryRun(loaded: LoadedSft): Promise<void> {
  const { stringifyConfig } = await import('../config/toml-write.ts')
  const { memoryOf, memoryTable } = await import('../config/memory.ts')
  const { beginLine, bestAdapter, sized, tellDisk } = await import('./dry-run.ts')
  const { openSource } = await import('./sft-setup.ts')
  const { openAdapter } = await import('./train-inputs.ts')
  const begin = await beginLine(loaded)
  const model = await openSource(loaded.config)
  const { config, line } = sized(loaded, model, loaded.autoMicroBatch ? await bestAdapter() : undefined)
  console.log(stringifyConfig(config))
  if (begin) console.log(`# ${begin}`)
  if (line) console.log(`# ${line}`)
  if (config.model.adapter) await openAdapter(config, model)
  const table = memoryTable(memoryOf(config, model), model.config)
  console.log(`# GPU memory for ${model.name}\n${table.replaceAll(/^/gm, '#')}`)
  tellDisk({ ...loaded, config }, model.config, config.model.name ?? '')
  model.close()
}
