/**
 * Converts a JSON schema to an EBNF grammar. Everything that the grammar allows satisfies the schema, but it is narrower in places: properties come
 * in the schema's order, unnamed ones only if the schema mentions them, integers have at most 15 digits, and white space is short. What a grammar
 * cannot enforce is refused with its name and place, never ignored, except that `oneOf` is read as `anyOf`, and formats that are unknown, or beside
 * a pattern or a list of values, are ignored, as the standard allows.
 */
import { UserError } from '../../common/errors.ts'
import { integerBetween, numberBetween, widened } from './numbers.ts'
import type { Bounds } from './numbers.ts'
import { regexGrammar } from './regex.ts'
import { Rules, literal, oneCharacter, oneOf } from './rules.ts'
import { SchemaReader, isNote, isObject } from './schema-read.ts'
import type { Schema } from './schema-read.ts'

/** Maximum items, characters or properties that a schema may require. */
const MOST = 20_000
const MOST_DEPTH = 64
const MOST_TEXT = 500_000

const DAY = String.raw`\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))`
const TIME = String.raw`(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:0\d|1[0-3]):[0-5]\d)`
const BYTE = '(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])'
/** The formats that are enforced. */
const FORMATS: Record<string, string> = {
  date: DAY,
  time: TIME,
  'date-time': `${DAY}T${TIME}`,
  uuid: '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}',
  ipv4: `${BYTE}(?:\\.${BYTE}){3}`,
  email: String.raw`[A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,32}){0,3}@[A-Za-z0-9]{1,32}(?:-[A-Za-z0-9]{1,16}){0,2}\.[A-Za-z]{2,8}`,
}

const OBJECT = ['properties', 'required', 'additionalProperties', 'minProperties', 'maxProperties']
const ARRAY = ['items', 'prefixItems', 'minItems', 'maxItems']
const STRING = ['pattern', 'minLength', 'maxLength', 'format']
const NUMBER = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum']
const TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']

/**
 * The grammar of the JSON that a schema allows.
 * @param loose ignores what a grammar cannot enforce
 * @throws UserError that names the place in the schema (`$` is its root)
 */
export function schemaGrammar(schema: unknown, loose = false): string {
  if ((JSON.stringify(schema)?.length ?? 0) > MOST_TEXT)
    throw new UserError(`$: the schema is longer than ${MOST_TEXT} characters. Split it.`)
  const converter = new Converter(schema, loose)
  return converter.rules.text(converter.whole(schema))
}

class Converter {
  readonly rules = new Rules()
  readonly #reader: SchemaReader
  readonly #refs = new Map<string, string>()
  /** References whose rules have a name but no body yet. */
  readonly #waiting: { name: string; target: unknown; place: string }[] = []
  readonly #space: string
  readonly #loose: boolean
  #any: string | undefined

  constructor(document: unknown, loose: boolean) {
    this.#reader = new SchemaReader(document, loose)
    this.#loose = loose
    this.#space = this.rules.add(String.raw`"" | " " | "\n" [ \t]{0,16}`)
  }

  /** Adds the rules for the whole document, and returns the first rule's name. */
  whole(schema: unknown): string {
    const root = this.#convert(schema, '$', 0)
    // References are converted one after another: inside each other, a long chain of them would exhaust the stack.
    for (let next = this.#waiting.pop(); next; next = this.#waiting.pop())
      this.rules.define(next.name, this.#convert(next.target, next.place, 0))
    return root
  }

  /** Adds the rules for a schema, and returns the rule's name. */
  #convert(value: unknown, path: string, depth: number): string {
    if (depth > MOST_DEPTH) throw new UserError(`${path}: the schema is nested more than ${MOST_DEPTH} deep.`)
    const schema = this.#reader.merged(value, path)
    if (Object.keys(schema).every((name) => isNote(name))) return this.#anything()
    if (schema.$ref !== undefined) return this.#reference(schema.$ref, path)
    for (const name of ['anyOf', 'oneOf'] as const) {
      if (schema[name] === undefined) continue
      const { [name]: branches, ...base } = schema
      if (!Array.isArray(branches) || branches.length === 0) throw new UserError(`${path}: ${name} must be a list of schemas.`)
      // The base is merged into each branch. Branches that no value of finite size satisfies are left out.
      const kept = branches.flatMap((branch, i) => {
        const at = `${path}.${name}[${i}]`
        const both = this.#reader.branch(base, branch, at)
        return both ? [{ both, at }] : []
      })
      if (kept.length === 0) throw new UserError(`${path}: no value satisfies ${name}.`)
      const bodies = kept.map(({ both, at }) => this.#convert(both, at, depth + 1))
      return this.rules.add(oneOf([...new Set(bodies)]))
    }
    if (schema.enum !== undefined && !Array.isArray(schema.enum)) throw new UserError(`${path}: enum must be a list of values.`)
    const listed = this.#reader.listed(schema, path)
    if (listed) return this.#values(listed, schema, path)
    const bodies = this.#typesOf(schema, path).map((type) => this.#typed(type, schema, path, depth))
    return this.rules.add(oneOf([...new Set(bodies)]))
  }

  /** Any JSON value. */
  #anything(): string {
    if (this.#any) return this.#any
    this.#any = this.rules.reserve()
    const types = ['object', 'array', 'string', 'number', 'boolean', 'null']
    this.rules.define(this.#any, oneOf(types.map((type) => this.#typed(type, {}, '$', 0))))
    return this.#any
  }

  #reference(ref: unknown, path: string): string {
    const target = this.#reader.follow(ref, path)
    const place = JSON.stringify(ref)
    const known = this.#refs.get(place)
    if (known) return known
    if (!this.#reader.hasValue({ $ref: ref }, path))
      throw new UserError(
        `${path}: $ref ${JSON.stringify(ref)} requires itself, or its parts exclude each other, so no value satisfies it.`,
      )
    const name = this.rules.reserve()
    this.#refs.set(place, name)
    this.#waiting.push({ name, target, place })
    return name
  }

  #typesOf(schema: Schema, path: string): string[] {
    const has = (names: string[]) => names.some((name) => schema[name] !== undefined)
    let types = schema.type === undefined ? [] : [schema.type].flat()
    const wrong = types.find((type) => !TYPES.includes(type as string))
    if (wrong !== undefined) throw new UserError(`${path}: the type ${JSON.stringify(wrong)} is not one of ${TYPES.join(', ')}.`)
    if (types.length === 0) {
      // In the standard, such keywords restrict only values of their type and allow all others; the grammar allows only that type.
      if (has(OBJECT)) types = ['object']
      else if (has(ARRAY)) types = ['array']
      else if (has(STRING)) types = ['string']
      else types = has(NUMBER) ? ['number'] : ['object', 'array', 'string', 'number', 'boolean', 'null']
    }
    if (schema.nullable === true && !types.includes('null')) types = [...types, 'null']
    return types as string[]
  }

  #typed(type: string, schema: Schema, path: string, depth: number): string {
    if (type === 'null') return '"null"'
    if (type === 'boolean') return '("true" | "false")'
    if (type === 'string') return this.#string(schema, path)
    if (type === 'integer' || type === 'number') return this.#number(type, schema, path)
    return type === 'array' ? this.#array(schema, path, depth) : this.#object(schema, path, depth)
  }

  #values(kept: unknown[], schema: Schema, path: string): string {
    if (schema.pattern !== undefined && !this.#loose)
      throw new UserError(`${path}: a list of values and a pattern cannot both be enforced. Leave the pattern out.`)
    if (kept.length === 0) throw new UserError(`${path}: no value of its list has its type and is within its bounds.`)
    return this.rules.add(oneOf([...new Set(kept.map((value) => literal(JSON.stringify(value))))]))
  }

  #string(schema: Schema, path: string): string {
    const [least, most] = [count(schema, 'minLength', path), count(schema, 'maxLength', path)]
    const bounded = least !== undefined || most !== undefined
    if (schema.pattern !== undefined) {
      if (typeof schema.pattern !== 'string') throw new UserError(`${path}: pattern must be a string with a regular expression.`)
      if (bounded && !this.#loose)
        throw new UserError(`${path}: pattern and a length cannot both be enforced. Write the length into the pattern.`)
      try {
        return this.#pattern(schema.pattern, path)
      } catch (error) {
        if (!this.#loose || !(error instanceof UserError)) throw error
      }
    }
    const format = typeof schema.format === 'string' && Object.hasOwn(FORMATS, schema.format) ? FORMATS[schema.format] : undefined
    if (format && bounded && !this.#loose)
      throw new UserError(`${path}: the format ${String(schema.format)} and a length cannot both be enforced.`)
    if (format) return this.#pattern(format, path)
    return String.raw`"\"" ${this.#character()}${repeat(least, most, path)} "\""`
  }

  #pattern(pattern: string, path: string): string {
    try {
      return String.raw`"\"" ${this.rules.add(regexGrammar(pattern, 'json'))} "\""`
    } catch (error) {
      throw error instanceof UserError ? new UserError(`${path}: ${error.message}`) : error
    }
  }

  /** A character of a JSON string. Halves of surrogate pairs are not allowed as escapes, so that lengths count code points. */
  #character(): string {
    const hex = '[0-9A-Fa-f]'
    const code = `([0-9A-CE-Fa-ce-f] ${hex}{3} | [Dd] [0-7] ${hex}{2})`
    const plain = oneCharacter([...Array(32).keys(), 34, 92], true)
    return this.rules.add(String.raw`${plain} | "\\" (["\\/bfnrt] | "u" ${this.rules.add(code)})`)
  }

  #number(type: string, schema: Schema, path: string): string {
    const bound = (name: string): number | undefined => {
      const value = schema[name]
      if (value === undefined || typeof value === 'boolean') return undefined
      if (typeof value !== 'number') throw new UserError(`${path}: ${name} must be a number.`)
      return value
    }
    // In draft 4, exclusiveMinimum was `true` beside minimum.
    const [min, max, above, below] = [bound('minimum'), bound('maximum'), bound('exclusiveMinimum'), bound('exclusiveMaximum')]
    const bounds: Bounds = {
      low: Math.max(min ?? -Infinity, above ?? -Infinity),
      high: Math.min(max ?? Infinity, below ?? Infinity),
      lowOpen: schema.exclusiveMinimum === true || (above !== undefined && above >= (min ?? -Infinity)),
      highOpen: schema.exclusiveMaximum === true || (below !== undefined && below <= (max ?? Infinity)),
    }
    const within = (of: Bounds): string => {
      const free = of.low === -Infinity && of.high === Infinity
      const integer = '"-"? ("0" | [1-9] [0-9]{0,14})'
      if (type === 'integer') return this.rules.add(free ? integer : integerBetween(of))
      return this.rules.add(free ? `${integer} ("." [0-9]{1,15})? ([eE] [+\\-]? [0-9]{1,2})?` : numberBetween(of))
    }
    try {
      try {
        return within(bounds)
      } catch (error) {
        if (!this.#loose || !(error instanceof UserError)) throw error
        return within(widened(bounds))
      }
    } catch (error) {
      throw error instanceof UserError ? new UserError(`${path}: ${error.message}`) : error
    }
  }

  #array(schema: Schema, path: string, depth: number): string {
    const draft4 = Array.isArray(schema.items)
    const first = draft4 ? schema.items : (schema.prefixItems ?? [])
    const rest = draft4 ? schema.additionalItems : schema.items
    if (!Array.isArray(first)) throw new UserError(`${path}: prefixItems must be a list of schemas.`)
    const least = count(schema, 'minItems', path) ?? 0
    const most = count(schema, 'maxItems', path)
    const places = first.map((item, i) => this.#convert(item, `${path}.prefixItems[${i}]`, depth + 1))
    if (most !== undefined && most < Math.max(least, places.length))
      throw new UserError(`${path}: maxItems is ${most}, but ${Math.max(least, places.length)} items are required.`)
    const comma = `${this.#space} "," ${this.#space}`
    const open = `"[" ${this.#space}`
    const close = `${this.#space} "]"`
    // Whether no items beyond `prefixItems` are allowed, or only ones that no value satisfies.
    const none =
      rest === false ||
      most === places.length ||
      (places.length === 0 && least === 0 && !this.#reader.hasValue(rest ?? true, path))
    if (none) {
      if (least > places.length)
        throw new UserError(`${path}: minItems is ${least}, but only ${places.length} items are described.`)
      return places.length === 0 ? '"[" "]"' : `${open} ${places.join(` ${comma} `)} ${close}`
    }
    const item = this.#convert(rest ?? true, `${path}.items`, depth + 1)
    const after = (from: number) =>
      `(${comma} ${item})${repeat(Math.max(0, least - from), most === undefined ? undefined : most - from, path)}`
    if (places.length > 0) return `${open} ${places.join(` ${comma} `)} ${after(places.length)} ${close}`
    const some = `${open} ${item} ${after(1)} ${close}`
    return least === 0 ? this.rules.add(`${some} | "[" ${this.#space} "]"`) : some
  }

  #object(schema: Schema, path: string, depth: number): string {
    const properties = schema.properties ?? {}
    const required = schema.required ?? []
    if (!isObject(properties)) throw new UserError(`${path}: properties must be an object of schemas.`)
    if (!Array.isArray(required) || required.some((name) => typeof name !== 'string'))
      throw new UserError(`${path}: required must be a list of names.`)
    const more = schema.additionalProperties ?? (Object.keys(properties).length + required.length === 0 ? true : undefined)
    const wanted = new Set(required as string[])
    // A required name that is not described is one of the additional properties; without additionalProperties it may have any value.
    const entries = Object.keys(properties).map((name): [string, unknown] => [name, properties[name]])
    for (const name of wanted) {
      if (Object.hasOwn(properties, name)) continue
      if (more === false) throw new UserError(`${path}: "${name}" is required, but additionalProperties forbids it.`)
      entries.push([name, more ?? true])
    }
    const kept = entries.filter(([name, value]) => wanted.has(name) || this.#reader.hasValue(value, `${path}.properties.${name}`))
    let [least, most] = [count(schema, 'minProperties', path) ?? 0, count(schema, 'maxProperties', path)]
    const any = more !== false && more !== undefined
    const fewest = Math.max(wanted.size, any && most !== 0 && kept.length === 0 ? 1 : 0)
    const largest = any && kept.length > 0 ? Infinity : kept.length
    if (this.#loose) {
      least = Math.min(least, fewest)
      if (most !== undefined && most < largest) most = undefined
    }
    const open = any && most !== 0
    if (least > fewest || (most ?? Infinity) < (open ? largest : kept.length))
      throw new UserError(
        `${path}: minProperties and maxProperties cannot be enforced here. Name the properties, and say which are required.`,
      )

    const comma = `${this.#space} "," ${this.#space}`
    const colon = `${this.#space} ":" ${this.#space}`
    const members = kept.map(([name, value]) => {
      const at = `${path}.properties.${name}`
      return {
        wanted: wanted.has(name),
        rule: this.rules.add(`${literal(JSON.stringify(name))} ${colon} ${this.#convert(value, at, depth + 1)}`),
      }
    })
    let extra: string | undefined
    if (open) {
      const value = this.#convert(more, `${path}.additionalProperties`, depth + 1)
      // The names of properties that were left out are excluded too: no value satisfies them.
      extra = this.rules.add(`${this.#otherName(entries.map(([name]) => name))} ${colon} ${value}`)
    }
    // From the last property to the first: what may follow some member, and what may come first.
    const bound = most === undefined ? undefined : most - 1
    let after =
      extra === undefined ? '""' : this.rules.add(`(${comma} ${extra})${repeat(0, kept.length === 0 ? bound : undefined, path)}`)
    let begin =
      extra === undefined ? '""' : this.rules.add(least > 0 && kept.length === 0 ? `${extra} ${after}` : `${extra} ${after} | ""`)
    for (const member of members.toReversed()) {
      const first = `${member.rule} ${after}`
      begin = this.rules.add(member.wanted ? first : `${first} | ${begin}`)
      after = this.rules.add(member.wanted ? `${comma} ${member.rule} ${after}` : `(${comma} ${member.rule})? ${after}`)
    }
    return `"{" ${this.#space} ${begin} ${this.#space} "}"`
  }

  /** A name that is none of these, written without escapes: a trie of the names, which is left at the first character that differs. */
  #otherName(names: string[]): string {
    const outside = [...Array(32).keys(), 34, 92]
    const any = oneCharacter(outside, true)
    const nodes = [{ next: new Map<string, number>(), ends: false }]
    for (const name of names) {
      let here = nodes[0]
      const signs = Array.from(name)
      const plain = signs.findIndex((sign) => outside.includes(sign.codePointAt(0)!))
      for (const sign of plain < 0 ? signs : signs.slice(0, plain)) {
        if (!here.next.has(sign)) here.next.set(sign, nodes.push({ next: new Map(), ends: false }) - 1)
        here = nodes[here.next.get(sign)!]
      }
      here.ends ||= plain < 0
    }
    // A node comes after those that lead to it, so from the last one back, each rule exists before it is needed.
    const rules: string[] = []
    for (let i = nodes.length - 1; i >= 0; i--) {
      const { next, ends } = nodes[i]
      const parts = Array.from(next, ([sign, to]) => `${literal(sign)} ${rules[to]}`)
      parts.push(`${oneCharacter([...outside, ...Array.from(next.keys(), (sign) => sign.codePointAt(0)!)], true)} ${any}*`)
      if (!ends) parts.push('""')
      rules[i] = this.rules.add(parts.join(' | '))
    }
    return this.rules.add(String.raw`"\"" ${rules[0]} "\""`)
  }
}

function count(schema: Schema, name: string, path: string): number | undefined {
  const value = schema[name]
  if (value === undefined) return undefined
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0)
    throw new UserError(`${path}: ${name} must be an integer of 0 or more.`)
  if (name.startsWith('min') && value > MOST)
    throw new UserError(`${path}: ${name} is ${value}; at most ${MOST} can be enforced.`)
  return Math.min(value, MOST)
}

function repeat(least = 0, most: number | undefined, path: string): string {
  if (most !== undefined && most < least)
    throw new UserError(`${path}: its upper bound ${most} is below its lower bound ${least}.`)
  if (most === undefined && least === 0) return '*'
  return `{${least},${most ?? ''}}`
}
