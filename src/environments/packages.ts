/** Packages that only some environments need, and that need not be installed. */
import { messageOf, UserError } from '../common/errors.ts'

/** Imports an optional package. Throws UserError that says how to get it. */
export async function load<T>(name: string, importIt: () => Promise<T>): Promise<T> {
  try {
    return await importIt()
  } catch (error) {
    throw new UserError(
      `The package ${name} is needed here and could not be loaded (${firstLine(messageOf(error))}). Run: npm install ${name}`,
    )
  }
}

const firstLine = (text: string) => text.split('\n')[0]
