/** Filters and tests as jinja2 has them; those that the library has alike go on to it. */
import { attributeOf, capitalized, floatOf, indented, jsonOf, titledWords } from './filters.ts'
import {
  FloatValue,
  LazyList,
  Library,
  NOTHING,
  given,
  isTrue,
  list,
  made,
  text,
  truth,
  tuple,
  type Environment,
  type Node,
} from './library.ts'
import { NUMBERS, comparison, order, sizeOf } from './order.ts'
import { pythonText, same, stripped, type Value } from './python-text.ts'

const ITERABLE = new Set(['ArrayValue', 'TupleValue', 'ObjectValue', 'StringValue', 'UndefinedValue'])
/** Tests that the library has otherwise. */
const TESTS = new Map<string, (value: Value) => boolean>([
  ['iterable', ({ type }) => ITERABLE.has(type)],
  ['sequence', ({ type }) => ITERABLE.has(type)],
  ['number', ({ type }) => NUMBERS.has(type)],
  ['float', ({ type }) => type === 'FloatValue'],
  ['lower', ({ value }) => value === String(value).toLowerCase() && value !== value.toUpperCase()],
  ['upper', ({ value }) => value === String(value).toUpperCase() && value !== value.toLowerCase()],
])
/** What filters return for an undefined value. */
const OF_NOTHING = new Map<string, unknown>([
  ['length', 0],
  ['join', ''],
  ...['items', 'list', 'map', 'select', 'reject', 'selectattr', 'rejectattr', 'sort', 'reverse', 'unique'].map(
    (name) => [name, []] as const,
  ),
])

/** Filters of texts, which are given the text of anything else. */
const OF_TEXTS = new Set(['lower', 'upper', 'replace'])
/** Filters that are generators. */
const LAZY = new Set(['map', 'select', 'reject', 'selectattr', 'rejectattr', 'unique', 'reverse', 'items'])
/** Filters that go over the letters of a text and the keys of an object. */
const GOING_OVER = new Set(
  [...LAZY, 'list', 'join', 'first', 'last', 'sort', 'sum', 'min', 'max'].filter((name) => name !== 'items'),
)
/** Filters whose items are pairs. */
const OF_PAIRS = new Set(['items', 'dictsort'])
/** Other names of filters. */
const SAME_AS = new Map([
  ['count', 'length'],
  ['d', 'default'],
])

/** The library's interpreter with filters and tests of its own; whoever extends it counts the work and sends it to them. */
export abstract class Filtering extends Library {
  protected abstract count(work: number): void

  /** The arguments of a filter by their names. */
  #named(filter: string, args: Node[], names: string[], scope: Environment): Record<string, Value | undefined> {
    const found: Record<string, Value> = {}
    for (const [i, arg] of args.entries()) {
      const keyword = arg.type === 'KeywordArgumentExpression'
      const name = keyword ? (arg.key!.value as string) : names[i]
      if (!names.includes(name)) throw new Error(`the filter ${filter} takes only ${names.join(', ')}`)
      found[name] = this.evaluate(keyword ? (arg.value as Node) : arg, scope)
    }
    return found
  }

  #json(operand: Value, args: Node[], scope: Environment): Value {
    const names = ['ensure_ascii', 'indent', 'separators', 'sort_keys']
    const { ensure_ascii: ascii, indent, separators, sort_keys: sorted } = this.#named('tojson', args, names, scope)
    const by = indent?.type === 'IntegerValue' ? ' '.repeat(Math.max(0, Number(indent.value))) : (indent?.value ?? null)
    const between = Array.isArray(separators?.value) ? (separators.value as Value[]).map(({ value }) => value) : separators?.value
    const usual = [by === null ? ', ' : ',', ': ']
    const [item, key] = (between ?? usual) as unknown[]
    if ((by !== null && typeof by !== 'string') || typeof item !== 'string' || typeof key !== 'string')
      throw new Error('the indent of tojson must be a number or text, and its separators two texts')
    const style = { ensureAscii: !!ascii && isTrue(ascii), indent: by, sortKeys: !!sorted && isTrue(sorted) }
    return text(jsonOf(operand, { ...style, separators: [item, key] }))
  }

  #number(operand: Value, filter: 'int' | 'float', args: Node[], scope: Environment): Value {
    const { type, value } = operand
    const { default: otherwise } = this.#named(filter, args, ['default'], scope)
    if (typeof value === 'bigint' && filter === 'int') return operand
    const read = type === 'StringValue' ? floatOf(value as string) : NUMBERS.has(type) ? Number(value) : Number.NaN
    if (filter === 'float') return Number.isNaN(read) ? (otherwise ?? new FloatValue(0)) : new FloatValue(read)
    return Number.isFinite(read) ? made(Math.trunc(read)) : (otherwise ?? made(0))
  }

  /** By what values are compared: themselves or an attribute, in small letters. */
  #key(filter: string, args: Node[], scope: Environment): (item: Value) => Value {
    const { case_sensitive: exact, attribute } = this.#named(filter, args, ['case_sensitive', 'attribute'], scope)
    return (item) => {
      const value = attribute ? (attributeOf(item, attribute) ?? NOTHING) : item
      return value.type === 'StringValue' && !(exact && isTrue(exact)) ? text((value.value as string).toLowerCase()) : value
    }
  }

  protected filter(node: Node, scope: Environment): Value {
    const operand = this.evaluate(node.operand, scope)
    const { callee, args = [] } = node.filter!
    const written = (callee ?? node.filter!).value as string
    const test = /^is (not )?(.+)$/u.exec(written)
    if (test) {
      const others = args.map((arg) => this.evaluate(arg, scope))
      return truth(this.#passes(scope, operand, test[2], others) !== (test[1] !== undefined))
    }
    const name = SAME_AS.get(written) ?? written
    const renamed: Node =
      name === written
        ? node
        : { ...node, filter: callee ? { ...node.filter!, callee: { ...callee, value: name } } : { ...node.filter!, value: name } }
    const filtered = this.#filtered(renamed, operand, name, args, scope)
    if (OF_PAIRS.has(name) && Array.isArray(filtered.value))
      filtered.value = (filtered.value as Value[]).map(({ value }) => tuple(value as Value[]))
    return LAZY.has(name) && filtered.type === 'ArrayValue' ? new LazyList(filtered.value) : filtered
  }

  #filtered(node: Node, operand: Value, name: string, args: Node[], scope: Environment): Value {
    if (operand.type === 'UndefinedValue' && OF_NOTHING.has(name)) return made(OF_NOTHING.get(name))
    const named = (...names: string[]) => this.#named(name, args, names, scope)
    const items = GOING_OVER.has(name) ? itemsOf(operand) : Array.isArray(operand.value) ? (operand.value as Value[]) : undefined
    switch (name) {
      case 'string':
        return text(pythonText(operand))
      case 'tojson':
        return this.#json(operand, args, scope)
      case 'trim':
        return text(stripped(pythonText(operand), named('chars').chars?.value, true, true))
      case 'title':
        return text(titledWords(pythonText(operand)))
      case 'capitalize':
        return text(capitalized(pythonText(operand)))
      case 'int':
      case 'float':
        return this.#number(operand, name, args, scope)
      case 'length':
        if (operand.type === 'StringValue') return made(Array.from(operand.value as string).length)
        break
      case 'default': {
        const { default_value: otherwise = text(''), boolean } = named('default_value', 'boolean')
        const missing = operand.type === 'UndefinedValue' || (boolean && isTrue(boolean) && !isTrue(operand))
        return missing ? otherwise : operand
      }
      case 'reverse':
        if (operand.type === 'StringValue')
          return text(
            Array.from(operand.value as string)
              .reverse()
              .join(''),
          )
        break
      case 'indent': {
        if (operand.type !== 'StringValue') break
        const { width = made(4), first, blank } = named('width', 'first', 'blank')
        const by = width.type === 'StringValue' ? (width.value as string) : ' '.repeat(Math.max(0, Number(width.value)))
        return text(indented(operand.value as string, by, !!first && isTrue(first), !!blank && isTrue(blank)))
      }
    }
    return items ? this.#ofItems(node, items, name, args, scope) : this.#ofLibrary(node, operand, name, scope)
  }

  #ofItems(node: Node, items: Value[], name: string, args: Node[], scope: Environment): Value {
    switch (name) {
      case 'list':
        return list(items)
      case 'join': {
        const { d, attribute } = this.#named(name, args, ['d', 'attribute'], scope)
        const joined = attribute ? items.map((item) => attributeOf(item, attribute) ?? NOTHING) : items
        return text(joined.map(pythonText).join(d ? pythonText(d) : ''))
      }
      case 'first':
      case 'last':
        if (items.length === 0) return NOTHING
        break
      case 'unique': {
        this.count(items.length ** 2)
        const key = this.#key(name, args, scope)
        return list(items.filter((item, i) => items.findIndex((other) => same(key(other), key(item))) === i))
      }
      case 'min':
      case 'max': {
        const key = this.#key(name, args, scope)
        const before = (one: Value, best: Value) =>
          order(key(one), key(best)) < 0 === (name === 'min') && !same(key(one), key(best))
        return items.reduce((best, one) => (before(one, best) ? one : best), items[0] ?? NOTHING)
      }
      case 'sum': {
        const { attribute, start = made(0) } = this.#named(name, args, ['attribute', 'start'], scope)
        const plus = (left: Value, right: Value): Node => ({
          type: 'BinaryExpression',
          operator: { value: '+' },
          left: given(left),
          right: given(right),
        })
        const added = attribute ? items.map((item) => attributeOf(item, attribute) ?? NOTHING) : items
        return added.reduce((sum, one) => this.evaluate(plus(sum, one), scope), start)
      }
      case 'select':
      case 'reject': {
        const [test, ...others] = args.map((arg) => this.evaluate(arg, scope))
        return list(
          items.filter((item) => this.#passes(scope, item, test?.value as string | undefined, others) === (name === 'select')),
        )
      }
      case 'sort': {
        const by = this.#named(name, args, ['reverse', 'case_sensitive', 'attribute'], scope).attribute?.value
        if (typeof by === 'string' && by.includes(',')) throw new Error('the filter sort takes only one attribute here')
        break
      }
      case 'selectattr':
      case 'rejectattr': {
        const [attribute, test, ...others] = args.map((arg) => this.evaluate(arg, scope))
        const holds = (item: Value) =>
          this.#passes(scope, attributeOf(item, attribute) ?? NOTHING, test?.value as string | undefined, others)
        return list(items.filter((item) => holds(item) === (name === 'selectattr')))
      }
      case 'map': {
        if (args[0]?.type !== 'StringLiteral') break
        const inner: Node = { type: 'Identifier', value: args[0].value }
        const filter = args.length > 1 ? { type: 'CallExpression', callee: inner, args: args.slice(1) } : inner
        return list(items.map((item) => this.evaluate({ type: 'FilterExpression', operand: given(item), filter }, scope)))
      }
    }
    return this.#ofLibrary(node, list(items), name, scope)
  }

  #ofLibrary(node: Node, operand: Value, name: string, scope: Environment): Value {
    return super.evaluate({ ...node, operand: given(OF_TEXTS.has(name) ? text(pythonText(operand)) : operand) }, scope)
  }

  /** Whether a value passes one of jinja2's tests; without a name, whether it is true. */
  #passes(scope: Environment, value: Value, name: string | undefined, others: Value[]): boolean {
    if (name === undefined) return isTrue(value)
    if (others[0]) this.count(sizeOf(others[0]))
    if (name === 'in') return isIn(value, others[0]) ?? pythonText(others[0]).includes(pythonText(value))
    if (['eq', 'equalto', '=='].includes(name)) return same(value, others[0])
    if (['ne', '!='].includes(name)) return !same(value, others[0])
    const compare = comparison(name)
    if (compare) return compare(value, others[0] ?? NOTHING)
    if (name === 'divisibleby') return Number(value.value) % Number(others[0]?.value) === 0
    if (name === 'sameas') return value.type === others[0]?.type && value.value === others[0].value
    const own = TESTS.get(name)
    if (own) return own(value)
    const test = scope.tests.get(name)
    if (test === undefined) throw new Error(`there is no test named ${name}`)
    return test(value as Parameters<typeof test>[0])
  }

  protected test(node: Node, scope: Environment): Value {
    const holds = TESTS.get(node.test!.value as string)
    return holds ? truth(holds(this.evaluate(node.operand, scope)) !== node.negate) : super.evaluate(node, scope)
  }
}

/** What a filter goes over; undefined for what has no items. */
function itemsOf({ type, value }: Value): Value[] | undefined {
  if (Array.isArray(value)) return value as Value[]
  if (type === 'StringValue') return Array.from(value as string, text)
  return type === 'ObjectValue' ? [...(value as Map<string, Value>).keys()].map(text) : undefined
}

/** Python's `left in right` for lists and objects; undefined for other values. */
export function isIn(left: Value, right: Value): boolean | undefined {
  if (Array.isArray(right.value)) return (right.value as Value[]).some((item) => same(left, item))
  return right.value instanceof Map ? left.type === 'StringValue' && right.value.has(left.value) : undefined
}
