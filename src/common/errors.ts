/**
 * Errors of the house. A `UserError` is the user's to mend (config, files, input, machine): its message is one or two sentences that
 * say what is wrong, where, and what to do; the command line prints it without a stack and exits with code 2. Anything else is a
 * fault of ours or of the machine and exits with code 1.
 */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { basename, dirname, isAbsolute, join } from 'node:path'

export class UserError extends Error {
  override name = 'UserError'
}

/** The message of anything thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

/** The first cause in an error's chain, as its code (ECONNREFUSED) where it has one: clients say only 'Connection error.' */
export function causeOf(error: unknown): string {
  let inner = error
  while (inner instanceof Error && inner.cause !== undefined) inner = inner.cause
  const { code } = inner as { code?: unknown }
  // An abort's code is a number without meaning.
  return typeof code === 'string' ? code : messageOf(inner)
}

/** The message, with the first place of the stack behind it: for what a user's code threw. */
export function messageWithPlace(error: unknown): string {
  const place = error instanceof Error ? /^ +at .*$/m.exec(error.stack ?? '')?.[0].trim() : undefined
  return `${messageOf(error)}${place ? ` (${place})` : ''}`
}

/** One spelling of the file of a stack's line: of an ES module it is a URL, of CommonJS a path, and of tools that load modules as Vite does "C:/my_env.ts". */
const spelled = (file: string) => file.replace(/^file:\/\//, '').replaceAll('\\', '/').replace(/^\/(?=[A-Za-z]:)/, '') // prettier-ignore

/** As in stacks, where a space is %20. */
const ownFolder = spelled(new URL('..', import.meta.url).href)

/** Where a user's code threw, as my_env.ts:12:3; undefined where our own code did, whose sentences say by themselves what is wrong. */
export function placeInCode(error: unknown): string | undefined {
  const stack = error instanceof Error ? (error.stack ?? '') : ''
  // To the end of the line: the folders of a path may have spaces and brackets in their names.
  const places = [...stack.matchAll(/^ +at (?:.*?[ (])?((?:file:\/\/|\/|[A-Za-z]:[\\/]).+):(\d+:\d+)\)?$/gmu)]
  const place = places.find(([, path]) => !/[\\/]node_modules[\\/]/.test(path))
  return place && !spelled(place[1]).startsWith(ownFolder) ? `${basename(place[1])}:${place[2]}` : undefined
}

/**
 * The message of an error of importing a user's file, with the line of a syntax error. For a .js file that Node takes for CommonJS, as in
 * a folder made by `npm init`, it says what to do.
 */
export function messageOfImport(error: unknown, path: string): string {
  const message = messageOf(error)
  if (!(error instanceof SyntaxError)) return message
  const place = /^(.+):(\d+)\r?\n/
  // For an ES module in JavaScript Node leaves the place out of the error's stack, and only `--check` tells it.
  const [, file, line] =
    place.exec(error.stack ?? '') ??
    place.exec(spawnSync(process.execPath, ['--check', path], { encoding: 'utf8' }).stderr ?? '') ??
    []
  if (!file) return message
  // For an ES module Node gives the URL there.
  if (!file.endsWith('.js') || !isAbsolute(file) || !/outside a module|Unexpected token 'export'/.test(message))
    return `${message} (${basename(file)}:${line})`
  let folder = dirname(file)
  while (!existsSync(join(folder, 'package.json')) && folder !== dirname(folder)) folder = dirname(folder)
  return `${message} (Node reads ${file} as CommonJS: name it .mjs, or set "type": "module" in ${join(folder, 'package.json')})`
}

/** Whether the system refused a call: a place that cannot be read or written, a full disk. */
export function isSystemError(error: unknown): error is Error {
  return error instanceof Error && 'syscall' in error
}

/** The candidate nearest to `word` by edit distance, or undefined where none is near enough to be meant. */
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
