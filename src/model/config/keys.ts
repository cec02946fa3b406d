/** Keys of a JSON object, read with errors that name the file and the key. */
import { UserError } from '../../common/errors.ts'

export type Json = Record<string, unknown>

const isCount = (value: unknown): value is number => Number.isInteger(value) && (value as number) > 0
const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value) && value > 0

/** Most layers of a model, far above the deepest there is: without a limit a broken config would loop over billions of layers. */
export const MOST_LAYERS = 10_000

/** Readers of `raw`, which stands in `file`; each throws UserError for a value that is not of its kind. */
export function keyReader(raw: Json, file: string) {
  const wrong = (key: string, what: string) =>
    new UserError(
      raw[key] === undefined
        ? `${file}: ${key} is missing.`
        : `${file}: ${key} is ${JSON.stringify(raw[key])}; it must be ${what}.`,
    )
  const absent = (key: string) => raw[key] === undefined || raw[key] === null
  const count = (key: string, most = Infinity): number => {
    const value = raw[key]
    if (!isCount(value)) throw wrong(key, 'a whole number above 0')
    if (value > most) throw wrong(key, `at most ${most}`)
    return value
  }
  const number = (key: string): number => {
    const value = raw[key]
    if (!isNumber(value)) throw wrong(key, 'a number above 0')
    return value
  }
  return {
    count,
    number,
    optionalCount: (key: string) => (absent(key) ? null : count(key)),
    optionalNumber: (key: string) => (absent(key) ? null : number(key)),
    flag: (key: string, otherwise: boolean): boolean => {
      const value = raw[key] ?? otherwise
      if (typeof value !== 'boolean') throw wrong(key, 'true or false')
      return value
    },
    /** A token id; null for none (absent, null, or -1). A list of ids gives its first. */
    optionalId: (key: string): number | null => {
      const value: unknown = Array.isArray(raw[key]) ? (raw[key] as unknown[])[0] : raw[key]
      if (value === undefined || value === null || value === -1) return null
      if (!Number.isInteger(value) || (value as number) < 0) throw wrong(key, 'a token id')
      return value as number
    },
  }
}
