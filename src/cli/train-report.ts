/** The last words of a training run. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { CLI, isCheckout, TRAIN } from '../common/commands.ts'
import type { Message, Rollout } from '../common/types.ts'
import { shellWord } from '../monitor/format.ts'
import { finalReport, type EvalSummary, type SamplePair } from '../monitor/report.ts'
import { readRollouts, type RolloutRow } from '../monitor/rollout-writer.ts'
import type { LoopResult } from '../orchestrator/loop.ts'
import { missedEvals, type Run } from './train-setup.ts'

/** One held-out question and what was answered. */
interface Answer {
  env: string
  exampleId: number
  index: number
  question: string
  expected: string
  text: string
  reward: number | null
  tokens: number
  isTruncated: boolean
}

/** Prints what was learned, where the files are and what to try next. */
export function reportRun(run: Run, result: LoopResult): void {
  const { folder, config } = run
  const { args } = config.trainer
  const { lastStep } = result
  const { console: out } = run.parts.monitor
  if (lastStep === 0) return out.print('\nStopped before the first step was done: there is nothing to go on from.')
  if (lastStep < args.max_steps) out.print(`\nStopped after step ${lastStep} of ${args.max_steps}; it is saved.`)
  // A resumed run was evaluated before its first step by the process that began it.
  const before = readRollouts(folder, 0).filter((row) => row.split === 'eval').map(answerOfRow) // prettier-ignore
  const after = result.after.flatMap(({ rollouts }) => rollouts.map(answerOf))
  const checkpoint = folder.checkpointPath(lastStep)
  const files = {
    [args.use_lora ? 'adapter (PEFT)' : 'model (Hugging Face)']: checkpoint,
    metrics: folder.metricsPath,
    rollouts: folder.rolloutsPath(lastStep),
    config: folder.configPath,
    'curves, samples': join(folder.path, 'report.html'),
  }
  const text = finalReport({
    before: after.length > 0 ? summaries(before) : [],
    after: summaries(after),
    samples: pairs(before, after).slice(0, 3),
    files: Object.fromEntries(Object.entries(files).filter(([, path]) => existsSync(path))),
    next:
      lastStep < args.max_steps || missedEvals(run.parts.evaluated.steps, lastStep, config, folder).length > 0
        ? [`go on: ${TRAIN} @ ${shellWord(folder.configPath)} --resume`]
        : suggestions(run, checkpoint),
  })
  out.print(`\n${text}\n`)
}

function suggestions(run: Run, checkpoint: string): string[] {
  const { config } = run
  const { args } = config.trainer
  const next = [
    `train longer: ${TRAIN} @ ${shellWord(run.folder.configPath)} --resume --trainer.args.max_steps ${args.max_steps * 2}`,
    'another task: set [env] id to arithmetic or reverse-text, or write your own (docs/environments.md)',
    `another loss: copy ${isCheckout ? 'src/trainer/losses/cispo.ts' : 'configs/losses/ppo-clip.ts'}, change it, and name it: --trainer.args.loss ./my_loss.ts`,
  ]
  if (args.use_lora) {
    next.push(
      `model and adapter as one folder: ${CLI} merge --model ${shellWord(config.model.name)} --adapter ${shellWord(checkpoint)} --out merged`,
    )
  }
  return next
}

const lastAnswer = (completion: readonly Message[]) => completion.findLast(({ role }) => role === 'assistant')?.content ?? ''

function answerOf(r: Rollout): Answer {
  const { env, exampleId, index, answer: expected, reward, isTruncated } = r
  const [question, text] = [r.prompt.at(-1)?.content ?? '', lastAnswer(r.completion)]
  return { env, exampleId, index, question, expected, text, reward, tokens: r.completion_tokens.ids.length, isTruncated }
}

function answerOfRow(row: RolloutRow): Answer {
  const { env, example_id: exampleId, index, answer: expected, reward, is_truncated: isTruncated } = row
  const [question, text] = [row.prompt.at(-1)?.content ?? '', lastAnswer(row.completion)]
  return { env, exampleId, index, question, expected, text, reward, tokens: row.token_usage.output_tokens, isTruncated }
}

function summaries(answers: Answer[]): EvalSummary[] {
  return [...Map.groupBy(answers, (a) => a.env)].map(([env, all]) => {
    const scored = all.filter((a) => a.reward !== null)
    const mean = (value: (a: Answer) => number) => scored.reduce((sum, a) => sum + value(a), 0) / Math.max(1, scored.length)
    return {
      env,
      reward: mean((a) => a.reward!),
      rollouts: scored.length,
      tokens: mean((a) => a.tokens),
      truncated: mean((a) => Number(a.isTruncated)),
    }
  })
}

/** Questions that show the change: the same ones before and after, those that gained most first. */
function pairs(before: Answer[], after: Answer[]): SamplePair[] {
  const keyOf = ({ env, exampleId, index }: Answer) => `${exampleId} ${index} ${env}`
  const later = new Map(after.map((answer) => [keyOf(answer), answer]))
  return before
    .flatMap((b) => {
      const a = later.get(keyOf(b))
      return a ? [{ b, a, gain: (a.reward ?? 0) - (b.reward ?? 0) }] : []
    })
    .toSorted((x, y) => y.gain - x.gain)
    .map(({ b, a }) => ({
      question: b.question,
      expected: b.expected || undefined,
      before: { text: b.text, reward: b.reward },
      after: { text: a.text, reward: a.reward },
    }))
}
