/** `sft`: supervised training on the answers of a data file or of an environment. It also makes new, small models. */
import type { Command } from 'commander'
import { whenThereIsRoom } from '../common/faults.ts'
import type { Metrics } from '../common/types.ts'
import type { LoadedSft, SftRun } from './sft-setup.ts'
import { reportAtEnd } from './report.ts'
import { outliveReaders, stopOnSignal } from './stop.ts'
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
  if (loaded.dryRun) await dryRun(loaded)
  else await run(loaded)
}

async function run(loaded: LoadedSft): Promise<void> {
  const { openSft, saveTo } = await import('./sft-setup.ts')
  const { meanLoss, trainSft } = await import('../trainer/sft.ts')
  const { checkSinks, followRun } = await import('../monitor/sinks/index.ts')
  const { args } = loaded.config.trainer
  checkSinks(args.report_to)
  const run = await openSft(loaded)
  const { console: out, trainer, data, held, metrics, folder } = run
  const about = { path: folder.path, name: folder.runName, config: loaded.config }
  const sinks = followRun(args.report_to, about, { warn: (line) => out.warn(line) })
  let trace: StepTrace | undefined
  outliveReaders()
  const stop = stopOnSignal()
  try {
    const before = held.length > 0 ? await meanLoss(trainer, held) : undefined
    if (before !== undefined) out.print(`held-out loss before training ${before.toFixed(3)} (${held.length} examples)`)
    const first = trainer.step
    trace = loaded.trace && (await openTrace(loaded.trace, run))
    trace?.begin(first + 1)
    const warn = (line: string): void => out.warn(line)
    const save = (row?: Metrics): Promise<void> =>
      whenThereIsRoom(
        `the checkpoint of step ${trainer.step}`,
        () => run.checkpoints.save(trainer.step, row, { seed: args.seed }),
        warn,
      )
    await trainSft(trainer, data, {
      maxSteps: args.max_steps,
      saveSteps: loaded.config.trainer.ckpt.interval,
      save: (row) => trace?.saving(() => save(row)) ?? save(row),
      stopRequested: () => stop.signal.aborted,
      warn,
      onStep: async (step, row) => {
        run.seconds.push(row['time/step'] ?? 0)
        await whenThereIsRoom(`the metrics of step ${step}`, () => metrics.write(step, row), warn)
        if (step === first + 1 || step === args.max_steps || step % args.logging_steps === 0) out.print(stepText(run, step, row))
        if (step < args.max_steps) trace?.begin(step + 1)
      },
    })
    if (before !== undefined) out.print(`held-out loss after training ${(await meanLoss(trainer, held)).toFixed(3)}`)
    out.print(`checkpoint: ${run.folder.checkpointPath(trainer.step)}`)
    await reportAtEnd(folder.path, (line) => out.warn(line))
    if (args.save_to && trainer.step === args.max_steps) {
      await saveTo(args.save_to, run)
      out.print(`model: ${args.save_to}`)
    }
  } finally {
    stop.release()
    await trace?.close()
    await sinks.close()
    run.close()
  }
}

async function openTrace(
  wish: NonNullable<LoadedSft['trace']>,
  { folder, trainer, console: out, loaded }: SftRun,
): Promise<StepTrace> {
  const { StepTrace } = await import('./trace.ts')
  return new StepTrace(wish, {
    firstStep: trainer.step,
    maxSteps: loaded.config.trainer.args.max_steps,
    folder: folder.path,
    adapter: trainer.decoder.gpu.facts.name,
    print: (line) => out.print(line),
    warn: (line) => out.warn(line),
  })
}

/** `step  20/400 | loss 2.31 | entropy 2.1 | grad 0.43 | lr 0.003 | train 12k tok/s | 0.2s | eta 1m20s` */
function stepText({ loaded, seconds, text }: SftRun, step: number, row: Record<string, number | null>): string {
  const { max_steps: maxSteps } = loaded.config.trainer.args
  const { formatNumber, formatCount, formatDuration, etaSeconds } = text
  const parts = [
    `step ${String(step).padStart(String(maxSteps).length)}/${maxSteps}`,
    `loss ${formatNumber(row['loss/mean'])}`,
    `entropy ${formatNumber(row['entropy/all/mean'])}`,
    row['optim/grad_norm'] == null ? 'grad n/a: step skipped' : `grad ${formatNumber(row['optim/grad_norm'])}`,
    `lr ${formatNumber(row['optim/lr'])}`,
    `train ${formatCount(row['perf/throughput'])} tok/s`,
    formatDuration(row['time/step']),
  ]
  const eta = maxSteps > step ? etaSeconds(seconds, maxSteps - step) : undefined
  if (eta !== undefined) parts.push(`eta ${formatDuration(eta)}`)
  return parts.join(' | ')
}

/** The resolved config and what it would need. Starts nothing. */
async function dryRun(loaded: LoadedSft): Promise<void> {
  const { stringifyConfig } = await import('../config/toml-write.ts')
  const { memoryOf, memoryTable } = await import('../config/memory.ts')
  const { bestAdapter, sized } = await import('./dry-run.ts')
  const { openSource } = await import('./sft-setup.ts')
  const model = await openSource(loaded.config)
  const { config, line } = sized(loaded, model, loaded.autoMicroBatch ? await bestAdapter() : undefined)
  console.log(stringifyConfig(config))
  if (line) console.log(`# ${line}`)
  const table = memoryTable(memoryOf(config, model.config), model.config)
  console.log(`# GPU memory for ${model.name}\n${table.replaceAll(/^/gm, '#')}`)
  model.close()
}
