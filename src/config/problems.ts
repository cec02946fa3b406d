/** Turns zod's issues into sentences: the key, the value it got, what is allowed, and what was probably meant. */
import type * as z from 'zod'
import { nearest } from '../common/errors.ts'
import { variableProblem } from '../common/template-variables.ts'
import { dotted, isTable, type Path, type Table, valueAt } from './compose.ts'
import { backendOf, findForeign, innerTables, judge, renamed, renamedInEval } from './foreign.ts'
import { allowedText, leafPaths, nodeAt, type SchemaNode } from './schema-tree.ts'
import { pathKey } from './toml-lines.ts'

/** A mistake. `text` continues the sentence after the key's name: "is 100, not a multiple of ...". */
export interface Problem {
  path: Path
  text: string
}

/** Formats a value for a message. */
export function show(value: unknown): string {
  const text = whole(value)
  return text.length > 60 ? `${text.slice(0, 57)}...` : text
}

function whole(value: unknown): string {
  if (typeof value === 'number') return String(value)
  return value instanceof Date ? value.toISOString() : (JSON.stringify(value) ?? String(value))
}

/** Whether a value, as it was written, is that of a key's default. */
export const isDefault = (value: unknown, node: SchemaNode | undefined): boolean => whole(value) === whole(node?.default)

/** Says what is wrong with chat_template_kwargs. Undefined if nothing is. */
export function templateProblem(value: unknown): string | undefined {
  if (!isTable(value)) return `chat_template_kwargs is ${show(value)}; it must be a table, as { enable_thinking = false }.`
  return variableProblem(value)
}

/** All problems that the schema found in `raw`. */
export function schemaProblems(issues: readonly z.core.$ZodIssue[], raw: Table, tree: SchemaNode): Problem[] {
  const problems: Problem[] = []
  const seen = new Set<string>()
  for (const issue of issues) {
    const path = issue.path as Path
    if (issue.code === 'unrecognized_keys') {
      for (const key of issue.keys) problems.push({ path: [...path, key], text: unknownKey([...path, key], raw, tree) })
    } else if (!seen.has(pathKey(path))) {
      seen.add(pathKey(path))
      problems.push({ path, text: badValue(issue, valueAt(raw, path), nodeAt(tree, path)) })
    }
  }
  return problems
}

function unknownKey(path: Path, raw: Table, tree: SchemaNode): string {
  const key = String(path[path.length - 1])
  const parent = path.slice(0, -1)
  const table = parent.filter((part) => !/^\d+$/.test(String(part))).join('.')
  const foreign = findForeign(table, key, backendOf(raw))
  if (foreign) {
    const { say } = judge(foreign, valueAt(raw, path))
    return say.endsWith('[trainer.args]') ? `${say}${moved(key, valueAt(raw, path), tree)}` : say
  }
  const siblings = Object.keys(nodeAt(tree, parent)?.keys ?? {})
  const leaves = leafPaths(tree)
  const elsewhere = leaves.filter((leaf) => leaf.path[leaf.path.length - 1] === key).map((leaf) => leaf.path)
  const where = table ? `of [${table}]` : 'at the top of a config'
  if (elsewhere.length && !siblings.includes(key))
    return `is not a key ${where}. It belongs in [${elsewhere[0].slice(0, -1).join('.')}].`
  const trainers = table === '' ? findForeign('trainer.args', key, backendOf(raw)) : undefined
  if (trainers) return `${trainers.say} Training is set in [trainer.args].`
  const near = nearest(key, siblings)
  if (near) return `is not a key ${where}. Did you mean ${near}?`
  const far = nearest(
    key,
    leaves.map((leaf) => leaf.path[leaf.path.length - 1]),
  )
  const farPath = leaves.find((leaf) => leaf.path[leaf.path.length - 1] === far)?.path
  if (farPath) return `is not a key ${where}. Did you mean ${farPath.join('.')}?`
  return `is not a key ${where}. ${siblings.length <= 12 ? `Keys there: ${siblings.join(', ')}.` : '--help lists the keys.'}`
}

/** Says what the keys of one of prime-rl's tables are called in [trainer.args], and what becomes of tables inside it: the end of a sentence, and more. */
function moved(table: string, value: unknown, tree: SchemaNode): string {
  const known = nodeAt(tree, ['trainer', 'args'])?.keys ?? {}
  const [names, told] = [new Set<string>(), new Set<string>()]
  const visit = (within: Table, of: 'train' | 'eval') => {
    for (const [key, inner] of Object.entries(within)) {
      const by = of === 'eval' ? renamedInEval : renamed
      const name = Object.hasOwn(by, key) ? by[key] : of === 'eval' ? '' : key
      const isWithin = isTable(inner) || Array.isArray(inner)
      // Some of prime-rl's tables have the name of a plain key here, such as [trainer.loss]: look inside them.
      if (known[name] && (!isTable(inner) || known[name].type === 'free')) names.add(name === key ? key : `${name} (for ${key})`)
      else if (isWithin && Object.hasOwn(innerTables[of], key)) told.add(innerTables[of][key])
      else if (isTable(inner)) visit(inner, isOfEval(key) ? 'eval' : of)
    }
  }
  if (isTable(value)) visit(value, isOfEval(table) ? 'eval' : 'train')
  const keys = names.size > 0 ? `, as ${Array.from(names).join(', ')}` : ''
  return [`${keys}.`, ...told].join(' ')
}

const isOfEval = (table: string): boolean => table === 'eval' || table === 'val'

function badValue(issue: z.core.$ZodIssue, value: unknown, node: SchemaNode | undefined): string {
  const allowed = node ? allowedText(node) : 'something else'
  if (value === undefined) return `is missing. It takes ${allowed}. ${node?.description ?? ''}`.trimEnd()
  if (issue.code === 'invalid_format') return `is ${show(value)}; it must be ${issue.message}.`
  if (node?.type === 'string' && value === '') return 'is empty.'
  if (node?.foreign && typeof value === 'string' && Object.hasOwn(node.foreign, value))
    return `is ${show(value)}, which ${node.foreign[value]}.`
  if (node?.type === 'list' && Array.isArray(value))
    return `has ${value.length} entries; it needs at least ${node.minItems ?? 0}.`
  // The TOML reader refuses integers that a number cannot hold exactly, so the word has remained text.
  if (node?.type === 'integer' && typeof value === 'string' && /^[+-]?\d+$/.test(value) && !Number.isSafeInteger(Number(value)))
    return `is ${value}; an integer must be from ${Number.MIN_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}.`
  const meant = node?.words && typeof value === 'string' ? nearest(value, node.words) : undefined
  const quoted = typeof value === 'string' && (node?.type === 'number' || node?.type === 'integer' || node?.type === 'boolean')
  // The description of a table gives its short form.
  const isWholeTable = node?.keys ?? node?.items?.keys
  const hint = isWholeTable
    ? ` ${node?.description}`.trimEnd()
    : meant
      ? ` Did you mean ${show(meant)}?`
      : quoted && /^[\d.eE+-]+$|^(true|false)$/.test(value)
        ? ' Write it without quotes.'
        : ''
  return `is ${show(value)}${quoted ? ', a string' : ''}; it must be ${allowed}.${hint}`
}

/** "a.toml:7:1: trainer.args.seed is ..." or, for the command line, "--trainer.args.seed: ...". */
export function sentence(problem: Problem, place: string, raw: Table): string {
  return `${place}: ${dotted(problem.path, raw)} ${problem.text}`
}
