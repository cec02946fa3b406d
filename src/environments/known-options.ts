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
  const near = nearest(key, Object.keys(known))
  throw new UserError(
    `${where}: ${key} is not one of its options (${near ? `did you mean ${near}?` : Object.keys(known).join(', ')}).`,
  )
}
