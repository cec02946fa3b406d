/** Texts from files that users write. */
import { readFileSync } from 'node:fs'
import { messageOf, UserError } from './errors.ts'

/** Leaves out the byte order mark that editors on Windows may begin a file with: JSON, TOML and templates know none. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

/**
 * The text of a file's bytes, without a byte order mark.
 * @param where the file, for the message
 * @throws UserError where the bytes are not UTF-8, as what `>` writes in PowerShell 5: each of its letters would be others, without a word
 */
export function textOfBytes(bytes: Uint8Array, where: string): string {
  try {
    return utf8.decode(bytes)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_ENCODING_INVALID_ENCODED_DATA') throw error
    throw new UserError(`${where} is not UTF-8 text. Save the file as UTF-8.`)
  }
}

/** The text of a file. @param label the file, for messages @throws UserError where it cannot be read, or is not UTF-8 */
export function textOfFile(file: string, label = file): string {
  let bytes: Uint8Array
  try {
    bytes = readFileSync(file)
  } catch (error) {
    throw new UserError(`${label} can't be read: ${messageOf(error)}.`)
  }
  return textOfBytes(bytes, label)
}
