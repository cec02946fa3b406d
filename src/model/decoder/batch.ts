/** Reads the batches that `score` and `grad` take: a JSON list of sequences, in the format of test/fixtures/golden. */
import { UserError, messageOf, nearest } from '../../common/errors.ts'
import type { TrainingSample } from '../../common/types.ts'
import { readText } from '../files/files.ts'

/**
 * The samples of a batch file: a list of `{ input_ids, loss_mask, inference_logprobs, advantages }`, each as long as its sequence; all
 * but `input_ids` may be left out (then every token but the first counts, and the rest is 0), and `ref_logprobs` may be added. With `vocabSize`, ids are checked against
 * it. The mask of a first token is set to 0: nothing predicts it. A misspelt field is refused. Throws UserError naming file, sequence and field.
 */
export async function readBatch(path: string, options: { vocabSize?: number } = {}): Promise<TrainingSample[]> {
  let value: unknown
  const text = await readText(path)
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new UserError(`${path} is not valid JSON (${messageOf(error)}).`)
  }
  if (!Array.isArray(value) || value.length === 0) throw new UserError(`${path} must hold a list of sequences, at least one.`)
  return value.map((sequence: unknown, index) => sampleOf(sequence, `${path}: sequence ${index}`, options.vocabSize ?? 2 ** 31))
}

const FIELDS = ['input_ids', 'loss_mask', 'inference_logprobs', 'advantages', 'ref_logprobs']

function sampleOf(value: unknown, where: string, vocabSize: number): TrainingSample {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new UserError(`${where} must be an object with input_ids.`)
  const sequence = value as Record<string, unknown>
  // Other fields, such as a text, may stand beside these.
  const left = FIELDS.filter((field) => !Object.hasOwn(sequence, field))
  for (const key of Object.keys(sequence)) {
    const meant = FIELDS.includes(key) ? undefined : nearest(key, left)
    if (meant) throw new UserError(`${where}: ${key} is not a field; did you mean ${meant}? The fields are ${FIELDS.join(', ')}.`)
  }
  const length = Array.isArray(sequence.input_ids) ? sequence.input_ids.length : 0
  if (length === 0) throw new UserError(`${where}: input_ids must be a list of token ids, at least one.`)
  const numbers = (field: string, isRight: (n: number) => boolean, what: string, otherwise: () => number[]): number[] => {
    const list = sequence[field] ?? otherwise()
    if (!Array.isArray(list)) throw new UserError(`${where}: ${field} must be a list.`)
    if (list.length !== length)
      throw new UserError(`${where}: ${field} has ${list.length} entries and input_ids ${length}; they must be as many.`)
    const wrong = list.findIndex((n) => typeof n !== 'number' || !isRight(n))
    if (wrong >= 0) throw new UserError(`${where}: ${field}[${wrong}] is ${JSON.stringify(list[wrong])}; it must be ${what}.`)
    return list as number[]
  }
  const zeros = () => Array.from({ length }, () => 0)
  const isId = (n: number) => Number.isInteger(n) && n >= 0 && n < vocabSize
  const isFloat = (n: number) => Number.isFinite(Math.fround(n))
  const floats = (field: string) => Float32Array.from(numbers(field, isFloat, 'a finite number in float32', zeros))
  const ids = numbers('input_ids', isId, `a token id from 0 to ${vocabSize - 1}`, zeros)
  const mask = numbers(
    'loss_mask',
    (n) => n === 0 || n === 1,
    '0 or 1',
    () => zeros().fill(1),
  )
  const lossMask = Uint8Array.from(mask)
  lossMask[0] = 0
  return {
    ids: Int32Array.from(ids),
    lossMask,
    inferenceLogprobs: floats('inference_logprobs'),
    advantages: floats('advantages'),
    ...((sequence.ref_logprobs ?? null) !== null && {
      refLogprobs: floats('ref_logprobs'),
    }),
  }
}
