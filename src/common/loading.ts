/** Loading what a user wrote: environments, losses, advantages and filters. */
import { pathToFileURL } from 'node:url'
import { messageOfImport, UserError } from './errors.ts'

/**
 * Waits for a user's file to load, which `who` names. Where nothing is left to do, Node would end the process, with code 13 and no more than a
 * warning about our own files.
 * @throws UserError if it awaits a promise that never settles
 */
export async function loaded<T>(who: string, work: () => T | Promise<T>): Promise<T> {
  const stuck = Promise.withResolvers<never>()
  const onIdle = () => stuck.reject(new UserError(`${who} never loads: it awaits a promise that never settles.`))
  process.once('beforeExit', onIdle)
  try {
    return await Promise.race([work(), stuck.promise])
  } finally {
    process.off('beforeExit', onIdle)
  }
}

/** Imports a user's file, which `who` names. @throws UserError if it cannot be loaded, or never loads */
export async function importOf(who: string, path: string): Promise<Record<string, unknown>> {
  try {
    return await loaded(who, () => import(pathToFileURL(path).href) as Promise<Record<string, unknown>>)
  } catch (error) {
    throw error instanceof UserError ? error : new UserError(`${who} cannot be loaded: ${messageOfImport(error, path)}`)
  }
}
