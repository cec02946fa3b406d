/** Simplifies a JSON schema: follows references, merges `allOf`, and refuses what a grammar cannot enforce. */
import { UserError } from '../../common/errors.ts'

/** A JSON schema that is an object. */
export type Schema = Record<string, unknown>

/** Keywords that restrict values in a way that a grammar cannot express, or this one does not. */
const REFUSED = new Set([
  'not',
  'if',
  'dependentRequired',
  'dependentSchemas',
  'dependencies',
  'contains',
  'multipleOf',
  'patternProperties',
  'propertyNames',
  'unevaluatedItems',
  'unevaluatedProperties',
  '$dynamicRef',
  '$recursiveRef',
])
/** Keywords that say nothing about values. */
const NOTES = new Set([
  'title',
  'description',
  'default',
  'examples',
  'example',
  'deprecated',
  'readOnly',
  'writeOnly',
  '$comment',
])
for (const name of ['$schema', '$id', '$anchor', '$defs', 'definitions', 'strict', 'discriminator']) NOTES.add(name)

/**
 * Maximum schemas visited for one document, which takes a second or two. Without it, references whose branches multiply would never end.
 */
const MOST_READ = 100000
/** Maximum characters of the schemas and values that are compared or copied to merge schemas: about a second's work. */
const MOST_COMPARED = 50_000_000
/** What looking at a value, and copying a keyword or name, count as, in characters. */
const ONE = { value: 30, name: 100 }
/** Maximum nesting of schemas in the search for a value: two recursive references that must both hold would otherwise exhaust the stack. */
const MOST_WITHIN = 500

/** Whether a keyword says nothing about values. */
export const isNote = (name: string): boolean => NOTES.has(name)

export const isObject = (value: unknown): value is Schema => typeof value === 'object' && value !== null && !Array.isArray(value)

/** Two schemas that apply at once have no value in common. */
class Contradiction extends UserError {}

/** Reads the schemas within one document. */
export class SchemaReader {
  readonly #document: unknown
  readonly #loose: boolean
  /** References that some value is known to satisfy. */
  readonly #satisfiable = new Set<string>()
  #read = 0
  #compared = 0
  #within = 0

  /** @param loose keywords that cannot be enforced are ignored, not refused */
  constructor(document: unknown, loose: boolean) {
    this.#document = document
    this.#loose = loose
  }

  /**
   * What a local reference points to.
   * @throws UserError for one that points nowhere or outside the document
   */
  follow(ref: unknown, path: string): unknown {
    if (typeof ref !== 'string' || !(ref === '#' || ref.startsWith('#/')))
      throw new UserError(`${path}: $ref ${JSON.stringify(ref)} is not inside the schema. Write it as "#/$defs/NAME".`)
    let here: unknown = this.#document
    for (const part of ref.split('/').slice(1)) {
      let name = part
      try {
        name = decodeURIComponent(part)
      } catch {
        // A percent sign that does not begin an escape stays as it is.
      }
      name = name.replaceAll('~1', '/').replaceAll('~0', '~')
      const inside = (isObject(here) || Array.isArray(here)) && Object.hasOwn(here, name)
      if (!inside) throw new UserError(`${path}: $ref ${JSON.stringify(ref)} points to nothing.`)
      here = (here as Schema)[name]
    }
    return here
  }

  /**
   * The schema as an object without refused keywords; `true` becomes an empty object.
   * @throws UserError
   */
  read(value: unknown, path: string): Schema {
    if (++this.#read > MOST_READ)
      throw new UserError(`${path}: the schema has too many references and branches up to here. Use fewer, or split the schema.`)
    if (value === true) return {}
    if (value === false) throw new UserError(`${path}: the schema false allows no value.`)
    if (!isObject(value)) throw new UserError(`${path}: a schema must be an object, true or false.`)
    const isRefused = ([name, of]: [string, unknown]) =>
      name === 'uniqueItems' ? of === true : REFUSED.has(name) && of !== undefined
    const refused = Object.entries(value).find(isRefused)
    if (!refused) return value
    if (this.#loose) return Object.fromEntries(Object.entries(value).filter((entry) => !isRefused(entry)))
    throw new UserError(`${path}: the keyword "${refused[0]}" cannot be enforced by a grammar. Leave it out.`)
  }

  #compare(characters: number, path: string): void {
    this.#compared += characters
    if (this.#compared > MOST_COMPARED)
      throw new UserError(`${path}: too much of the schema applies at once to merge it. Write one schema, or split it.`)
  }

  #counted(text: string, path: string): string {
    this.#compare(ONE.value + text.length, path)
    return text
  }

  /** Merges `allOf`, and the keywords beside `$ref`, into one schema. */
  merged(value: unknown, path: string, depth = 0): Schema {
    if (depth > 32) throw new UserError(`${path}: references and allOf are nested more than 32 deep.`)
    const { allOf, ...own } = this.read(value, path)
    let out = own
    if (allOf !== undefined) {
      if (!Array.isArray(allOf)) throw new UserError(`${path}: allOf must be a list of schemas.`)
      allOf.forEach((part, i) => (out = this.merge(out, this.merged(part, `${path}.allOf[${i}]`, depth + 1), path, depth)))
    }
    // A reference may lead to another one.
    for (let deep = depth; ; deep++) {
      const beside = Object.keys(out).filter((name) => name !== '$ref' && !NOTES.has(name))
      if (out.$ref === undefined || beside.length === 0) return out
      const { $ref, ...rest } = out
      out = this.merge(this.merged(this.follow($ref, path), path, deep + 1), rest, path, deep)
    }
  }

  /** A branch merged with what holds beside it; undefined if no value of finite size satisfies both. */
  branch(base: Schema, branch: unknown, path: string): Schema | undefined {
    if (!this.hasValue(branch, path)) return undefined
    try {
      const both = this.merge(base, this.merged(branch, path), path)
      return this.hasValue(both, path) ? both : undefined
    } catch (error) {
      if (error instanceof Contradiction) return undefined
      throw error
    }
  }

  /** Merges two schemas that must both hold into one. */
  merge(one: Schema, other: Schema, path: string, depth = 0): Schema {
    // Loose schemas are often generated by programs that mean their parts to be combined.
    const [left, right] = this.#loose ? [one, other] : [heldBy(other, one), heldBy(one, other)]
    const out: Schema = { ...left }
    this.#compare(ONE.name * (sizeOf(left) + sizeOf(right)), path)
    const text = (part: unknown) => this.#counted(JSON.stringify(part), path)
    const same = (mine: unknown, value: unknown) => mine === value || text(mine) === text(value)
    for (const [name, value] of Object.entries(right)) {
      const mine = out[name]
      if (mine === undefined || NOTES.has(name) || same(mine, value)) out[name] = value
      else if (name === '$ref') {
        const { $ref, ...rest } = out
        const followed = this.merge(this.merged(this.follow($ref, path), path, depth + 1), rest, path, depth + 1)
        return this.merge(followed, this.merged(right, path, depth + 1), path, depth + 1)
      } else if (name === 'required' && Array.isArray(mine) && Array.isArray(value)) out[name] = [...new Set([...mine, ...value])]
      else if (name === 'properties' && isObject(mine) && isObject(value)) {
        const both = { ...mine }
        for (const [key, schema] of Object.entries(value))
          both[key] = Object.hasOwn(both, key) && !same(both[key], schema) ? { allOf: [both[key], schema] } : schema
        out[name] = both
      } else if (name === 'enum' && Array.isArray(mine) && Array.isArray(value)) {
        const allowed = new Set(value.map((entry) => JSON.stringify(entry)))
        out[name] = mine.filter((entry) => allowed.has(JSON.stringify(entry)))
      } else if (/^(exclusiveM|m)in/.test(name) && typeof mine === 'number' && typeof value === 'number')
        out[name] = Math.max(mine, value)
      else if (/^(exclusiveM|m)ax/.test(name) && typeof mine === 'number' && typeof value === 'number')
        out[name] = Math.min(mine, value)
      else if (name === 'type') {
        const types = inBoth([mine].flat(), [value].flat())
        if (types.length === 0) throw new Contradiction(`${path}: the schema requires two types that have nothing in common.`)
        out[name] = types
      } else if (!this.#loose || name === 'const')
        throw new UserError(`${path}: two schemas apply at once, but their "${name}" cannot be merged. Write one schema.`)
    }
    return out
  }

  /**
   * The values of a merged schema's `enum` or `const` that satisfy it; undefined if it has neither.
   * @throws UserError for a pattern (which a loose schema ignores), since matching it may take forever
   */
  listed(schema: Schema, path: string): unknown[] | undefined {
    const { enum: values, ...rest } = schema
    if (Object.hasOwn(schema, 'const')) return this.#fits(schema.const, schema, path) ? [schema.const] : []
    return Array.isArray(values) ? values.filter((value) => this.#fits(value, rest, path)) : undefined
  }

  #satisfies(value: unknown, of: unknown, path: string): boolean {
    return of !== false && this.#deeper(path, () => this.#fits(value, this.merged(of, path), path))
  }

  #fits(value: unknown, schema: Schema, path: string): boolean {
    const holds = (inner: unknown, part: unknown) => part === undefined || this.#satisfies(inner, part, path)
    const within = (size: number, least: string, most: string) =>
      size >= bound(schema[least], -Infinity) && size <= bound(schema[most], Infinity)
    if (schema.$ref !== undefined && !holds(value, this.follow(schema.$ref, path))) return false
    this.#compare(ONE.value + (typeof value === 'string' ? value.length : 0), path)
    const is = (one: unknown) => this.#counted(textOf(one), path) === this.#counted(textOf(value), path)
    if (Object.hasOwn(schema, 'const') && !is(schema.const)) return false
    if (Array.isArray(schema.enum) && !schema.enum.some(is)) return false
    for (const branches of [schema.anyOf, schema.oneOf])
      if (Array.isArray(branches) && !branches.some((branch) => holds(value, branch))) return false
    const types = schema.type === undefined ? undefined : [schema.type].flat()
    if (types && !(value === null && schema.nullable === true) && !typesOf(value).some((type) => types.includes(type)))
      return false
    if (typeof value === 'string') {
      if (schema.pattern !== undefined && !this.#loose)
        throw new UserError(`${path}: a list of values and a pattern cannot both be enforced. Leave the pattern out.`)
      return within(Array.from(value).length, 'minLength', 'maxLength')
    }
    if (typeof value === 'number') {
      const [above, below] = [schema.exclusiveMinimum, schema.exclusiveMaximum]
      // Draft 4's form: true, beside a bound.
      if ((above === true && value === schema.minimum) || (below === true && value === schema.maximum)) return false
      return within(value, 'minimum', 'maximum') && value > bound(above, -Infinity) && value < bound(below, Infinity)
    }
    if (Array.isArray(value)) {
      const first = (schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : [])) as unknown[]
      const rest = Array.isArray(schema.items) ? schema.additionalItems : schema.items
      return (
        within(value.length, 'minItems', 'maxItems') && value.every((item, i) => holds(item, i < first.length ? first[i] : rest))
      )
    }
    if (!isObject(value)) return true
    const properties = isObject(schema.properties) ? schema.properties : {}
    const required = Array.isArray(schema.required) ? (schema.required as string[]) : []
    return (
      within(Object.keys(value).length, 'minProperties', 'maxProperties') &&
      required.every((name) => Object.hasOwn(value, name)) &&
      Object.entries(value).every(([name, inner]) =>
        holds(inner, Object.hasOwn(properties, name) ? properties[name] : schema.additionalProperties),
      )
    )
  }

  /**
   * Whether some value of finite size satisfies the schema. A reference that requires itself has none, and its grammar would never end. A smallest
   * value never contains the same reference inside itself, so a reference that is met again counts as having no value.
   */
  hasValue(value: unknown, path: string, open: ReadonlySet<string> = new Set()): boolean {
    try {
      return this.#deeper(path, () => this.#hasValue(value, path, open))
    } catch (error) {
      if (error instanceof Contradiction) return false
      throw error
    }
  }

  #deeper(path: string, ask: () => boolean): boolean {
    if (++this.#within > MOST_WITHIN)
      throw new UserError(`${path}: references that apply at once lead to each other without end. Write one schema.`)
    try {
      return ask()
    } finally {
      this.#within--
    }
  }

  #hasValue(value: unknown, path: string, open: ReadonlySet<string>): boolean {
    if (value === false) return false
    const schema = this.merged(value, path)
    const listed = this.listed(schema, path)
    if (listed) return listed.length > 0
    if (schema.$ref !== undefined) {
      const ref = JSON.stringify(schema.$ref)
      if (this.#satisfiable.has(ref)) return true
      if (open.has(ref)) return false
      const found = this.hasValue(this.follow(schema.$ref, path), path, new Set([...open, ref]))
      if (found) this.#satisfiable.add(ref)
      return found
    }
    const branches = schema.anyOf ?? schema.oneOf
    if (Array.isArray(branches) && !branches.some((branch) => this.hasValue(branch, path, open))) return false
    const types = schema.type === undefined ? [] : [schema.type].flat()
    if (types.some((type) => type !== 'object' && type !== 'array')) return true
    const properties = isObject(schema.properties) ? schema.properties : {}
    const required = Array.isArray(schema.required) ? (schema.required as string[]) : []
    const object = required.every((name) =>
      Object.hasOwn(properties, name) ? this.hasValue(properties[name], path, open) : schema.additionalProperties !== false,
    )
    const least = typeof schema.minItems === 'number' ? schema.minItems : 0
    const first = schema.prefixItems ?? (Array.isArray(schema.items) ? schema.items : [])
    const array =
      (Array.isArray(first) ? first : []).every((item) => this.hasValue(item, path, open)) &&
      (least === 0 || schema.items === undefined || Array.isArray(schema.items) || this.hasValue(schema.items, path, open))
    if (types.length === 0) return object && array
    return (types.includes('object') && object) || (types.includes('array') && array)
  }
}

/** Number of names that are copied when a schema is merged. */
const sizeOf = (schema: Schema): number =>
  [schema, schema.properties, schema.required].reduce<number>(
    (sum, part) => sum + (typeof part === 'object' && part !== null ? Object.keys(part).length : 0),
    0,
  )

const bound = (value: unknown, otherwise: number): number => (typeof value === 'number' ? value : otherwise)

/** The types of a value, in JSON Schema's terms. */
function typesOf(value: unknown): string[] {
  if (value === null) return ['null']
  if (Array.isArray(value)) return ['array']
  if (typeof value === 'number') return Number.isInteger(value) ? ['integer', 'number'] : ['number']
  return [typeof value]
}

/** JSON text that is the same for equal objects. */
const textOf = (value: unknown): string =>
  JSON.stringify(value, (_, inner: unknown) =>
    isObject(inner) ? Object.fromEntries(Object.entries(inner).toSorted(([a], [b]) => (a < b ? -1 : 1))) : inner,
  )

/**
 * A schema, extended by what another one that must also hold says of properties and items that this other one does not name: through its
 * `additionalProperties` and `items`.
 */
function heldBy(other: Schema, schema: Schema): Schema {
  const { additionalProperties: more = true, items } = other
  const out = { ...schema }
  if (isObject(schema.properties) && more !== true) {
    const named = isObject(other.properties) ? other.properties : {}
    const held = ([name, value]: [string, unknown]) => [name, Object.hasOwn(named, name) ? value : both(value, more)]
    out.properties = Object.fromEntries(Object.entries(schema.properties).map(held)) as Schema
  }
  if (Array.isArray(schema.prefixItems) && other.prefixItems === undefined && items !== undefined && !Array.isArray(items))
    out.prefixItems = schema.prefixItems.map((item: unknown) => both(item, items))
  return out
}

const both = (one: unknown, other: unknown): unknown => (one === false || other === false ? false : { allOf: [one, other] })

/** The types in both lists; an integer is also a number. */
function inBoth(left: unknown[], right: unknown[]): unknown[] {
  const holds = (types: unknown[], type: unknown) => types.includes(type) || (type === 'integer' && types.includes('number'))
  return [...new Set([...left, ...right])].filter((type) => holds(left, type) && holds(right, type))
}
