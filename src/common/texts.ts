/** Reads text files that users write. */
import { readFileSync } from 'node:fs'
import { messageOf, UserError } from './errors.ts'

/** Drops the byte order mark with which editors on Windows may begin a file, and which JSON, TOML and templates do not allow. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

/**
 * Decodes the bytes of a file as UTF-8, without a byte order mark.
 * @param where the file, for error messages
 * @throws UserError if the bytes are not UTF-8, such as the UTF-16 that `>` writes in PowerShell 5, which would silently become other letters
 */
export function textOfBytes(bytes: Uint8Array, where: string): string {
  try {
    return utf8.decode(bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_ENCODING_INVALID_ENCODED_DATA') throw error
    throw new UserError(`${where} is not UTF-8 text. Save the file as UTF-8.`)
  }
}

/**
 * Reads a text file.
 * @param label the file's name in error messages
 * @throws UserError if it cannot be read, or is not UTF-8
 */
export function textOfFile(file: string, label = file): string {
  let bytes: Uint8Array
  try {
    bytes = readFileSync(file)
  } catch (error) {
    throw new UserError(`${label} can't be read: ${messageOf(error)}.`)
  }
  return textOfBytes(bytes, label)
}
