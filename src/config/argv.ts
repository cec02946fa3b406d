/**
 * Parses the words after `train` or `sft`: `@ file.toml` (several files compose left to right), dotted overrides, and a few flags.
 *
 *     @ a.toml @ b.toml --trainer.args.learning_rate 1e-4 --max-steps 2 --env.args.words=4 --dry-run --resume step 20 --trace 5-6
 *     --resume outputs/first                 --fork outputs/first@20 --learning-rate 1e-5        (with the config of that run)
 *
 * - A word that ends in .toml is a config file even without the @, because PowerShell needs the @ in quotes.
 * - A key is dotted, in snake_case or kebab-case. Its last part may stand alone if only one key has it (`--max-steps`).
 * - A value is parsed by its key's type: text for a string, TOML for all others. In a free table it is TOML if that parses, else text.
 */
import { parse } from 'smol-toml'
import { AT } from '../common/commands.ts'
import { nearest } from '../common/errors.ts'
import type { TraceLevel } from '../common/trace.ts'
import { counted } from '../monitor/format.ts'
import { copyOf, isTable, mergeSources, NO_KEY, removeAt, SFT_ENV, type Source, type Table, valueAt } from './compose.ts'
import { CKPT_ALIASES } from './ckpt-schema.ts'
import { allowedText, leafPaths, nodeAt, type SchemaNode } from './schema-tree.ts'
import { backendOf, findForeign } from './foreign.ts'
import { pathKey } from './toml-lines.ts'

/** Where `--resume` finds the checkpoint. */
export type Resume = { kind: 'latest' } | { kind: 'step'; step: number } | { kind: 'dir'; dir: string }

/** The argument of `--trace`: steps (default: the second and third of the process) and a file (default: trace.json in the run's folder). */
export interface TraceWish {
  steps?: [number, number]
  file?: string
  level: TraceLevel
}

/** The argument of `--fork`: a run, and which of its checkpoints the new run starts from. */
export interface Fork {
  dir: string
  step: 'latest' | 'best' | number
}

/** The parsed words of the command line. */
export interface Words {
  files: string[]
  overrides: { key: string; value: string | undefined; word: string }[]
  dryRun: boolean
  help: boolean
  resume?: Resume
  fork?: Fork
  trace?: TraceWish
  /** One sentence per mistake. */
  problems: string[]
}

const FLAGS = ['--dry-run', '--help', '--resume', '--fork', '--trace']

/** Whether a word can be a value, which means that it is neither a flag nor an @. A negative number is a value. */
const isValue = (word: string | undefined) =>
  word !== undefined && word !== '@' && !/^--?[A-Za-z]/.test(word) && !word.startsWith('@')

/** Whether a word is a config file without an @ before it. */
export const isConfigFile = (word: string): boolean => /^[^-].*\.toml$/s.test(word)

/** Whether a word can belong to --resume, --fork or --trace. A config file may come right after them, as its @ may be left out. */
const isOfFlag = (word: string | undefined) => isValue(word) && !isConfigFile(word!)

/** Classifies the words. Reads no files. */
export function readWords(argv: readonly string[]): Words {
  const words: Words = { files: [], overrides: [], dryRun: false, help: false, problems: [] }
  for (let i = 0; i < argv.length; i++) {
    const word = argv[i]
    if (word === '@') {
      if (isValue(argv[i + 1])) words.files.push(argv[++i])
      else words.problems.push(`After @ comes a config file, as in \`${AT} configs/quickstart.toml\`.`)
    } else if (word.startsWith('@')) words.files.push(word.slice(1))
    else if (isConfigFile(word)) words.files.push(word)
    else if (word === '--dry-run' || word === '--dry_run') words.dryRun = true
    else if (word === '--help' || word === '-h') words.help = true
    else if (word === '--resume' || word.startsWith('--resume=')) {
      const first = word === '--resume' ? (isOfFlag(argv[i + 1]) ? argv[++i] : 'latest') : word.slice('--resume='.length)
      const number = first === 'step' ? (isValue(argv[i + 1]) ? argv[++i] : '') : first
      if (first === '') words.problems.push('After --resume comes a run folder, `latest` or `step N`, not an empty word.')
      else if (first === 'latest') words.resume = { kind: 'latest' }
      else if (/^\d+$/.test(number)) words.resume = { kind: 'step', step: Number(number) }
      else if (first === 'step')
        words.problems.push(`--resume step ${number}: after step comes a number, as in \`--resume step 20\`.`)
      else words.resume = { kind: 'dir', dir: first }
    } else if (word === '--fork' || word.startsWith('--fork=')) {
      const given = word === '--fork' ? (isOfFlag(argv[i + 1]) ? argv[++i] : '') : word.slice('--fork='.length)
      const [, dir, step = 'latest'] = /^(.+?)(?:@(latest|best|\d+))?$/s.exec(given) ?? []
      if (dir === undefined)
        words.problems.push('After --fork comes a run folder, as in `--fork outputs/first` or `--fork outputs/first@20`.')
      else words.fork = { dir, step: step === 'latest' || step === 'best' ? step : Number(step) }
    } else if (word === '--trace' || word.startsWith('--trace=')) {
      const given = word === '--trace' ? [] : word.slice('--trace='.length).split(',')
      if (word === '--trace') while (isOfFlag(argv[i + 1])) given.push(argv[++i])
      words.trace = readTrace(given, words.problems)
    } else if (/^--[A-Za-z]/.test(word)) {
      const [, key, value] = /^--([^=]+)(?:=(.*))?$/s.exec(word) ?? ['', word.slice(2), undefined]
      words.overrides.push({ key, value: value ?? (isValue(argv[i + 1]) ? argv[++i] : undefined), word })
    } else
      words.problems.push(
        /^-[A-Za-z]/.test(word)
          ? `"${word}" is not understood here. A value that begins with - comes after =, as in --keep-best=-loss/mean.`
          : `"${word}" is not understood here. A config file comes after @, a key after --.`,
      )
  }
  return words
}

/** Parses the words after --trace, which may come in any order. */
function readTrace(given: string[], problems: string[]): TraceWish {
  const wish: TraceWish = { level: 'kernels' }
  for (const word of given) {
    const [, first, last = first] = /^(\d+)(?:-(\d+))?$/.exec(word) ?? []
    if (first !== undefined && Number(first) >= 1 && Number(first) <= Number(last)) wish.steps = [Number(first), Number(last)]
    else if (word === 'passes') wish.level = 'passes'
    else if (word.endsWith('.json')) wish.file = word
    else problems.push(`--trace ${word}: after --trace come steps (5, or 5-6), a file (its name ends in .json), or \`passes\`.`)
  }
  return wish
}

/** Turns overrides into sources to be merged after `files`. Returns a sentence for each override that was not understood. */
export function overrideSources(
  overrides: Words['overrides'],
  files: Source[],
  tree: SchemaNode,
): { sources: Source[]; problems: string[] } {
  const sources: Source[] = []
  const problems: string[] = []
  const isEnvId = (path: string[] | string) => typeof path !== 'string' && path[0] === 'env' && path[2] === 'id'
  const isId = (path: string[] | string) =>
    isEnvId(path) || pathKey(typeof path === 'string' ? [path] : path) === pathKey([...SFT_ENV, 'id'])
  // Another id replaces the environment, whose other keys may stand before it.
  const asked = overrides
    .map((override) => ({ ...override, found: findKey(override.key, mergeSources(files), tree) }))
    .toSorted((a, b) => Number(isId(b.found)) - Number(isId(a.found)))
  for (const { value, word, found } of asked) {
    const flag = word.split('=')[0]
    if (typeof found === 'string') {
      problems.push(`${flag} ${found}`)
      continue
    }
    const node = nodeAt(tree, found)
    if (value === undefined && node?.type !== 'boolean') {
      problems.push(`${flag} needs a value: ${node ? allowedText(node) : 'any'}.`)
      continue
    }
    if (found.includes(NO_KEY) || (node?.type !== 'string' && value?.includes(NO_KEY))) {
      problems.push(`${flag}: ${NO_KEY} is no name for a key. Give it another name.`)
      continue
    }
    const merged = mergeSources([...files, ...sources])
    const gap = found.findIndex((part, i) => nodeAt(tree, found.slice(0, i))?.type === 'list' && Number(part) > lengthAt(merged, found.slice(0, i))) // prettier-ignore
    if (gap > 0) {
      const list = found.slice(0, gap)
      problems.push(
        `${flag}: ${list.join('.')} has ${counted(lengthAt(merged, list), 'element')} before it, so the next is --${[...list, lengthAt(merged, list), ...found.slice(gap + 1)].join('.')}.`,
      )
      continue
    }
    const table: Table = {}
    const places = new Map([[pathKey(found), flag]])
    // Lists of tables ([[env]]) are copied as a whole, so that a single element can be changed.
    let at: Table = table
    found.slice(0, -1).forEach((part, i) => {
      const path = found.slice(0, i + 1)
      const existing = valueAt(merged, path)
      const next: unknown = Array.isArray(existing)
        ? copyOf<unknown>(existing)
        : isTable(at[part])
          ? at[part]
          : nodeAt(tree, path)?.type === 'list'
            ? [{}]
            : {}
      at[part] = next
      at = next as Table
    })
    const read = value === undefined ? true : readValue(value, node)
    // As in a file: the arguments and the name of one environment are not those of another. Its share of a mixture stays.
    if (isEnvId(found) && at.id !== undefined && at.id !== read)
      for (const name of Object.keys(at)) if (name !== 'weight') delete at[name]
    at[found[found.length - 1]] = read
    // An empty table replaces the earlier value, as merging it would change nothing.
    if (isTable(read) && Object.keys(read).length === 0) for (const source of [...files, ...sources]) clear(source, found)
    sources.push({ table, places, replacesEnv: true })
  }
  return { sources, problems }
}

function lengthAt(merged: Table, path: string[]): number {
  const list = valueAt(merged, path)
  return Array.isArray(list) ? list.length : 0
}

/** Removes a value from a source, together with the recorded places of its keys. */
function clear({ table, places }: Source, path: string[]): void {
  removeAt(table, path)
  const inside = pathKey([...path, ''])
  for (const key of Array.from(places.keys())) if (key === pathKey(path) || key.startsWith(inside)) places.delete(key)
}

/** The full path of a key as typed. If there is no such key, the end of a sentence that says why. */
function findKey(typed: string, merged: Table, tree: SchemaNode): string[] | string {
  const parts = typed.split('.')
  const path: string[] = []
  for (let i = 0; i < parts.length; i++) {
    const here = nodeAt(tree, path)
    if (here?.type === 'free') return [...path, ...parts.slice(i)]
    if (here?.type === 'list' && !/^\d+$/.test(parts[i])) {
      const items = (valueAt(merged, path) as Table[] | undefined) ?? []
      if (items.length > 1) {
        const named = items.findIndex(({ id, name = id }) => name === parts[i])
        const rest =
          named >= 0 || !nodeAt(tree, [...path, '0', parts[i].replaceAll('-', '_')]) ? parts.slice(i + 1) : parts.slice(i)
        const flag = `--${[...path, Math.max(0, named), ...rest].join('.')}`
        return `could mean any of ${items.length}: write ${flag} for ${named < 0 ? 'the first' : parts[i]}.`
      }
      path.push('0')
    }
    path.push(nodeAt(tree, path)?.type === 'free' ? parts[i] : parts[i].replaceAll('-', '_'))
  }
  if (path.length === 1 && path[0] === 'model') return ['model', 'name']
  const isOfArgs = path.length === 1 || path.slice(0, -1).join('.') === 'trainer.args'
  const last = path[path.length - 1]
  if (isOfArgs && Object.hasOwn(CKPT_ALIASES, last)) return ['trainer', 'ckpt', CKPT_ALIASES[last]]
  if (nodeAt(tree, path)) return path
  const leaves = leafPaths(tree).map((leaf) => leaf.path)
  const [first, ...rest] = parts
  const owners = leaves.filter((leaf) => leaf[leaf.length - 1] === first.replaceAll('-', '_'))
  // The last part of a key, alone or followed by keys below it: --max-steps, --loss-args.x.
  if (owners.length === 1 && owners[0].length > 1 && (!rest.length || nodeAt(tree, [...owners[0], ...rest])?.type === 'free'))
    return findKey([...owners[0], ...rest].join('.'), merged, tree)
  if (owners.length > 1 && !rest.length) return `could mean ${owners.map((leaf) => `--${leaf.join('.')}`).join(' or ')}.`
  // Keys of other trainers are left to the schema, which reports their name here.
  if (path.length === 1 && findForeign('trainer.args', path[0], backendOf(merged))) return ['trainer', 'args', path[0]]
  const dotted = leaves.map((leaf) => leaf.join('.'))
  const short = nearest(
    last,
    leaves.map((leaf) => leaf.at(-1)!),
  )
  const guess = nearest(path.join('.'), dotted) ?? dotted.find((_, i) => leaves[i].at(-1) === short)
  const flag = nearest(`--${typed}`, FLAGS)
  // An unknown key in a known table is left to the schema, which recognises keys of other trainers.
  if (parts.length > 1 && nodeAt(tree, path.slice(0, -1))?.keys) return path
  return `is not a key.${flag ? ` Did you mean ${flag}?` : guess ? ` Did you mean --${guess}?` : ' --help lists them.'}`
}

/** Parses a word as a value of the key's type. A word that does not fit stays text, which the schema then refuses. */
function readValue(text: string, node: SchemaNode | undefined): unknown {
  if (node?.type === 'string') return text
  try {
    return parse(`v = ${text}`).v
  } catch {
    // Numbers that shell tools print but TOML does not allow: .5 (bc), 01 (seq -w).
    const number = (node?.type === 'number' || node?.type === 'integer') && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)
    if (number && Math.abs(Number(text)) <= Number.MAX_SAFE_INTEGER) return Number(text)
    if (node?.type !== 'list' || node.items?.type !== 'string') return text
    // --lora_target_modules q_proj,v_proj. A single string keeps its blanks: --stop ' END'
    return text.includes(',') ? text.split(',').map((item) => item.trim()) : [text]
  }
}
