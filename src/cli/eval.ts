/** `eval`: environments against a model, an endpoint or the checkpoints of a run. This file declares the options and sets the order of the work. */
import { Option, type Command } from 'commander'
import { makeFolder } from '../common/folders.ts'
import { MOST_ROLLOUTS } from '../common/sampling.ts'
import type { EvalOptions } from './eval-plan.ts'
import type { EvalScore } from './eval-score.ts'
import { checkOutFolder } from './out-file.ts'
import { countOrAll, notNegative, quantizationOption, whole } from './options.ts'
import { outliveReaders, stopOnSignal } from './stop.ts'

/** Adds the verb to the program. Short options are those of verifiers' vf-eval where it has them. */
export function register(program: Command): void {
  program
    .command('eval')
    .description(
      'Score a model, an endpoint or the checkpoints of a run on environments: avg@k, pass@k with 95 % intervals, advice.',
    )
    .argument('[words...]', 'ids or paths of environments; or @ FILE, a training config or an eval config of verifiers')
    .option('-m, --model <ref>', 'a folder, .gguf file or hub id; or the name of an endpoint')
    .option('--adapter <dir>', 'a PEFT adapter for the model')
    .addOption(quantizationOption())
    .option('-b, --base-url <url>', 'an OpenAI-compatible endpoint, with its path: http://127.0.0.1:8000/v1')
    .option('-k, --api-key-var <name>', 'the environment variable that holds the key of the endpoint')
    .option('-e, --endpoints <file>', 'the file that names endpoints (default: configs/endpoints.toml, endpoints.toml)')
    .option('--run <dir>', 'evaluate the checkpoints of a run and the model that it started from, on the environments of the run')
    .option(
      '--steps <list>',
      'with --run: only the checkpoints of these steps, such as 10,50,100 or best (default: all that are kept)',
    )
    .option('--no-base', 'with --run: leave out the model that it started from')
    .option(
      '-n, --num-examples <count>',
      'examples of each environment; -1: all (default: eval_examples of the config, else 32)',
      countOrAll,
    )
    .option('-r, --rollouts-per-example <count>', 'answers to each example (default: 4)', whole(1, MOST_ROLLOUTS))
    .option('-a, --env-args <json>', 'arguments of the environments')
    .option(
      '--python-path <file>',
      'the Python interpreter that has the environments written in Python (default: the one made by scripts/setup-verifiers.sh)',
    )
    .addOption(
      new Option('--split <name>', 'eval: held-out tasks; train: the tasks to train on')
        .choices(['eval', 'train'])
        .default('eval'),
    )
    .option('--shuffle', 'take random examples of the split (by --seed) instead of its first ones')
    .option('-t, --max-tokens <count>', "tokens of an answer (default: the config's, else 512)", whole(1))
    .option('-T, --temperature <number>', "0 is greedy (default: the config's eval_temperature, else 1)", notNegative)
    .option('-S, --sampling-args <json>', 'top_p, top_k, chat_template_kwargs, ...; other fields are passed on to an endpoint')
    .option('-c, --max-concurrent <count>', 'how many answers may be in progress at once', whole(1), 32)
    .option('--max-seq-len <tokens>', 'tokens of prompt and answers together, in the embedded engine', whole(2))
    .option('-o, --output-dir <dir>', 'where to make the folders of the results', 'outputs/evals')
    .option('-R, --resume', 'continue the newest evaluation with the same settings; failed answers are tried again')
    .option('--seed <number>', 'seed of sampling and of --shuffle', whole(0), 42)
    .option('--solved-at <reward>', 'a reward of at least this counts as solved in pass@k', notNegative, 0.5)
    .action(evaluate)
}

async function evaluate(words: string[], options: EvalOptions): Promise<void> {
  const { planEval } = await import('./eval-plan.ts')
  const { closeEnvironments } = await import('./environments.ts')
  const { openTargets } = await import('./eval-targets.ts')
  const { openEvalFolder, playEval, finishEval, slotsOf } = await import('./eval-play.ts')
  const { adviceOf, evalTable, scoreOf, spreadLine } = await import('./eval-score.ts')
  const { EvalProgress } = await import('./eval-progress.ts')
  const plan = await planEval(words, options)
  outliveReaders()
  const stop = stopOnSignal('unfinished examples are dropped, finished ones are kept')
  try {
    for (const notice of plan.notices) console.error(`note: ${notice}`)
    checkOutFolder('--output-dir', options.outputDir)
    const { targets, together, close } = await openTargets(plan, options.maxConcurrent)
    const scores: EvalScore[] = []
    const folders: string[] = []
    try {
      // Environments with a process of their own write its log beside the results.
      const opened = plan.environments.filter(({ env }) => env.open !== undefined)
      if (opened.length > 0) makeFolder(options.outputDir)
      const warn = (line: string) => console.error(`warning: ${line}`)
      for (const { env } of opened) await env.open!({ logs: options.outputDir, warn })
      for (const target of targets) {
        if (stop.signal.aborted) break
        const client = await target.open()
        // Side by side, so that several small ones fill the engine together.
        const works = plan.environments.map((environment) => ({ target, environment, plan, options }))
        const parts = works.map((work) => ({ work, folder: openEvalFolder(work) }))
        folders.push(...parts.map(({ folder }) => folder.path))
        const progress = new EvalProgress(target.label, parts)
        const room = slotsOf(plan, options.maxConcurrent, together)
        const begin = performance.now()
        const played = parts.map(async ({ work, folder }, i) => {
          const rows = await playEval(work, folder, client, room, (now) => progress.tell(i, now), stop.signal)
          return { work, folder, rows, seconds: (performance.now() - begin) / 1000 }
        })
        const all = await Promise.all(played)
        progress.end()
        for (const { work, folder, rows, seconds } of all) {
          const { name: env, k, rows: examples } = work.environment
          // The evaluation was stopped before this environment was complete.
          if (rows.length < examples.length * k) continue
          const score = scoreOf(rows, { env, target: target.label, k, solvedAt: options.solvedAt })
          finishEval(work, folder, rows, score, seconds)
          scores.push(score)
        }
      }
    } finally {
      await close()
    }
    if (scores.length > 0) console.log(`\n${evalTable(scores)}\n`)
    const told = scores.filter((score, i) => !score.avg || scores.findIndex((other) => other.env === score.env) === i)
    for (const score of told) {
      console.log(`${score.env}, ${score.target}: ${score.avg ? spreadLine(score) : 'every answer failed'}`)
      for (const line of adviceOf(score)) console.log(`  - ${line}`)
    }
    // A script that wants numbers must notice that there are none.
    if (scores.some((score) => !score.avg)) process.exitCode = 1
    if (scores.length > 0)
      console.log('\nIntervals: 95 % bootstrap over examples. mixed: examples whose answers differ in reward.')
    if (folders.length > 0) console.log(`results  ${folders.join('\n         ')}`)
    if (stop.signal.aborted) {
      const kept = 'Stopped: finished examples are kept; the same command with --resume continues.'
      console.error(folders.length > 0 ? kept : 'Stopped before the first example: nothing was written.')
      process.exitCode = 130
    }
  } finally {
    stop.release()
    await closeEnvironments(plan.environments)
  }
}
