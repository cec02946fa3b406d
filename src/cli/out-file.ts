/** The file or folder that `--out` names, of verbs that work for minutes before they write it. */
import { accessSync, closeSync, constants, existsSync, openSync, readdirSync, rmdirSync, rmSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { makeFolder } from '../common/folders.ts'

/** Makes its folder. @throws UserError where nothing can be written there: to be called before the work */
export function checkOut(path: string): void {
  const isThere = existsSync(path)
  try {
    makeFolder(dirname(path))
    closeSync(openSync(path, 'a'))
    if (!isThere) rmSync(path)
  } catch (error) {
    throw new UserError(`--out ${path} cannot be written: ${messageOf(error)}. Name another file.`)
  }
}

/** @throws UserError where no folder can be made, or nothing written into the one that is there: to be called before the work. Leaves none behind. */
export function checkOutFolder(word: string, path: string): void {
  try {
    const made = makeFolder(path)
    accessSync(path, constants.W_OK)
    for (const folder of made.toReversed()) rmdirSync(folder)
  } catch (error) {
    throw new UserError(`${word} ${path} cannot be written: ${messageOf(error)}. Name another folder.`)
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
