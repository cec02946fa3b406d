/**
 * The command line: one file for each verb, with `register(program)`, which declares its options and loads the heavy parts only when
 * the verb runs.
 * - Exit codes: 0; 2 for the user's mistakes (UserError, bad options); 1 for the rest. A verb may set `process.exitCode` itself.
 * - Errors are a sentence on stderr; `DAWN_RL_DEBUG=1` adds the stack.
 * - The process is ended explicitly when the verb is done: Dawn's threads keep a process alive as long as a device exists.
 */
import { Command, CommanderError } from 'commander'
import { messageOf, placeInCode, strayError, UserError } from '../common/errors.ts'
import { isGoneReader } from '../common/faults.ts'
import { printable } from '../monitor/format.ts'
import { register as bench } from './bench.ts'
import { register as doctor } from './doctor.ts'
import { register as env } from './env.ts'
import { register as evaluate } from './eval.ts'
import { register as grad } from './grad.ts'
import { register as merge } from './merge.ts'
import { register as runReport } from './report.ts'
import { register as score } from './score.ts'
import { register as serve } from './serve.ts'
import { register as sft } from './sft.ts'
import { register as train } from './train.ts'
import { register as tune } from './tune.ts'
import { versionOf } from './version.ts'
import { register as view } from './view.ts'

/** In the order in which `--help` lists them. */
const verbs: ((program: Command) => void)[] = [
  train,
  sft,
  env,
  evaluate,
  runReport,
  view,
  serve,
  score,
  grad,
  merge,
  tune,
  bench,
  doctor,
]

let ending = false
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // `dawn-rl ... | head` closed the pipe. Verbs that do more than print go on (stop.ts).
  ending = true
  process.exit(isGoneReader(error) ? 0 : report(error))
})
process.on('exit', (code) => {
  // The user's code (a reward, a loss) may end the process: its exit code must not look as if the verb were done.
  const calls = new Error()
  calls.stack = calls.stack?.replace(/^.* at process\.exit\b.*?\n/su, '')
  const place = placeInCode(calls)
  if (ending || (!place && code !== 0)) return
  const by = place ? `process.exit(${code}) at ${place}` : 'a call of process.exit(0)'
  console.error(
    printable(
      `This was ended by ${by}, before it was done. Rewards and other code that a run loads must throw an error instead.`,
    ),
  )
  process.exitCode = code || 1
})
process.on('uncaughtException', (error) => {
  // Where stderr cannot be written (a file on a full disk), the last write below fails as well.
  if (!ending) void end(report(strayError(error)))
})
await end(await main(process.argv.slice(2)))

async function main(words: string[]): Promise<number> {
  const program = new Command('dawn-rl')
  program
    .description('Reinforcement learning for language models over WebGPU: one TOML file drives a run.')
    .version(versionOf('dawn-rl') ?? 'unknown')
    // `train @ a.toml --trainer.args.learning_rate 1e-4`: a verb that calls passThroughOptions() gets all words after its name.
    .enablePositionalOptions()
    .showSuggestionAfterError()
    .exitOverride()
  for (const register of verbs) register(program)
  try {
    needFolder()
    await program.parseAsync(words, { from: 'user' })
    return Number(process.exitCode ?? 0)
  } catch (error) {
    return report(error)
  }
}

/** @throws UserError where the shell is in a folder that was deleted: whatever opens a file would then fail in its own way */
function needFolder(): void {
  try {
    process.cwd()
  } catch (error) {
    throw new UserError('The working folder of this command was deleted. Change to another one (cd) and start again.', {
      cause: error,
    })
  }
}

/** Prints an error on stderr and returns its exit code. */
function report(error: unknown): number {
  // commander has said it already, and throws for --help and --version too
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2
  const debug = process.env.DAWN_RL_DEBUG === '1' && error instanceof Error
  // printable: a message may quote what a model or a server wrote.
  console.error(printable(debug ? (error.stack ?? error.message) : messageOf(error)))
  if (error instanceof UserError) return 2
  if (!debug)
    console.error('(This is an error in dawn-rl or on this machine, not in your input: DAWN_RL_DEBUG=1 shows the stack trace.)')
  return 1
}

async function end(code: number): Promise<never> {
  ending = true
  for (const stream of [process.stdout, process.stderr]) await new Promise<void>((written) => stream.write('', () => written()))
  process.exit(code)
}
