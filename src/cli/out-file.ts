/** The file or folder that `--out` names, of verbs that work for minutes before they write it. */
import { closeSync, existsSync, mkdirSync, openSync, readdirSync, rmSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
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

/**
 * A folder that a model is to be written into: one of a model or an adapter is replaced, anything else is not.
 * @param word the key or option that names it
 * @throws UserError where it holds something else
 */
export function checkModelFolder(word: string, dir: string): void {
  if (!existsSync(dir)) return
  const names = statSync(dir).isDirectory() ? readdirSync(dir) : ['']
  if (names.length === 0 || ['config.json', 'adapter_config.json'].some((file) => existsSync(join(dir, file)))) return
  throw new UserError(`${word} is ${dir}, which holds something that is no model. Name another folder.`)
}
