/** Options of environments and rubrics by name: files of the user are run without a type check, so a misspelt one would be ignored. */
import { nearest, UserError } from '../common/errors.ts'

/** The names of an interface's keys, all of them. */
export type KeysOf<Options> = Readonly<Record<keyof Options, true>>

/**
 * @param where begins the message: `environment sums`
 * @throws UserError for an option that there is not
 */
export function refuseUnknown(where: string, options: object, known: Readonly<Record<string, true>>): void {
  const key = Object.keys(options).find((name) => !Object.hasOwn(known, name))
  if (key === undefined) return
  throw new UserError(`${where}: ${notAmong(key, 'options', Object.keys(known))}.`)
}

/** Says that a key is unknown, and which was meant, or which there are. */
export function notAmong(key: string, what: 'options' | 'arguments', known: readonly string[]): string {
  const near = nearest(key, known)
  return `${key} is not one of its ${what} (${near ? `did you mean ${near}?` : known.join(', ')})`
}
