/** What is left of a step that was not finite, for whoever looks into it: its batch, in the format that `score` and `grad` take. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { CLI } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { whenThereIsRoom } from '../common/faults.ts'
import type { TrainingBatch } from '../common/types.ts'
import { counted } from '../monitor/format.ts'

/** Training has left the finite numbers, which a config or a reward mends. The weights are still those of the last good step: save them. */
export class NotFiniteError extends UserError {
  override name = 'NotFiniteError'
}

/** What was not finite, at which of a step's updates (from 0). */
interface BadUpdate {
  what: string
  index: number
}

/** Writes `<run>/nan_step_N/batch.json` and note.txt, once the disk has room; the folder. `warn` is told of the step, and of a wait. */
export async function writeBadStep(
  runFolder: string,
  batch: TrainingBatch,
  bad: BadUpdate,
  warn: (line: string) => void = () => {},
): Promise<string> {
  const dir = join(runFolder, `nan_step_${batch.step}`)
  await whenThereIsRoom(`the batch of step ${batch.step}`, () => write(dir, batch, bad), warn)
  const where = bad.index > 0 ? `update ${bad.index + 1} of step ${batch.step}` : `step ${batch.step}`
  warn(
    `${where} was not finite and is skipped: the weights stay as they were, its batch is in ${basename(dir)}/. Three in a row end the run.`,
  )
  return dir
}

function write(dir: string, batch: TrainingBatch, { what, index }: BadUpdate): void {
  mkdirSync(dir, { recursive: true })
  const rows = batch.samples.map(({ ids, lossMask, inferenceLogprobs, advantages, refLogprobs }) => ({
    input_ids: [...ids],
    loss_mask: [...lossMask],
    // JSON has no word for what is not finite; the note counts those.
    inference_logprobs: [...inferenceLogprobs].map(orZero),
    advantages: [...advantages].map(orZero),
    ...(refLogprobs && { ref_logprobs: [...refLogprobs].map(orZero) }),
  }))
  writeFileSync(join(dir, 'batch.json'), `[\n${rows.map((row) => JSON.stringify(row)).join(',\n')}\n]\n`)
  const broken = batch.samples.reduce(
    (sum, s) => sum + [...s.inferenceLogprobs, ...s.advantages].filter((v) => !Number.isFinite(v)).length,
    0,
  )
  const note = [
    index > 0
      ? `Update ${index + 1} of step ${batch.step} was skipped, and those after it: ${what}. The weights are those of the update before.`
      : `Step ${batch.step} was skipped: ${what}. The weights are those of the step before.`,
    `${counted(batch.samples.length, 'sequence')}, ${counted(batch.lossTokenCount, 'loss token')}. ${broken} of their inputs were not finite${broken ? ' (written as 0 in batch.json)' : ''}.`,
    `To look at it again: ${CLI} score --model MODEL [--adapter CHECKPOINT] --batch batch.json --out scores.safetensors`,
    'Usual reasons: a learning rate that is too high, a loss or a reward that divides by 0.',
  ]
  writeFileSync(join(dir, 'note.txt'), `${note.join('\n')}\n`)
}

const orZero = (value: number): number => (Number.isFinite(value) ? value : 0)
