/** What a training run prints at its end. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { AT, CLI, isCheckout, TRAIN } from '../common/commands.ts'
import { mean } from '../monitor/aggregate.ts'
import { shellWord } from '../monitor/format.ts'
import { finalReport, type EvalSummary, type SamplePair } from '../monitor/terminal/last-words.ts'
import { answerPairs, readBriefs, rolloutRow, type RolloutBrief, type RolloutRow } from '../monitor/rollout-writer.ts'
import type { LoopResult } from '../orchestrator/loop.ts'
import { NEVER_BEGAN } from './stop.ts'
import { bestStep } from './train-checkpoints.ts'
import { missedEvals, type Run } from './train-setup.ts'

/** The columns of the last words where there is room for them. */
const WIDEST = 100

/** Prints what was learned, where the files are and what to try next. */
export function reportRun(run: Run, result: LoopResult): void {
  const { folder, config } = run
  const { args } = config.trainer
  const { lastStep } = result
  const { console: out } = run.parts.monitor
  if (lastStep === 0) return out.print(`\n${NEVER_BEGAN}`)
  if (lastStep < args.max_steps) out.print(`\nStopped after step ${lastStep} of ${args.max_steps}; it is saved.`)
  // In a resumed run the first process did the evaluation before training.
  const before = readBriefs(folder.rolloutsPath(0)).filter(({ split }) => split === 'eval')
  const after = result.after.flatMap(({ rollouts }) =>
    rollouts.map((rollout) => rolloutRow(lastStep, 'eval', { rollout, advantage: null })),
  )
  const checkpoint = folder.checkpointPath(lastStep)
  const best = config.trainer.ckpt.keep_best === undefined ? undefined : bestStep(folder.path)
  const files = {
    [args.use_lora ? 'adapter (PEFT)' : 'model (Hugging Face)']: checkpoint,
    // The best checkpoint is rarely the last one.
    ...(best !== undefined && { [`best: step ${best}`]: folder.checkpointPath(best) }),
    metrics: folder.metricsPath,
    rollouts: folder.rolloutsPath(lastStep),
    config: folder.configPath,
    'curves, samples': join(folder.path, 'report.html'),
  }
  const report = {
    before: after.length > 0 ? summaries(before) : [],
    after: summaries(after),
    samples: samplePairs(before, after, 3),
    files: Object.fromEntries(Object.entries(files).filter(([, path]) => existsSync(path))),
    next:
      lastStep < args.max_steps || missedEvals(run.parts.evaluated.steps, lastStep, config, folder).length > 0
        ? [`continue: ${TRAIN} ${AT} ${shellWord(folder.configPath)} --resume`]
        : suggestions(run, lastStep, checkpoint),
  }
  out.print(`\n${finalReport(report, Math.min(WIDEST, out.width ?? WIDEST))}\n`)
}

/** Two bundled environments that the run does not have. */
export const otherTasks = (envs: readonly { id: string }[]): string[] =>
  ['arithmetic', 'reverse-text', 'short-answers', 'math-word-problems', 'wordle']
    .filter((id) => envs.every((env) => env.id !== id))
    .slice(0, 2)

function suggestions(run: Run, lastStep: number, checkpoint: string): string[] {
  const { config } = run
  const { args } = config.trainer
  const next = [
    `train longer: ${TRAIN} ${AT} ${shellWord(run.folder.configPath)} --resume --trainer.args.max_steps ${lastStep * 2}`,
    `another task: set [env] id to ${otherTasks(config.env).join(' or ')}, or write your own (docs/environments.md)`,
    `another loss: copy ${isCheckout ? 'src/trainer/losses/cispo.ts' : 'configs/losses/ppo-clip.ts'}, change it, and name it: --trainer.args.loss ./my_loss.ts`,
  ]
  const served = args.use_lora
    ? `${shellWord(config.model.name)} --adapter learned=${shellWord(checkpoint)}`
    : shellWord(checkpoint)
  next.push(`talk to the trained model, from any client of OpenAI's API: ${CLI} serve --model ${served}`)
  if (args.use_lora) {
    next.push(
      `model and adapter as one folder: ${CLI} merge --model ${shellWord(config.model.name)} --adapter ${shellWord(checkpoint)} --out merged`,
    )
  }
  return next
}

type Facts = Pick<RolloutRow, 'env' | 'reward' | 'token_usage' | 'is_truncated'>

/** What an evaluation's answers say of each environment. */
export function summaries(rows: readonly Facts[]): EvalSummary[] {
  return [...Map.groupBy(rows, ({ env }) => env)].map(([env, all]) => {
    const scored = all.filter(({ reward }) => reward !== null)
    const average = (value: (row: Facts) => number) => mean(scored.map(value))
    return {
      env,
      reward: average(({ reward }) => reward!),
      rollouts: scored.length,
      tokens: average((row) => row.token_usage.output_tokens) ?? undefined,
      truncated: average((row) => Number(row.is_truncated)) ?? undefined,
    }
  })
}

const promptOf = ({ prompt }: RolloutRow): string => prompt.at(-1)?.content ?? ''

/** Questions that show the change, each once, those that gained most first. */
export function samplePairs(before: readonly RolloutBrief[], after: readonly RolloutRow[], count: number): SamplePair[] {
  const side = ({ completion, reward }: RolloutRow) => ({
    text: completion.findLast(({ role }) => role === 'assistant')?.content ?? '',
    reward,
  })
  const seen = new Set<string>()
  return answerPairs(before, after)
    .toSorted((x, y) => y.gain - x.gain)
    .filter((pair) => !seen.has(promptOf(pair.after)) && seen.add(promptOf(pair.after)))
    .slice(0, count)
    .map((pair) => ({
      question: promptOf(pair.after),
      expected: pair.after.answer || undefined,
      before: side(pair.before.row()),
      after: side(pair.after),
    }))
}
