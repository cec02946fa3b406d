/** `report`: writes one HTML file of a run, or sends its metrics to sinks that do not have them yet. */
import { existsSync, statSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { InvalidArgumentError, type Command } from 'commander'
import { isSystemError, messageOf, UserError } from '../common/errors.ts'
import { SINKS, type SinkName } from '../monitor/sinks/types.ts'

interface Options {
  out?: string
  plots?: string
  bench?: string[]
  sync?: SinkName[]
}

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('report')
    .description(
      'Write report.html of a run: curves, evaluations, samples and config in one file, and plots as SVG and PNG. Of several runs: ' +
        'one page that compares them. Or send metrics elsewhere.',
    )
    .argument('[dirs...]', 'folders of runs: outputs/NAME')
    .option(
      '--out <file>',
      'the page to write (default: report.html in the folder; compare.html for several runs, bench.html for none)',
    )
    .option(
      '--plots <dir>',
      'a folder for the plots as files (default: plots/ in the folder of the run; with --out or several runs, no files)',
    )
    .option('--bench <files...>', "plots of benchmarks too: what 'bench --out' wrote, or files of bench/results")
    .option(
      '--sync <names>',
      'send metrics that were not sent yet to wandb, tensorboard, mlflow or trackio, and write no page',
      sinkNames,
    )
    .action(report)
}

function sinkNames(text: string): SinkName[] {
  return text.split(',').map((word) => {
    const name = SINKS.find((one) => one === word.trim())
    if (name) return name
    throw new InvalidArgumentError(`It must be one or more of ${SINKS.join(', ')}, separated by commas.`)
  })
}

async function report(dirs: string[], { out, plots, bench = [], sync }: Options): Promise<void> {
  const ofPage = [out && '--out', plots && '--plots', bench.length > 0 && '--bench'].filter(Boolean)
  if (sync && ofPage.length > 0) throw new UserError(`report: --sync writes no page. Leave out ${ofPage.join(', ')}, or --sync.`)
  if (dirs.length === 0 && (bench.length === 0 || sync))
    throw new UserError('No run is named: give outputs/NAME, or --bench FILE.')
  const paths = dirs.map((dir) => resolve(dir))
  for (const [i, path] of paths.entries()) {
    if (!statSync(join(path, 'metrics.jsonl'), { throwIfNoEntry: false })?.isFile())
      throw new UserError(
        `${dirs[i]} has no metrics.jsonl: it is not the folder of a run, or the run's first step is not done yet. Give outputs/NAME.`,
      )
  }
  if (sync) {
    for (const path of paths) await send(path, sync)
    return
  }
  const { writeReport } = await import('../monitor/report/html.ts')
  const page = out ?? (dirs.length === 1 ? undefined : dirs.length === 0 ? 'bench.html' : 'compare.html')
  const made = await writeReport(paths, { out: page, plots, bench }).catch((error: unknown) => {
    if (isSystemError(error))
      throw new UserError(`The report cannot be made: ${error.message}. Name another place with --out, or check that file.`)
    throw error
  })
  console.log(made.path)
  if (made.plots) console.log(made.plots)
  if (made.note) console.error(`note: ${made.note}`)
}

/** Writes the report at the end of a run. A failure is only a warning. */
export async function reportAtEnd(path: string, warn: (line: string) => void): Promise<void> {
  try {
    const { writeReport } = await import('../monitor/report/html.ts')
    await writeReport([path])
  } catch (error) {
    warn(`report.html could not be written: ${messageOf(error)}.`)
  }
}

async function send(path: string, names: SinkName[]): Promise<void> {
  const { checkSinks, followRun } = await import('../monitor/sinks/index.ts')
  const { readSource } = await import('../config/compose.ts')
  const { lockState } = await import('../monitor/run-lock.ts')
  checkSinks(names)
  const file = join(path, 'config.toml')
  const config = existsSync(file) ? readSource(file).table : {}
  const run = { path, name: basename(path), config }
  const lock = lockState(join(path, 'run.lock'))
  const { report_to: own = [] } = (config.trainer as { args?: { report_to?: string[] } } | undefined)?.args ?? {}
  const twice = lock === 'held' ? names.find((name) => own.includes(name)) : undefined
  if (twice)
    throw new UserError(
      `${path} is in use by a run that sends its metrics to ${twice} itself (report_to): leave ${twice} out, or wait until the run has ended.`,
    )
  const failed: string[] = []
  const sinks = followRun(names, run, { warn: (line) => failed.push(line), closeMs: 600_000 })
  const left = await sinks.close(lock === 'held' ? 'goes on' : lock === 'dead' ? 'failed' : undefined)
  for (const line of failed) console.error(line)
  const sent = names.filter((name) => !left.includes(name))
  const more = lock === 'held' ? '; the run goes on: repeat this when it has ended' : ''
  if (sent.length > 0) console.log(`${sent.join(', ')}: all rows of ${join(path, 'metrics.jsonl')} were sent${more}`)
  if (left.length > 0) process.exitCode = 1
}
