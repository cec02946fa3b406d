/** Saves the batch of a step that was not finite, in the format that `score` and `grad` read, with a note for whoever investigates it. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { CLI } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { whenThereIsRoom } from '../common/faults.ts'
import type { TrainingBatch } from '../common/types.ts'
import { counted } from '../monitor/format.ts'
import type { SampleResult } from './gradients.ts'
import { klTerm } from './losses/kl.ts'

/**
 * Training has diverged (NaN or infinity); the config or the rewards have to change. The weights are those of the last good step and can be saved.
 */
export class NotFiniteError extends UserError {
  override name = 'NotFiniteError'
}

/** What was not finite, in which of the step's updates (from 0), and the log-probabilities of the batch's samples. */
export interface BadUpdate {
  what: string
  index: number
  samples: readonly SampleResult[]
}

/** The most sequences that a note names. */
const MOST_NAMED = 10

/** Writes `<run>/nan_step_N/batch.json` and note.txt; waits while the disk is full. `warn` is told of the step and of waits. @returns the folder */
export async function writeBadStep(
  runFolder: string,
  batch: TrainingBatch,
  bad: BadUpdate,
  warn: (line: string) => void = () => {},
): Promise<string> {
  const dir = join(runFolder, `nan_step_${batch.step}`)
  const faults = faultsOf(batch, bad.samples)
  await whenThereIsRoom(`the batch of step ${batch.step}`, () => write(dir, batch, bad, faults), warn)
  const where = bad.index > 0 ? `update ${bad.index + 1} of step ${batch.step}` : `step ${batch.step}`
  warn(
    `${where} was not finite and is skipped: the weights stay as they were, and its batch is in ${basename(dir)}/. Three in a row end the run.` +
      (faults.length > 0
        ? ` At fault: ${faults[0]}${faults.length > 1 ? `, and ${faults.length - 1} more (see note.txt there)` : ''}.`
        : ''),
  )
  return dir
}

/**
 * Describes the sequences that have values that are not finite in the forward pass, each with its first such token. Sequences do not affect each
 * other in the forward pass; gradients are summed, so one bad sequence spoils them all.
 */
function faultsOf({ samples }: TrainingBatch, results: readonly SampleResult[]): string[] {
  return samples.flatMap(({ lossMask, advantages, inferenceLogprobs, refLogprobs, rollout }, i) => {
    const { logprobs } = results[i]
    const wrong = (t: number): string | undefined => {
      if (!Number.isFinite(logprobs[t])) return `the model's log-probability of token ${t} is ${logprobs[t]}`
      if (!Number.isFinite(advantages[t])) return `the advantage of token ${t} is ${advantages[t]}`
      if (!Number.isFinite(inferenceLogprobs[t])) return `the sampler's log-probability of token ${t} is ${inferenceLogprobs[t]}`
      if (refLogprobs && !Number.isFinite(Math.fround(klTerm(logprobs[t], refLogprobs[t]))))
        return `the KL term of token ${t} overflows float32 (its log-probability is ${logprobs[t]}, and the reference's is ${refLogprobs[t]})`
      return undefined
    }
    const token = lossMask.findIndex((counts, t) => counts === 1 && wrong(t) !== undefined)
    const task = rollout ? ` (task ${rollout.exampleId} of ${rollout.env}, rollout ${rollout.index})` : ''
    return token < 0 ? [] : [`sequence ${i}${task}, where ${wrong(token)}`]
  })
}

function write(dir: string, batch: TrainingBatch, { what, index }: BadUpdate, faults: string[]): void {
  mkdirSync(dir, { recursive: true })
  const rows = batch.samples.map(({ ids, lossMask, inferenceLogprobs, advantages, refLogprobs }) => ({
    input_ids: [...ids],
    loss_mask: [...lossMask],
    // JSON has no NaN or infinity. The note says how many there were.
    inference_logprobs: [...inferenceLogprobs].map(orZero),
    advantages: [...advantages].map(orZero),
    ...(refLogprobs && { ref_logprobs: [...refLogprobs].map(orZero) }),
  }))
  writeFileSync(join(dir, 'batch.json'), `[\n${rows.map((row) => JSON.stringify(row)).join(',\n')}\n]\n`)
  const broken = batch.samples.reduce(
    (sum, s) =>
      sum + [...s.inferenceLogprobs, ...s.advantages, ...(s.refLogprobs ?? [])].filter((v) => !Number.isFinite(v)).length,
    0,
  )
  const note = [
    index > 0
      ? `Update ${index + 1} of step ${batch.step} and those after it were skipped: ${what}. The weights are those of the previous update.`
      : `Step ${batch.step} was skipped: ${what}. The weights are those of the previous step.`,
    `${counted(batch.samples.length, 'sequence')}, ${counted(batch.lossTokenCount, 'loss token')}. ${broken} of their inputs were not finite${broken ? ' (written as 0 in batch.json)' : ''}.`,
    ...(faults.length > 0
      ? faults.slice(0, MOST_NAMED).map((fault) => `At fault: ${fault}.`)
      : [
          'No single sequence is at fault: all log-probabilities and inputs are finite. The cause is in the loss or in the backward pass.',
        ]),
    ...(faults.length > MOST_NAMED ? [`And ${faults.length - MOST_NAMED} more.`] : []),
    `To compute the batch again: ${CLI} score --model MODEL [--adapter CHECKPOINT] --batch batch.json --out scores.safetensors`,
    'Usual causes: a learning rate that is too high, a loss or a reward that divides by 0.',
  ]
  writeFileSync(join(dir, 'note.txt'), `${note.join('\n')}\n`)
}

const orZero = (value: number): number => (Number.isFinite(value) ? value : 0)
