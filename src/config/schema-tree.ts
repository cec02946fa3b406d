/** A schema as a tree of plain data, derived from zod's JSON Schema. Used by messages, overrides, the help text and the TOML writer. */
import * as z from 'zod'

/** A key of the schema, or a table or list with what it contains. */
export interface SchemaNode {
  type: 'string' | 'integer' | 'number' | 'boolean' | 'list' | 'table' | 'free'
  description: string
  /** Undefined if the key has no default of its own (it is required, or its default depends on other keys). */
  default?: unknown
  required: boolean
  /** The allowed values of a string. */
  words?: string[]
  /** A word that is allowed instead of a number. */
  orWord?: string
  /** Values of other trainers that are refused, each with what to say about it. */
  foreign?: Record<string, string>
  minimum?: number
  maximum?: number
  above?: number
  below?: number
  multipleOf?: number
  minItems?: number
  /** For type table. */
  keys?: Record<string, SchemaNode>
  /** For type list. */
  items?: SchemaNode
}

const cache = new WeakMap<z.ZodType, SchemaNode>()

/** The tree of a schema. Cached. */
export function schemaTree(schema: z.ZodType): SchemaNode {
  let tree = cache.get(schema)
  if (!tree) {
    tree = toNode(z.toJSONSchema(schema, { io: 'input' }) as Json, true)
    cache.set(schema, tree)
  }
  return tree
}

type Json = Record<string, unknown> & {
  properties?: Record<string, Json>
  items?: Json
  required?: string[]
  anyOf?: [Json, Json]
}

function toNode(whole: Json, required: boolean): SchemaNode {
  // The only kind of union in the schemas is a number or a word.
  const { anyOf, ...rest } = whole
  const json: Json = anyOf ? { ...anyOf[0], ...rest } : whole
  const number = (name: string) => {
    const value = json[name] as number | undefined
    return value === undefined || Math.abs(value) >= Number.MAX_SAFE_INTEGER ? undefined : value
  }
  const node: SchemaNode = {
    type: typeOf(json),
    description: (json.description as string | undefined) ?? '',
    required: required && json.default === undefined,
    minimum: number('minimum'),
    maximum: number('maximum'),
    above: number('exclusiveMinimum'),
    below: number('exclusiveMaximum'),
    multipleOf: number('multipleOf'),
    minItems: number('minItems'),
  }
  if (json.default !== undefined) node.default = json.default
  if (anyOf) node.orWord = anyOf[1].const as string
  if (json.enum) node.words = json.enum as string[]
  if (json.foreign) node.foreign = json.foreign as Record<string, string>
  if (json.items) node.items = toNode(json.items, false)
  if (json.properties) {
    node.keys = Object.fromEntries(
      Object.entries(json.properties).map(([key, value]) => [key, toNode(value, json.required?.includes(key) ?? false)]),
    )
  }
  return node
}

function typeOf(json: Json): SchemaNode['type'] {
  if (json.type === 'array') return 'list'
  if (json.type === 'object') return json.properties ? 'table' : 'free'
  if (json.type === 'string' || json.type === 'integer' || json.type === 'number' || json.type === 'boolean') return json.type
  throw new Error(`schema-tree: no kind for ${JSON.stringify(json)}`)
}

/** The node at a path, or undefined. Everything below a free table is free. List indices are steps of the path. */
export function nodeAt(root: SchemaNode, path: readonly (string | number)[]): SchemaNode | undefined {
  let node: SchemaNode | undefined = root
  for (const part of path) {
    if (node?.type === 'free') return node
    node = node?.type === 'list' ? node.items : node?.keys && Object.hasOwn(node.keys, part) ? node.keys[part] : undefined
  }
  return node
}

/** All keys that hold a value, with their paths. A list of tables counts as one table (its path has no index), a free table as one key. */
export function leafPaths(node: SchemaNode, path: string[] = []): { path: string[]; node: SchemaNode }[] {
  const table = node.type === 'list' && node.items?.keys ? node.items : node
  if (!table.keys) return [{ path, node }]
  return Object.entries(table.keys).flatMap(([key, child]) => leafPaths(child, [...path, key]))
}

/** What a key accepts, in words: "an integer >= 2", "one of "a", "b"". */
export function allowedText(node: SchemaNode): string {
  const limits = [
    node.above !== undefined && `> ${node.above}`,
    node.minimum !== undefined && `>= ${node.minimum}`,
    node.below !== undefined && `< ${node.below}`,
    node.maximum !== undefined && `<= ${node.maximum}`,
  ].filter((x) => x !== false)
  const range = (limits.length ? ` ${limits.join(' and ')}` : '') + (node.multipleOf ? `, a multiple of ${node.multipleOf}` : '')
  if (node.words)
    return node.words.length === 1
      ? JSON.stringify(node.words[0])
      : `one of ${node.words.map((w) => JSON.stringify(w)).join(', ')}`
  if (node.type === 'list')
    return node.items?.words
      ? `a list, each ${allowedText(node.items)}`
      : `a list of ${node.items?.type === 'table' ? 'tables' : `${node.items?.type}s`}`
  if (node.type === 'boolean') return 'true or false'
  if (node.type === 'table' || node.type === 'free') return 'a table'
  const or = node.orWord === undefined ? '' : ` or ${JSON.stringify(node.orWord)}`
  return `${{ integer: 'an integer', number: 'a number', string: 'a string' }[node.type]}${range}${or}`
}
