/** The log of one start of a run: JSON lines, written synchronously, so that the last lines of a killed run are in the file. */
import pino from 'pino'

export type LogLevel = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'silent'

/** The part of pino's logger that is used here: `info('text')` or `info({ step: 3 }, 'text')`. */
export interface Logger {
  debug(fields: object | string, message?: string): void
  info(fields: object | string, message?: string): void
  warn(fields: object | string, message?: string): void
  error(fields: object | string, message?: string): void
}

const secrets = ['api_key', 'apiKey', 'token', 'authorization', 'Authorization', 'password', 'secret']

/** The descriptor of standard error, for logs without a run folder. */
export const standardError = 2

/**
 * Opens `path` (a run folder's `logPath`, or `standardError`) for appending.
 * Values of keys that name secrets are redacted, at the top level and one level below.
 * @throws Error when the file cannot be opened
 */
export function createLogger(path: string | typeof standardError, level: LogLevel = 'info'): Logger & { close(): void } {
  const destination = pino.destination({ dest: path, sync: true, mkdir: true, append: true })
  // A log that cannot be written (a full disk, a removed folder) must not end the run.
  destination.on('error', () => {})
  const logger = pino(
    {
      level,
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: secrets.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
    },
    destination,
  )
  let open = true
  return Object.assign(logger as Logger, {
    close() {
      if (!open) return
      open = false
      destination.flushSync()
      if (path !== standardError) destination.end()
    },
  })
}
