/** Optional packages, which only some environments need. */
import { messageOf, UserError } from '../common/errors.ts'

/** Imports an optional package. If it is not installed, throws UserError that says how to install it. */
export async function load<T>(name: string, importIt: () => Promise<T>): Promise<T> {
  try {
    return await importIt()
  } catch (error) {
    throw new UserError(
      `The package ${name} is needed here but could not be loaded (${firstLine(messageOf(error))}). Run: npm install ${name}`,
    )
  }
}

const firstLine = (text: string) => text.split('\n')[0]
