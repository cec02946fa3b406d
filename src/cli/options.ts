/** Parsers of option values for commander, and `--quantization`, which several verbs share. */
import { InvalidArgumentError, Option } from 'commander'
import { messageOf, UserError } from '../common/errors.ts'
import { QUANTIZATIONS } from '../model/types.ts'

type Value = (text: string) => number

function value(isGood: (value: number) => boolean, words: string): Value {
  return (text) => {
    const read = text.trim() === '' ? NaN : Number(text)
    if (Number.isFinite(read) && isGood(read)) return read
    throw new InvalidArgumentError(`It must be ${words}.`)
  }
}

export const number = value(() => true, 'a number')
export const positive = value((x) => x > 0, 'a number above 0')
export const notNegative = value((x) => x >= 0, 'a number, 0 or above')

/** A whole number in a range. */
export function whole(least: number, most?: number): Value {
  const range = most === undefined ? `of ${least} or more` : `from ${least} to ${most}`
  return value((x) => Number.isSafeInteger(x) && x >= least && x <= (most ?? x), `a whole number ${range}`)
}

/** A number of things, 1 or more; -1 is all of them. */
export const countOrAll = value(
  (x) => Number.isSafeInteger(x) && (x >= 1 || x === -1),
  'a whole number of 1 or more, or -1 for all',
)

/** Parses the value of an option as a JSON object. @throws UserError for any other text */
export function jsonObject(verb: string, option: string, text: string): Record<string, unknown> {
  try {
    const read: unknown = JSON.parse(text)
    if (read !== null && typeof read === 'object' && !Array.isArray(read)) return read as Record<string, unknown>
  } catch (error) {
    throw new UserError(`${verb}: ${option} is not valid JSON (${messageOf(error)}). Write ${option} '{"key": 1}'.`)
  }
  throw new UserError(`${verb}: ${option} must be a JSON object, such as '{"key": 1}'.`)
}

/** `--quantization` with its choices; its value is a `Quantization`. */
export const quantizationOption = (): Option =>
  new Option(
    '--quantization <how>',
    'keep layers quantised on the GPU: gguf keeps those that are quantised in the GGUF file; q8_0 also quantises all others to 8 bits (default: bf16)',
  ).choices(QUANTIZATIONS)
