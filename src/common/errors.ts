/**
 * Errors, and helpers for their messages. A `UserError` is something the user can fix (config, files, input, machine). Its message is one or two
 * sentences that say what is wrong, where, and what to do; the command line prints it without a stack trace and exits with code 2. Any other error is
 * a fault of ours or of the machine, and exits with code 1.
 */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { basename, dirname, isAbsolute, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** An error that the user can fix. See the head of the file for what its message says. */
export class UserError extends Error {
  override name = 'UserError'
}

/**
 * The message of anything that was thrown. If none of a host's addresses can be reached, Node's error has no message of its own, only those of the
 * addresses.
 */
export function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return error.errors.map(messageOf).join(', ')
  return error instanceof Error ? error.message : String(error)
}

/** A message as a sentence: with a full stop, unless it ends with one, or with a question. */
export const sentenceOf = (message: string): string => (/[.?!]$/u.test(message) ? message : `${message}.`)

/** The innermost cause of an error, as its code (ECONNREFUSED) if it has one. The errors of clients themselves say only 'Connection error.' */
export function causeOf(error: unknown): string {
  let inner = error
  while (inner instanceof Error && inner.cause !== undefined) inner = inner.cause
  const { code } = inner as { code?: unknown }
  // An AbortError's code is a number without meaning.
  return typeof code === 'string' ? code : messageOf(inner)
}

/** The message followed by the first line of the stack, for errors thrown by the user's code. */
export function messageWithPlace(error: unknown): string {
  const place = error instanceof Error ? /^ +at .*$/m.exec(error.stack ?? '')?.[0].trim() : undefined
  return `${messageOf(error)}${place ? ` (${place})` : ''}`
}

/** Normalises the file in a line of a stack trace: a URL for ES modules, a path for CommonJS, "C:/my_env.ts" if a tool such as Vite loads the module. */
const spelled = (file: string) => file.replace(/^file:\/\//, '').replaceAll('\\', '/').replace(/^\/(?=[A-Za-z]:)/, '') // prettier-ignore

/** As in stack traces, where a space is %20. */
const ownFolder = spelled(new URL('..', import.meta.url).href)

/** Where the user's code threw, such as my_env.ts:12:3. Undefined if our own code threw, as its messages say themselves what is wrong. */
export function placeInCode(error: unknown): string | undefined {
  const stack = error instanceof Error ? (error.stack ?? '') : ''
  // Matches to the end of the line, as folder names may contain spaces and brackets.
  const places = [...stack.matchAll(/^ +at (?:.*?[ (])?((?:file:\/\/|\/|[A-Za-z]:[\\/]).+):(\d+:\d+)\)?$/gmu)]
  const place = places.find(([, path]) => !/[\\/]node_modules[\\/]/.test(path))
  return place && !spelled(place[1]).startsWith(ownFolder) ? `${basename(place[1])}:${place[2]}` : undefined
}

/** An error in code that nothing awaits: a UserError with the place if the user's code threw it, else the error itself. */
export function strayError(error: unknown): unknown {
  // Node wraps what a promise was rejected with if it is no Error, which only the user's code does: `setTimeout(reject, 1000)` rejects with undefined.
  if ((error as { code?: unknown } | null)?.code === 'ERR_UNHANDLED_REJECTION') {
    const reason = /the reason "(.*)"\.$/su.exec(messageOf(error))?.[1]
    return new UserError(
      `An error in code that nothing awaits: a promise was rejected with ${reason}, which does not tell where. Await the promise, and reject with new Error('...').`,
      { cause: error },
    )
  }
  const place = placeInCode(error)
  return place ? new UserError(`An error in code that nothing awaits: ${messageOf(error)} (${place}).`, { cause: error }) : error
}

/**
 * The message for an error while importing a user's file, with the line of a syntax error. If Node takes a .js file for CommonJS, as in a folder made
 * by `npm init`, the message says what to do.
 */
export function messageOfImport(error: unknown, path: string): string {
  const message = messageOf(error)
  if (!(error instanceof SyntaxError)) return message + missingEnding(error)
  const place = /^(.+):(\d+)\r?\n/
  // For ES modules in JavaScript, Node leaves the place out of the stack. Only `--check` reports it.
  const [, file, line] =
    place.exec(error.stack ?? '') ??
    place.exec(spawnSync(process.execPath, ['--check', path], { encoding: 'utf8' }).stderr ?? '') ??
    []
  if (!file) return message
  // For ES modules the file is a URL here.
  if (!file.endsWith('.js') || !isAbsolute(file) || !/outside a module|Unexpected token 'export'/.test(message))
    return `${message} (${basename(file)}:${line})${file.endsWith('.ts') ? unmarkedType(message) : ''}`
  let folder = dirname(file)
  while (!existsSync(join(folder, 'package.json')) && folder !== dirname(folder)) folder = dirname(folder)
  return `${message} (Node reads ${file} as CommonJS: name it .mjs, or set "type": "module" in ${join(folder, 'package.json')})`
}

/** What to do about the import of `./helper`, where there is a helper.ts: compilers find it, Node does not. */
function missingEnding(error: unknown): string {
  const { code, url } = error as { code?: unknown; url?: string }
  if (code !== 'ERR_MODULE_NOT_FOUND' || !url?.startsWith('file:')) return ''
  const file = fileURLToPath(url)
  const found = ['.ts', '.js', '.mjs', '.mts'].find((ending) => existsSync(file + ending))
  return found ? `. Write its ending: ${basename(file)}${found}` : ''
}

/** What to do about the import of a type as a value: Node takes types out of the code, but not out of its imports. */
function unmarkedType(message: string): string {
  const name = /does not provide an export named '(.+)'/.exec(message)?.[1]
  return name ? `. If ${name} is a type, write 'type ${name}' in the import` : ''
}

/** Whether the system refused a call: a place that cannot be read or written, a full disk. */
export function isSystemError(error: unknown): error is Error {
  return error instanceof Error && 'syscall' in error
}

/** The candidate nearest to `word` by edit distance. Undefined if none is near enough to be what was meant. */
export function nearest(word: string, candidates: Iterable<string>): string | undefined {
  let best: string | undefined
  let bestDistance = Math.max(2, Math.floor(word.length / 3)) + 1
  for (const candidate of candidates) {
    const d = editDistance(word, candidate)
    if (d < bestDistance) [best, bestDistance] = [candidate, d]
  }
  return best
}

function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1))
    }
    row = next
  }
  return row[b.length]
}
