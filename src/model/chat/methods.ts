/** Python's methods of texts and lists that the library lacks. */
import { LINE_END } from './filters.ts'
import { list, made, text, truth, tuple } from './library.ts'
import { same, stripped, type Value } from './python-text.ts'

/** The texts that a method is given. */
type Method = (own: string, given: string[]) => Value

const NOT_THERE = 'index: what is looked for is not there'

/** In characters, as Python counts them. */
const place = (own: string, at: number): Value => made(at < 0 ? at : Array.from(own.slice(0, at)).length)

function known(own: string, at: number): Value {
  if (at < 0) throw new Error(NOT_THERE)
  return place(own, at)
}

const parts = (...three: string[]): Value => tuple(three.map(text))
const all =
  (pattern: RegExp): Method =>
  (own) =>
    truth(pattern.test(own))

/** By name: how many texts they need. */
const OF_TEXTS = new Map<string, [needs: number, method: Method]>([
  ['find', [1, (own, [part]) => place(own, own.indexOf(part))]],
  ['rfind', [1, (own, [part]) => place(own, own.lastIndexOf(part))]],
  ['index', [1, (own, [part]) => known(own, own.indexOf(part))]],
  ['rindex', [1, (own, [part]) => known(own, own.lastIndexOf(part))]],
  ['count', [1, (own, [part]) => made(part === '' ? Array.from(own).length + 1 : own.split(part).length - 1)]],
  ['removeprefix', [1, (own, [part]) => text(own.startsWith(part) ? own.slice(part.length) : own)]],
  ['removesuffix', [1, (own, [part]) => text(part && own.endsWith(part) ? own.slice(0, -part.length) : own)]],
  ['isdigit', [0, all(/^\p{Nd}+$/u)]],
  ['isdecimal', [0, all(/^\p{Nd}+$/u)]],
  ['isnumeric', [0, all(/^\p{N}+$/u)]],
  ['isalpha', [0, all(/^\p{L}+$/u)]],
  ['isalnum', [0, all(/^[\p{L}\p{N}]+$/u)]],
  ['isspace', [0, (own) => truth(own !== '' && stripped(own, undefined, true, false) === '')]],
  ['isupper', [0, (own) => truth(own === own.toUpperCase() && own !== own.toLowerCase())]],
  ['islower', [0, (own) => truth(own === own.toLowerCase() && own !== own.toUpperCase())]],
  ['splitlines', [0, (own) => list(lines(own).map(text))]],
  ['partition', [1, (own, [part]) => around(own, part, own.indexOf(part), [own, '', ''])]],
  ['rpartition', [1, (own, [part]) => around(own, part, own.lastIndexOf(part), ['', '', own])]],
])

function lines(own: string): string[] {
  const found = own.split(LINE_END)
  return found.at(-1) === '' ? found.slice(0, -1) : found
}

function around(own: string, part: string, at: number, otherwise: string[]): Value {
  return at < 0 ? parts(...otherwise) : parts(own.slice(0, at), part, own.slice(at + part.length))
}

const OF_LISTS = new Set(['index', 'count'])
/** The names of these methods. */
export const MORE_METHODS = new Set([...OF_TEXTS.keys(), ...OF_LISTS])

/** What a method of a text or list gives. @throws Error where it has none of that name, or takes other arguments here */
export function called(own: Value, name: string, args: Value[]): Value {
  const wrong = (needs: string) => new Error(`${name} takes ${needs} here`)
  if (Array.isArray(own.value)) {
    if (!OF_LISTS.has(name) || args.length !== 1) throw wrong(OF_LISTS.has(name) ? 'one value' : 'texts only')
    const where = (own.value as Value[]).flatMap((item, i) => (same(item, args[0]) ? [i] : []))
    if (name === 'count') return made(where.length)
    if (where.length === 0) throw new Error(NOT_THERE)
    return made(where[0])
  }
  const [needs, method] = OF_TEXTS.get(name)!
  if (args.length !== needs || args.some(({ type }) => type !== 'StringValue'))
    throw wrong(needs === 0 ? 'no argument' : 'one text')
  return method(
    own.value as string,
    args.map(({ value }) => value as string),
  )
}
