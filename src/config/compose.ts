/**
 * Composes a config from TOML files and command-line words, before the schema validates it.
 *
 * - Files compose left to right: tables are merged key by key, everything else is replaced. Dotted overrides come last.
 * - Every source records the places of its keys, so that a mistake is reported where the value that took effect was written.
 */
import { readFileSync } from 'node:fs'
import { parse, TomlError } from 'smol-toml'
import { messageOf, UserError } from '../common/errors.ts'
import { textOfBytes } from '../common/texts.ts'
import { CKPT_ALIASES } from './ckpt-schema.ts'
import { pathKey, tomlPositions } from './toml-lines.ts'

export type Table = Record<string, unknown>
/** Keys and list indices, from the top of the file. */
export type Path = readonly (string | number)[]

/** A file or a command-line word, with the places of its keys ("a.toml:7:1", "--trainer.args.seed"). */
export interface Source {
  table: Table
  /** Where each key was written, by its `pathKey`. */
  places: Map<string, string>
  /** Whether its env list replaces the earlier one: true for [[env]]. A single [env] is merged into a single earlier one. */
  replacesEnv: boolean
}

export const isTable = (value: unknown): value is Table =>
  typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)

/** Reads a TOML file. Throws UserError if it is missing or invalid. */
export function readSource(file: string): Source {
  let bytes: Buffer
  try {
    bytes = readFileSync(file)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT') throw new UserError(`${file}: there is no such file. Paths are relative to ${process.cwd()}.`)
    throw new UserError(
      code === 'EISDIR' ? `${file} is a folder. Name a .toml file in it.` : `${file} cannot be read: ${messageOf(error)}.`,
    )
  }
  return sourceOf(textOfBytes(bytes, file), file)
}

/** Parses TOML text under the name `label`. Throws UserError with line and column for a syntax error. */
export function sourceOf(text: string, label: string): Source {
  let table: Table
  try {
    table = parse(text)
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    throw new UserError(`${notToml(error, label)}\n${excerpt(error)}`)
  }
  const places = new Map([...tomlPositions(text)].map(([key, at]) => [key, `${label}:${at.line}:${at.column}`]))
  const bad = [...places].find(([key]) => key.split(pathKey(['', ''])).includes(NO_KEY))
  if (bad) throw new UserError(`${bad[1]}: ${NO_KEY} is no name for a key. Give it another name.`)
  return normalize({ table, places, replacesEnv: Array.isArray(table.env) })
}

/** Says where and why a text is not valid TOML, without quoting it. */
export function notToml({ message, line, column }: TomlError, label: string): string {
  const why = message.split('\n')[0].replace(/^Invalid TOML document: /, '')
  // The likely cause is a Windows path, such as "C:\models" or "C:\Users".
  const hint = /escape/.test(why) ? ' A path is written with slashes, or in single quotes, where a backslash is one.' : ''
  return `${label}:${line}:${column} is not valid TOML: ${why}.${hint}`
}

/** Number of characters shown on either side of a mistake, as a line may contain a whole dataset. */
const AROUND = 60

/** The lines around the mistake. Long lines are cut to the part near its column. */
function excerpt({ codeblock, line, column }: TomlError): string {
  // Width of the line number ('12:  '), or of the spaces in its place on the line with the caret.
  const begin = String(line + 1).length + 3
  const from = begin + Math.max(0, column - 1 - AROUND)
  const lines = codeblock.trimEnd().split('\n')
  return lines.map((text) => text.slice(0, begin) + text.slice(from, from + 2 * AROUND)).join('\n')
}

/** No key may have this name: assigning it would change the object's prototype. */
export const NO_KEY = '__proto__'

/**
 * Expands short forms, and keeps their places: `model = "x"` becomes model.name, a single [env] or word of report_to becomes a list of one,
 * save_steps becomes a key of [trainer.ckpt].
 */
export function normalize(source: Source): Source {
  const { table, places } = source
  if (typeof table.model === 'string') {
    table.model = { name: table.model }
    const at = places.get('model')
    if (at) places.set(pathKey(['model', 'name']), at)
  }
  const args = isTable(table.trainer) && isTable(table.trainer.args) ? table.trainer.args : undefined
  if (typeof args?.report_to === 'string') args.report_to = [args.report_to]
  if (args) moveAliases(table.trainer as Table, args, places)
  if (isTable(table.env)) {
    table.env = [table.env]
    const prefix = pathKey(['env', ''])
    const moved = Array.from(places).filter(([key]) => key.startsWith(prefix))
    for (const [key, at] of moved) places.set(pathKey(['env', '0', '']) + key.slice(prefix.length), at)
  }
  return source
}

/**
 * Moves `save_steps` of [trainer.args] to `interval` of [trainer.ckpt], and similarly other aliases. If a source has both, the schema refuses
 * save_steps (foreign.ts).
 */
function moveAliases(trainer: Table, args: Table, places: Map<string, string>): void {
  for (const [alias, key] of Object.entries(CKPT_ALIASES)) {
    const ckpt = trainer.ckpt ?? {}
    if (args[alias] === undefined || !isTable(ckpt) || ckpt[key] !== undefined) continue
    trainer.ckpt = { ...ckpt, [key]: args[alias] }
    delete args[alias]
    const at = places.get(pathKey(['trainer', 'args', alias]))
    if (at) places.set(pathKey(['trainer', 'ckpt', key]), at)
  }
}

/** The environment of supervised training. */
export const SFT_ENV = ['data', 'env']

/** Whether a later table names another environment: the args of one are meaningless to another. */
const isOther = (before: unknown, after: unknown): boolean =>
  isTable(before) && isTable(after) && before.id !== undefined && after.id !== undefined && before.id !== after.id

/** Merges all sources into one table. Later ones win. */
export function mergeSources(sources: Source[]): Table {
  const merged: Table = {}
  for (const source of sources) {
    const table = copyOf(source.table)
    const env = table.env
    if (isOther(valueAt(merged, SFT_ENV), valueAt(table, SFT_ENV))) removeAt(merged, SFT_ENV)
    if (
      !source.replacesEnv &&
      Array.isArray(env) &&
      Array.isArray(merged.env) &&
      merged.env.length === 1 &&
      isTable(merged.env[0]) &&
      isTable(env[0])
    ) {
      const [before, after] = [merged.env[0], env[0]]
      mergeInto(merged, { ...table, env: [isOther(before, after) ? after : mergeInto(before, after)] })
    } else mergeInto(merged, table)
  }
  return merged
}

/** Makes a deep copy of tables and lists. structuredClone would turn TOML's local dates and times into plain Dates. */
export function copyOf<Value>(value: Value): Value {
  if (Array.isArray(value)) return value.map(copyOf) as Value
  if (!isTable(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, copyOf(inner)])) as Value
}

function mergeInto(target: Table, from: Table): Table {
  for (const [key, value] of Object.entries(from)) {
    const old = target[key]
    target[key] = isTable(value) ? mergeInto(isTable(old) ? old : {}, value) : value
  }
  return target
}

/** Where the value at `path` was written, in the last source that has it. If none has: the place of a key inside it, else of the nearest outer table. */
export function placeOf(sources: Source[], path: Path): { place: string; exact: boolean } | undefined {
  const inside = pathKey([...path, ''])
  for (let n = path.length; n > 0; n--) {
    const key = pathKey(path.slice(0, n))
    for (let i = sources.length - 1; i >= 0; i--) {
      const place = sources[i].places.get(key)
      if (place) return { place, exact: n === path.length }
    }
    // The command line has places only for keys, not for tables.
    const keys = n === path.length ? sources.flatMap(({ places }) => [...places].filter(([one]) => one.startsWith(inside))) : []
    if (keys.length > 0) return { place: keys.at(-1)![1], exact: false }
  }
  return undefined
}

/** Whether a source sets exactly this key. */
export const isSet = (sources: Source[], path: Path): boolean => placeOf(sources, path)?.exact ?? false

/** The value at a path, or undefined. */
export function valueAt(root: unknown, path: Path): unknown {
  let value = root
  for (const part of path) value = isTable(value) || Array.isArray(value) ? (value as Table)[part] : undefined
  return value
}

/** Removes the key or list element at a path. */
export function removeAt(root: Table, path: Path): void {
  const parent = valueAt(root, path.slice(0, -1))
  const last = path[path.length - 1]
  if (Array.isArray(parent)) parent.splice(Number(last), 1)
  else if (isTable(parent)) delete parent[last]
}

/** A path as the user writes it. The index of a list is left out if the list has one element. */
export function dotted(path: Path, root?: Table): string {
  return path
    .filter(
      (part, i) =>
        !(root && /^\d+$/.test(String(part)) && (valueAt(root, path.slice(0, i)) as unknown[] | undefined)?.length === 1),
    )
    .map((part) => (/^[\w-]+$/.test(String(part)) ? part : JSON.stringify(part)))
    .join('.')
}
