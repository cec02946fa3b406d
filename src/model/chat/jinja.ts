/**
 * Chat templates. The only file that knows the template library, whose interpreter writes, compares and joins values as JavaScript does in
 * many places. Templates are made for Python's jinja2: here `evaluate` takes those places over (`lstrip('\n')` took the indentation of an
 * answer off, `'a' + {}` was "a[object Map]", `{{ none }}` nothing), and leaves the rest to the library.
 */
import { Environment, Interpreter, Template } from '@huggingface/jinja'
import { isFloat } from '../../common/json-floats.ts'
import { PythonFloat, floatText, pythonText, same, strftime, stripped, type Value } from './python-text.ts'

/** A part of a parsed template. `Given` is ours: a value that is there already. */
interface Node {
  type: string
  value?: unknown
  operator?: { value: string }
  left?: Node
  right?: Node
  operand?: Node
  filter?: Node
  test?: Node
  negate?: boolean
  callee?: Node
  args?: Node[]
  object?: Node
  property?: Node
  computed?: boolean
  iterable?: Node
  lhs?: Node
  loopvar?: Node
  body?: Node[]
  defaultBlock?: Node[]
  name?: Node
}

type Truth = Value & { __bool__(): { value: boolean } }

/** The library's interpreter with what is overridden here: its types call `evaluateBlock` private. */
const Library = Interpreter as unknown as new (scope: Environment) => {
  run(program: unknown): Value
  evaluate(node: Node | undefined, scope: Environment): Value
  evaluateBlock(statements: Node[], scope: Environment): Value
}

type Declared = Parameters<Environment['setVariable']>[1]

/** The library's value of a plain one. */
const made = (plain: unknown): Value => new Environment().set('value', plain)
const kindOf = (plain: unknown) => made(plain).constructor as new (value: unknown) => Value
const [TextValue, TruthValue, ListValue, ObjectValue] = [kindOf(''), kindOf(true), kindOf([]), kindOf({})]
const [IntegerValue, FloatValue, FunctionValue] = [kindOf(1), kindOf(0.5), kindOf(() => null)]
const NOTHING = made(undefined)
const text = (value: string): Value => new TextValue(value)
const truth = (value: boolean): Value => new TruthValue(value)
const list = (items: Value[]): Value => new ListValue(items)
const object = (items: Iterable<[string, Value]>): Value => new ObjectValue(new Map(items))
const given = (value: Value): Node => ({ type: 'Given', value })

const STRIPS: Record<string, { start: boolean; end: boolean }> = {
  strip: { start: true, end: true },
  lstrip: { start: true, end: false },
  rstrip: { start: false, end: true },
}
const METHODS = new Set([...Object.keys(STRIPS), 'join'])
/** Statements that write nothing, which the library tells by their value, none. */
const SILENT = new Set(['Set', 'Macro', 'Comment'])
/** Filters of texts, which are given the text of anything else. */
const OF_TEXTS = new Set(['lower', 'upper', 'title', 'capitalize'])
/** Expressions that make a new value. */
const MAKING = new Set(['BinaryExpression', 'FilterExpression', 'CallExpression'])
const ITERABLE = new Set(['ArrayValue', 'TupleValue', 'ObjectValue', 'StringValue', 'UndefinedValue'])
/** What filters return for an undefined value. */
const OF_NOTHING = new Map<string, unknown>([
  ['length', 0],
  ['join', ''],
  ...['items', 'list', 'map', 'selectattr', 'rejectattr', 'sort', 'reverse', 'unique'].map((name) => [name, []] as const),
])

/** Of one rendering: parts of the template evaluated, values of lists made, and texts made at 16 characters each. Ten seconds' work; a prompt is a hundredth of it. */
const MOST_WORK = 10_000_000
/** Numbers of a range, as many as jinja2's sandbox allows. */
const MOST_RANGE = 100_000

const GLOBALS = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  range: (from: number, to?: number, step = 1) => {
    const [start, end] = to === undefined ? [0, from] : [from, to]
    if (!((end - start) / step <= MOST_RANGE)) throw new Error(`a range must have ${MOST_RANGE} numbers at most`)
    return Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, i) => start + i * step)
  },
  strftime_now: (format: string) => strftime(format, new Date()),
  raise_exception: (message: string) => {
    throw new Error(message)
  },
}

/** As `made`, keeping apart what JavaScript's numbers cannot: Python's floats and large integers. */
function valueOf(plain: unknown): Value {
  if (typeof plain === 'string') return text(plain)
  if (plain instanceof PythonFloat) return new FloatValue(plain.value)
  if (typeof plain === 'bigint') return new IntegerValue(plain)
  if (typeof plain !== 'object' || plain === null) return made(plain)
  const held = (value: unknown, key: string | number) => (isFloat(plain, key) ? new FloatValue(value) : valueOf(value))
  if (Array.isArray(plain)) return list(plain.map(held))
  return object(Object.entries(plain).map(([key, value]) => [key, held(value, key)]))
}

/** JSON.stringify writes such a number as the text says. */
const { rawJSON } = JSON as { rawJSON?: (text: string) => unknown }

/** A value for the library's `tojson`, which writes numbers with JSON.stringify: Python writes 5.0 and not 5. */
function forJson(operand: Value): Value {
  const { type, value } = operand
  if (rawJSON && type === 'FloatValue' && Number.isFinite(value)) return new FloatValue(rawJSON(floatText(value as number)))
  if (rawJSON && typeof value === 'bigint') return new IntegerValue(rawJSON(String(value)))
  if (type === 'ArrayValue') return list((value as Value[]).map(forJson))
  if (type === 'ObjectValue') return object([...(value as Map<string, Value>)].map(([key, inner]) => [key, forJson(inner)]))
  return operand
}

/** A template made ready; throws where it cannot be read. What it gives throws the template's own complaint. */
export function compileTemplate(source: string): (variables: Record<string, unknown>) => string {
  // As jinja2 has it, in texts too.
  const { parsed } = new Template(source.replace(/\r\n?/gu, '\n'))
  return (variables) => {
    const scope = new Environment()
    for (const [name, value] of Object.entries({ ...GLOBALS, ...variables })) scope.setVariable(name, valueOf(value) as Declared)
    return new PythonInterpreter(scope).run(parsed).value as string
  }
}

class PythonInterpreter extends Library {
  #work = 0

  /** A template comes with a model, from anyone: one that never ends, or fills the memory, is refused as any other. */
  #count(work: number): void {
    this.#work += work
    if (this.#work > MOST_WORK) throw new Error('the template does too much: it may have a loop that never ends')
  }

  override evaluate(node: Node | undefined, scope: Environment): Value {
    this.#count(1)
    const value = this.#valueOf(node, scope)
    const made = node && MAKING.has(node.type) ? value.value : undefined
    if (Array.isArray(made)) this.#count(made.length)
    if (typeof made === 'string') this.#count(made.length / 16)
    return value
  }

  #valueOf(node: Node | undefined, scope: Environment): Value {
    switch (node?.type) {
      case 'Given':
        return node.value as Value
      case 'For':
        return this.#loop(node, scope)
      case 'Break':
      case 'Continue':
        throw new LoopEnd(node.type === 'Break')
      case 'Macro':
        return this.#macro(node, scope)
      case 'BinaryExpression':
        return this.#binary(node, scope)
      case 'FilterExpression':
        return this.#filter(node, scope)
      case 'CallExpression':
        return this.#call(node, scope)
      case 'TestExpression':
        if (node.test!.value !== 'iterable') break
        return truth(ITERABLE.has(this.evaluate(node.operand, scope).type) !== node.negate)
    }
    return super.evaluate(node, scope)
  }

  override evaluateBlock(statements: Node[], scope: Environment): Value {
    this.#count(1)
    let written = ''
    try {
      for (const statement of statements) {
        const value = this.evaluate(statement, scope)
        if (!SILENT.has(statement.type)) written += pythonText(value)
      }
    } catch (error) {
      if (error instanceof LoopEnd) error.written = written + error.written
      throw error
    }
    return text(written)
  }

  /** The library would keep what one round sets for the next one, and lose what a round wrote before it ends by break or continue. */
  #loop({ iterable, loopvar, body, defaultBlock }: Node, scope: Environment): Value {
    const { over, test } =
      iterable!.type === 'SelectExpression' ? { over: iterable!.lhs, test: iterable!.test } : { over: iterable }
    const round = (item: Value) => {
      const inner = new Environment(scope)
      bind(inner, loopvar!, item)
      return inner
    }
    let items = itemsOf(this.evaluate(over, scope))
    if (test) items = items.filter((item) => isTrue(this.evaluate(test, round(item))))
    // A round takes as long as evaluating ten parts.
    this.#count(10 * items.length)
    let written = ''
    let whole = false
    for (const [i, item] of items.entries()) {
      const inner = round(item)
      inner.setVariable('loop', loopValue(items, i) as Declared)
      try {
        written += this.evaluateBlock(body!, inner).value as string
        whole = true
      } catch (error) {
        if (!(error instanceof LoopEnd)) throw error
        written += error.written
        if (error.ofAll) break
      }
    }
    return text(whole ? written : written + (this.evaluateBlock(defaultBlock!, new Environment(scope)).value as string))
  }

  /** A macro sees the variables of where it stands. To the library's it were those of where it is called. */
  #macro(node: Node, scope: Environment): Value {
    const silent = super.evaluate(node, scope)
    const name = node.name!.value as string
    const call = scope.lookupVariable(name).value as (args: unknown, scope: Environment) => Value
    const macro = (args: unknown, from: Environment): Value => {
      const inner = new Environment(scope)
      const caller = from.variables.get('caller')
      if (caller) inner.setVariable('caller', caller)
      return call(args, inner)
    }
    scope.setVariable(name, new FunctionValue(macro) as Declared)
    return silent
  }

  #binary(node: Node, scope: Environment): Value {
    const operator = node.operator!.value
    if (operator === 'and' || operator === 'or') return super.evaluate(node, scope)
    const [left, right] = [this.evaluate(node.left, scope), this.evaluate(node.right, scope)]
    const texts = [left, right].filter(({ type }) => type === 'StringValue').length
    if (operator === '~') return text(pythonText(left) + pythonText(right))
    if (operator === '==' || operator === '!=') return truth(same(left, right) === (operator === '=='))
    if (operator === '+' && texts === 1) throw new Error(`+ joins text with text only, not ${nameOf(left)} with ${nameOf(right)}`)
    if (operator === '*' && texts === 1) {
      const [repeated, times] = left.type === 'StringValue' ? [left, right] : [right, left]
      if (times.type === 'IntegerValue') return text((repeated.value as string).repeat(Math.max(0, times.value as number)))
    }
    if (operator === 'in' || operator === 'not in') {
      const found = isIn(left, right)
      if (found !== undefined) return truth(found === (operator === 'in'))
    }
    return super.evaluate({ ...node, left: given(left), right: given(right) }, scope)
  }

  #filter(node: Node, scope: Environment): Value {
    const operand = this.evaluate(node.operand, scope)
    const { callee, args = [] } = node.filter!
    const name = (callee ?? node.filter!).value as string
    if (operand.type === 'UndefinedValue' && OF_NOTHING.has(name)) return made(OF_NOTHING.get(name))
    const first = () =>
      args[0] && this.evaluate(args[0].type === 'KeywordArgumentExpression' ? (args[0].value as Node) : args[0], scope)
    const items = Array.isArray(operand.value) ? (operand.value as Value[]) : undefined
    if (name === 'string') return text(pythonText(operand))
    if (name === 'tojson') return super.evaluate({ ...node, operand: given(forJson(operand)) }, scope)
    if (name === 'trim') return text(stripped(pythonText(operand), first()?.value, true, true))
    if (name === 'length' && operand.type === 'StringValue') return made(Array.from(operand.value as string).length)
    if (items && name === 'join') return text(items.map(pythonText).join((first()?.value as string | undefined) ?? ''))
    if (items?.length === 0 && (name === 'first' || name === 'last')) return made(undefined)
    if (items && (name === 'selectattr' || name === 'rejectattr')) {
      const [attribute, test, ...others] = args.map((arg) => this.evaluate(arg, scope))
      const holds = (item: Value) => {
        const value = item.value instanceof Map ? (item.value as Map<string, Value>).get(attribute.value as string) : undefined
        return passes(scope, value ?? made(undefined), test?.value as string | undefined, others)
      }
      return list(items.filter((item) => holds(item) === (name === 'selectattr')))
    }
    if (items && name === 'map' && args[0]?.type === 'StringLiteral') {
      const inner: Node = { type: 'Identifier', value: args[0].value }
      const filter = args.length > 1 ? { type: 'CallExpression', callee: inner, args: args.slice(1) } : inner
      return list(items.map((item) => this.evaluate({ type: 'FilterExpression', operand: given(item), filter }, scope)))
    }
    return super.evaluate({ ...node, operand: given(OF_TEXTS.has(name) ? text(pythonText(operand)) : operand) }, scope)
  }

  /** Methods of texts, of which others go on to the library. */
  #call(node: Node, scope: Environment): Value {
    const callee = node.callee!
    const method = callee.type === 'MemberExpression' && !callee.computed ? (callee.property!.value as string) : ''
    if (!METHODS.has(method)) return super.evaluate(node, scope)
    const object = this.evaluate(callee.object, scope)
    const [argument] = node.args!.map((arg) => this.evaluate(arg, scope))
    if (method === 'join' && object.type === 'StringValue' && Array.isArray(argument?.value))
      return text((argument.value as Value[]).map(pythonText).join(object.value as string))
    if (method === 'join') return super.evaluate({ ...node, callee: { ...callee, object: given(object) } }, scope)
    return text(stripped(object.value, argument?.value, STRIPS[method].start, STRIPS[method].end))
  }
}

/** What kind of value it is, for errors: `object`, `string`, `undefined`. */
const nameOf = ({ type }: Value) => type.replace('Value', '').toLowerCase()

/** The end of a loop's round, or of all of them, with what was written in it. */
class LoopEnd extends Error {
  written = ''
  readonly ofAll: boolean
  constructor(ofAll: boolean) {
    super(`${ofAll ? 'break' : 'continue'} stands outside of a loop`)
    this.ofAll = ofAll
  }
}

/**
 * What a loop goes over: nothing where the value is undefined. jinja2 would loop over the characters of a string, but templates for images loop over the
 * parts of a content and would silently drop a string, so it is refused.
 */
function itemsOf(over: Value): Value[] {
  if (over.type === 'UndefinedValue') return []
  if (Array.isArray(over.value)) return over.value as Value[]
  if (over.type === 'ObjectValue') return [...(over.value as Map<string, Value>).keys()].map(text)
  throw new Error(`a loop goes over lists and objects only, not over ${nameOf(over)}`)
}

/** Gives a loop's variables, one or several, their values. */
function bind(scope: Environment, target: Node, item: Value): void {
  if (target.type === 'Identifier') {
    scope.setVariable(target.value as string, item as Declared)
    return
  }
  const names = target.value as Node[]
  const parts = Array.isArray(item.value) ? (item.value as Value[]) : undefined
  if (target.type !== 'TupleLiteral' || parts?.length !== names.length)
    throw new Error(`a loop with ${names.length} variables needs lists of as many values, not ${nameOf(item)}`)
  for (const [i, name] of names.entries()) bind(scope, name, parts[i])
}

/** The variable `loop` in one of its rounds. */
function loopValue(items: Value[], i: number): Value {
  const [count, left] = [items.length, items.length - i]
  const numbers = { index: i + 1, index0: i, revindex: left, revindex0: left - 1, length: count, depth: 1, depth0: 0 }
  const loop = new Map<string, Value>([
    ['first', truth(i === 0)],
    ['last', truth(left === 1)],
    ['previtem', items[i - 1] ?? NOTHING],
    ['nextitem', items[i + 1] ?? NOTHING],
  ])
  for (const [name, value] of Object.entries(numbers)) loop.set(name, new IntegerValue(value))
  return new ObjectValue(loop)
}

const isTrue = (value: Value): boolean => (value as Truth).__bool__().value

/** Python's `left in right` for lists and objects; undefined for other values. */
function isIn(left: Value, right: Value): boolean | undefined {
  if (Array.isArray(right.value)) return (right.value as Value[]).some((item) => same(left, item))
  return right.value instanceof Map ? left.type === 'StringValue' && right.value.has(left.value) : undefined
}

/** Whether a value passes one of jinja2's tests; without a name, whether it is true. */
function passes(scope: Environment, value: Value, name: string | undefined, others: Value[]): boolean {
  if (name === undefined) return isTrue(value)
  if (name === 'in') return isIn(value, others[0]) ?? pythonText(others[0]).includes(pythonText(value))
  if (['eq', 'equalto', '=='].includes(name)) return same(value, others[0])
  if (['ne', '!='].includes(name)) return !same(value, others[0])
  const test = scope.tests.get(name)
  if (test === undefined) throw new Error(`there is no test named ${name}`)
  return test(value as Parameters<typeof test>[0])
}
