/** The file that `--out` names, of verbs that work for minutes before they write it. */
import { closeSync, existsSync, mkdirSync, openSync, rmSync } from 'node:fs'
import { dirname } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'

/** Makes its folder. @throws UserError where nothing can be written there: to be called before the work */
export function checkOut(path: string): void {
  const isThere = existsSync(path)
  try {
    mkdirSync(dirname(path), { recursive: true })
    closeSync(openSync(path, 'a'))
    if (!isThere) rmSync(path)
  } catch (error) {
    throw new UserError(`--out ${path} cannot be written: ${messageOf(error)}. Name another file.`)
  }
}
