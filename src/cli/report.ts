/** `report`: one HTML file of a run, and its metrics to the sinks that have not got them yet. */
import { existsSync, readFileSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { InvalidArgumentError, type Command } from 'commander'
import { messageOf, UserError } from '../common/errors.ts'
import type { SinkName } from '../monitor/sinks/types.ts'

/** Adds the verb to the program. */
export function register(program: Command): void {
  program
    .command('report')
    .description(
      'Write report.html of a run: curves, evaluations, samples and config in one file; or send its metrics elsewhere.',
    )
    .argument('<dir>', 'the folder of a run: outputs/NAME')
    .option('--out <file>', 'the file to write (default: report.html in the folder)')
    .option('--sync <names>', 'send what is not sent yet to wandb, tensorboard, mlflow, trackio, and write no file', sinkNames)
    .action(report)
}

const NAMES: readonly SinkName[] = ['wandb', 'tensorboard', 'mlflow', 'trackio']

function sinkNames(text: string): SinkName[] {
  return text.split(',').map((word) => {
    const name = NAMES.find((one) => one === word.trim())
    if (name) return name
    throw new InvalidArgumentError(`It must be one or several of ${NAMES.join(', ')}, with commas between.`)
  })
}

async function report(dir: string, { out, sync }: { out?: string; sync?: SinkName[] }): Promise<void> {
  const path = resolve(dir)
  if (!existsSync(join(path, 'metrics.jsonl')))
    throw new UserError(
      `${dir} has no metrics.jsonl: it is no run's folder, or its first step is still to come. Give outputs/NAME.`,
    )
  if (sync) await send(path, sync)
  else {
    const { writeReport } = await import('../monitor/report-html.ts')
    console.log(writeReport(path, out))
  }
}

/** The report that a run ends with. One that cannot be written is no fault of the run's. */
export async function reportAtEnd(path: string, warn: (line: string) => void): Promise<void> {
  try {
    const { writeReport } = await import('../monitor/report-html.ts')
    writeReport(path)
  } catch (error) {
    warn(`report.html could not be written: ${messageOf(error)}.`)
  }
}

async function send(path: string, names: SinkName[]): Promise<void> {
  const { checkSinks, followRun } = await import('../monitor/sinks/index.ts')
  const { parse } = await import('smol-toml')
  checkSinks(names)
  const file = join(path, 'config.toml')
  const config = existsSync(file) ? parse(readFileSync(file, 'utf8')) : {}
  const run = { path, name: basename(path), config }
  const failed: string[] = []
  const sinks = followRun(names, run, { warn: (line) => failed.push(line), closeMs: 600_000 })
  const left = await sinks.close()
  for (const line of failed) console.error(line)
  const sent = names.filter((name) => !left.includes(name))
  if (sent.length > 0) console.log(`${sent.join(', ')}: all rows of ${join(path, 'metrics.jsonl')} are there`)
  if (left.length > 0) process.exitCode = 1
}
