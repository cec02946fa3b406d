/** Shared by the project's servers: listening, recognising addresses of this machine, and comparing keys in constant time. */
import { createHash, timingSafeEqual } from 'node:crypto'
import { isIP, type Server } from 'node:net'
import { UserError } from './errors.ts'

/**
 * Starts listening.
 * @param who the server's name in errors
 * @param host an IPv6 address may be in brackets
 * @throws UserError if it cannot listen there
 */
export async function listen(who: string, server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      const why = error.code === 'EADDRINUSE' ? 'that address is in use already' : (error.code ?? error.message)
      reject(new UserError(`The ${who} can't listen on ${host}:${port}: ${why}. Choose another --port or --host.`))
    })
    server.listen({ host: host.replace(/^\[|\]$/g, ''), port }, resolve)
  })
}

/** Whether an address is a loopback address of this machine. */
export function isLoopback(host: string): boolean {
  const bare = host.replace(/^\[|\]$/g, '').toLowerCase()
  return bare === 'localhost' || bare === '::1' || (isIP(bare) === 4 && bare.startsWith('127.'))
}

/** The digest by which keys are compared. All digests have the same length. */
export const digest = (text: string): Buffer => createHash('sha256').update(text).digest()

/** Whether a key is valid. @param known digests of all keys. All of them are compared, so that the time taken reveals nothing */
export function isKnown(given: string | undefined, known: readonly Buffer[]): boolean {
  const hash = digest(given ?? '')
  return known.filter((key) => timingSafeEqual(key, hash)).length > 0 && given !== undefined
}
