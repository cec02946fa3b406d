/** Checks the file or folder of `--out` before the work: verbs work for minutes until they write it. */
import {
  accessSync,
  closeSync,
  constants,
  existsSync,
  openSync,
  readdirSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { isSystemError, messageOf, UserError } from '../common/errors.ts'
import { makeFolder } from '../common/folders.ts'
import { isReplaceable, writeFileAtomic } from '../common/atomic.ts'

/** Makes the folder of the file. @throws UserError where nothing can be written there */
export function checkOut(path: string): void {
  const isThere = existsSync(path)
  try {
    if (isThere && statSync(path).isDirectory()) throw new Error('it is a folder')
    makeFolder(dirname(path))
    closeSync(openSync(path, 'a'))
    if (!isThere) rmSync(path)
  } catch (error) {
    throw new UserError(`--out ${path} cannot be written: ${messageOf(error)}. Name another file.`)
  }
}

/** Writes the file whole or not at all, so that one from before outlives a full disk; a link, a pipe or a device is written into. */
export function writeOut(path: string, text: string): void {
  if (isReplaceable(path)) writeFileAtomic(path, text)
  else writeFileSync(path, text)
}

/**
 * What to do with an error of writing, later: a disk may be full by then, or gone.
 * @param place as the user named it: `--out FILE`
 * @throws UserError for an error of the system, and any other as it is
 */
export function unwritten(place: string): (error: unknown) => never {
  return (error) => {
    if (!isSystemError(error)) throw error
    throw new UserError(`${place} cannot be written: ${error.message}. Name another place, or make room there.`)
  }
}

/** Leaves no new folder behind. @throws UserError where the folder cannot be made or written to */
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
 * Checks a folder that a model will be written into: a model or an adapter in it may be replaced, anything else may not.
 * @param word the key or option that names the folder
 * @throws UserError where it holds anything else
 */
export function checkModelFolder(word: string, dir: string): void {
  if (!existsSync(dir)) return
  const names = statSync(dir).isDirectory() ? readdirSync(dir) : ['']
  if (names.length === 0 || ['config.json', 'adapter_config.json'].some((file) => existsSync(join(dir, file)))) return
  throw new UserError(`${word} is ${dir}, which holds something other than a model. Name another folder.`)
}
