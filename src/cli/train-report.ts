/** The last words of a training run. */
import type { Rollout } from '../common/types.ts'
import { finalReport, type EvalSummary, type SamplePair } from '../monitor/report.ts'
import type { Evaluation, LoopResult } from '../orchestrator/loop.ts'
import type { Run } from './train-setup.ts'

/** Prints what was learned, where the files are and what to try next. */
export function reportRun(run: Run, result: LoopResult, stopped: boolean): void {
  const { folder } = run
  const checkpoint = folder.checkpointPath(result.lastStep)
  const text = finalReport({
    before: result.before.map(summary),
    after: result.after.map(summary),
    samples: result.before.flatMap((before, i) => pairs(before, result.after[i])).slice(0, 3),
    files: {
      [run.config.trainer.args.use_lora ? 'adapter (PEFT)' : 'model (Hugging Face)']: checkpoint,
      metrics: folder.metricsPath,
      rollouts: folder.rolloutsPath(result.lastStep),
      config: folder.configPath,
    },
    next: stopped ? [`go on: node train.js @ ${folder.configPath} --resume`] : suggestions(run, checkpoint),
  })
  run.parts.monitor.console.print(`\n${text}\n`)
}

function suggestions(run: Run, checkpoint: string): string[] {
  const { config } = run
  const next = [
    `train longer: node train.js @ ${run.folder.configPath} --resume --trainer.args.max_steps ${config.trainer.args.max_steps * 2}`,
    'another task: set [env] id to arithmetic or reverse-text, or write your own (docs/environments.md)',
    'another loss: copy src/trainer/losses/cispo.ts, change it, and name it: --trainer.args.loss ./my_loss.ts',
  ]
  if (config.trainer.args.use_lora) {
    next.push(
      `one folder with everything in it: node cli.js merge --model ${config.model.name} --adapter ${checkpoint} --out merged`,
    )
  }
  return next
}

function summary({ env, rollouts }: Evaluation): EvalSummary {
  const scored = rollouts.filter((r) => r.reward !== null)
  const mean = (value: (r: Rollout) => number) => scored.reduce((sum, r) => sum + value(r), 0) / Math.max(1, scored.length)
  return {
    env,
    reward: mean((r) => r.reward!),
    rollouts: scored.length,
    tokens: mean((r) => r.completion_tokens.ids.length),
    truncated: mean((r) => Number(r.isTruncated)),
  }
}

/** Questions that show the change: the same ones before and after, those that gained most first. */
function pairs(before: Evaluation, after: Evaluation | undefined): SamplePair[] {
  if (!after || after.step === before.step) return []
  const text = (r: Rollout) => r.completion.at(-1)?.content ?? ''
  return before.rollouts
    .flatMap((b) => {
      const a = after.rollouts.find((r) => r.exampleId === b.exampleId && r.index === b.index)
      return a ? [{ b, a, gain: (a.reward ?? 0) - (b.reward ?? 0) }] : []
    })
    .sort((x, y) => y.gain - x.gain)
    .map(({ b, a }) => ({
      question: b.prompt.at(-1)?.content ?? '',
      expected: b.answer || undefined,
      before: { text: text(b), reward: b.reward },
      after: { text: text(a), reward: a.reward },
    }))
}
