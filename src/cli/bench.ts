/** `bench`: how fast kernels and whole steps are on this adapter, beside what it can do at best. */
import { readFileSync } from 'node:fs'
import { Argument, type Command } from 'commander'
import { CLI } from '../common/commands.ts'
import { messageOf, UserError } from '../common/errors.ts'
import { shellWord } from '../monitor/format.ts'
import type { BenchReport, Topic } from '../bench/run.ts'
import { whole } from './options.ts'
import { checkOut, unwritten, writeOut } from './out-file.ts'
import { versionOf } from './version.ts'

interface Options {
  model?: string[]
  rows?: number[]
  tokens?: number
  repeats?: number
  quick?: boolean
  matrixUnits?: boolean
  out?: string
  table?: string
}

const topics: Topic[] = ['kernels', 'matmul', 'attention', 'norm', 'head', 'optimizer', 'sampler', 'step', 'decode', 'all']

const list = (text: string): string[] => text.split(',').map((part) => part.trim())

export function register(program: Command): void {
  program
    .command('bench')
    .description('Measure kernels, training steps and decoding on this adapter, as a table and one last line of JSON.')
    .addArgument(new Argument('[what...]', 'what to measure').choices(topics).default(['all'], 'all'))
    .option('--model <names>', 'shapes with random weights (qwen3-0.6b), folders or .gguf files, separated by commas', list)
    .option(
      '--rows <numbers>',
      'rows for products, norms, head and sampler, and sequences for decode, separated by commas',
      (text) => list(text).map(whole(1)),
    )
    .option('--tokens <number>', 'tokens in the batch of a training step', whole(1))
    .option(
      '--repeats <number>',
      'measurements of each case, of which the best counts (default: 3, of steps and decode 2)',
      whole(1),
    )
    .option('--matrix-units', "steps and decode on the GPU's matrix units, in f16; products are measured with and without anyway")
    .option('--quick', 'few and small cases, within a minute: shows that everything works, not how fast it is')
    .option('--out <file>', 'write the JSON to this file too')
    .option('--table <file>', 'measure nothing: print a report that --out wrote, as Markdown')
    .addHelpText('after', words)
    .action(bench)
}

const words = `
Shapes: tiny, smollm2-135m, qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3.5-0.8b, gemma-3-270m, olmo-2-1b, lfm2-350m,
        granite-4.0-350m.
Every case is checked first: kernels against float64 at sampled points, a model's log-probabilities against a float64 pass on the host,
generated tokens against the trainer's forward pass. A wrong result is an error that names the case.
'of peak' compares with a loop of multiply-adds in registers (or on the matrix units), 'of copy' with a plain copy; both are measured first.
MFU is the share of that peak that the operations of the model's pass make up.`

/** Topics that read an option. */
const readers: Partial<Record<keyof Options, Topic[]>> = {
  rows: ['kernels', 'matmul', 'norm', 'head', 'sampler', 'decode'],
  tokens: ['step'],
}

/** @throws UserError for words that would change nothing */
function checkUse(options: Options, { args: what, options: all }: Command): void {
  const given = (Object.keys(options) as (keyof Options)[]).filter((key) => key !== 'table')
  const optionOf = (key: keyof Options) => all.find((option) => option.attributeName() === key)!.long!
  const idle = [...what, ...given.map(optionOf)]
  if (options.table !== undefined && idle.length > 0)
    throw new UserError(`bench: --table prints a report that exists, and measures nothing. Leave out ${idle.join(', ')}.`)
  for (const key of given) {
    const topics = readers[key]
    if (!topics || what.length === 0 || [...topics, 'all'].some((topic) => what.includes(topic))) continue
    const names = topics.join(', ').replace(/, (?=[^,]*$)/, ' and ')
    throw new UserError(`bench: ${optionOf(key)} is for ${names} alone. Leave it out, or measure ${topics.at(-1)} too.`)
  }
}

async function bench(what: Topic[], options: Options, command: Command): Promise<void> {
  checkUse(options, command)
  const { briefly, reportLines, reportMarkdown } = await import('../bench/report.ts')
  if (options.table !== undefined) {
    console.log(tableOf(options.table, reportMarkdown))
    return
  }
  if (options.out !== undefined) checkOut(options.out)
  const { Gpu } = await import('../gpu/gpu.ts')
  const { runBench } = await import('../bench/run.ts')
  const gpu = await Gpu.open({ wideVectors: await takesWideVectors(what, options) })
  const start = performance.now()
  const progress = (line: string): void => {
    process.stderr.write(`${String(Math.round((performance.now() - start) / 1000)).padStart(5)} s  ${line}\n`)
  }
  try {
    const versions = {
      'dawn-rl': versionOf('dawn-rl') ?? 'unknown',
      node: process.versions.node,
      webgpu: versionOf('webgpu') ?? 'unknown',
    }
    const { model: models, rows, tokens, repeats, quick, matrixUnits } = options
    const command = `${CLI} ${process.argv
      .slice(2)
      .map((word) => shellWord(word))
      .join(' ')}`
    const report = await runBench(
      gpu,
      { topics: what, models, rows, tokens, repeats, quick, matrixUnits, versions, command },
      { progress, row: (row) => process.stderr.write(`         ${briefly(row)}\n`) },
    )
    console.log(reportLines(report).join('\n'))
    const json = JSON.stringify(report, (_, value: unknown) => (typeof value === 'number' ? Number(value.toPrecision(5)) : value))
    console.log(json)
    if (options.out === undefined) return
    try {
      writeOut(options.out, `${JSON.stringify(JSON.parse(json), null, 1)}\n`)
    } catch (error) {
      unwritten(`--out ${options.out}`)(error)
    }
  } finally {
    gpu.close()
  }
}

/** Whether a run of these models would use 512-bit vectors. False without --model, where there are models of both kinds, and for kernels alone. */
async function takesWideVectors(what: Topic[], { model: names, matrixUnits }: Options): Promise<boolean> {
  if (names === undefined || !what.every((topic) => topic === 'step' || topic === 'decode')) return false
  const { modelFor } = await import('../bench/shapes.ts')
  const { gainsByWideVectors } = await import('../model/decoder/wide-vectors.ts')
  const models = await Promise.all(names.map(modelFor))
  for (const { tensors } of models) tensors.close()
  return gainsByWideVectors(
    models.map(({ config }) => config),
    { trains: what.includes('step'), matrixUnits },
  )
}

/** @throws UserError for a file that is missing or was not written by `bench --out` */
function tableOf(path: string, toMarkdown: (report: BenchReport) => string): string {
  let report: Partial<BenchReport> | null
  try {
    report = JSON.parse(readFileSync(path, 'utf8')) as Partial<BenchReport> | null
  } catch (error) {
    throw new UserError(`--table ${path} cannot be read: ${messageOf(error)}`)
  }
  try {
    if (report?.bench === 'dawn-rl') return toMarkdown(report as BenchReport)
  } catch {
    // A part is missing, as of a file that was edited.
  }
  throw new UserError(`--table ${path} is not a report of '${CLI} bench --out FILE'.`)
}
