/**
 * Chat templates. Templates are made for Python's jinja2; the library's interpreter (library.ts) writes, compares and joins values as JavaScript
 * does in many places. Here and in filtering.ts `evaluate` takes those places over (`lstrip('\n')` took the indentation of an answer off,
 * `'a' + {}` was "a[object Map]", `{{ none }}` nothing), and leaves the rest to the library.
 */
import { Filtering, isIn } from './filtering.ts'
import { capitalized, titled } from './filters.ts'
import {
  Environment,
  FloatValue,
  FunctionValue,
  IntegerValue,
  NOTHING,
  ObjectValue,
  given,
  isTrue,
  made,
  nameOf,
  parsed,
  text,
  truth,
  valueOf,
  type Builtins,
  type Declared,
  type Node,
} from './library.ts'
import { MORE_METHODS, called } from './methods.ts'
import { NUMBERS, comparison, sizeOf } from './order.ts'
import { pythonText, same, strftime, stripped, type Value } from './python-text.ts'
import { BLOCK, plainBlocks } from './syntax.ts'

const STRIPS: Record<string, { start: boolean; end: boolean }> = {
  strip: { start: true, end: true },
  lstrip: { start: true, end: false },
  rstrip: { start: false, end: true },
}
const METHODS = new Set([...Object.keys(STRIPS), 'join', 'title', 'capitalize', 'startswith', 'endswith'])
/** Methods of objects: `arguments.items()` is one also where a key has that name. */
const OF_OBJECTS = new Set(['items', 'keys', 'values', 'get'])
/** Statements that write nothing, which the library tells by their value, none. */
const SILENT = new Set(['Set', 'Macro', 'Comment'])
/** Expressions that make a new value. */
const MAKING = new Set(['BinaryExpression', 'FilterExpression', 'CallExpression'])
/** Operators that may go through all of their right side. */
const COMPARING = new Set(['in', 'not in', '==', '!=', '<', '<=', '>', '>='])
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

/** A template made ready; throws where it cannot be read. What it gives throws the template's own complaint. */
export function compileTemplate(source: string): (variables: Record<string, unknown>) => string {
  // As jinja2 has it, in texts too.
  const program = parsed(plainBlocks(source.replace(/\r\n?/gu, '\n')))
  return (variables) => {
    const scope = new Environment()
    for (const [name, value] of Object.entries({ ...GLOBALS, ...variables })) scope.setVariable(name, valueOf(value) as Declared)
    const block = (_: unknown, { variables: own }: Environment): Value => {
      const caller: Value = own.get('caller')!
      return (caller.value as (args: []) => Value)([])
    }
    scope.setVariable(BLOCK, new FunctionValue(block) as Declared)
    return new PythonInterpreter(scope).run(program).value as string
  }
}

class PythonInterpreter extends Filtering {
  #work = 0

  /** A template comes with a model, from anyone: one that never ends, or fills the memory, is refused as any other. */
  protected override count(work: number): void {
    this.#work += work
    if (this.#work > MOST_WORK) throw new Error('the template does too much: it may have a loop that never ends')
  }

  override evaluate(node: Node | undefined, scope: Environment): Value {
    this.count(1)
    const value = this.#valueOf(node, scope)
    const made = node && MAKING.has(node.type) ? value.value : undefined
    if (Array.isArray(made)) this.count(made.length)
    if (typeof made === 'string') this.count(made.length / 16)
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
        return this.filter(node, scope)
      case 'FilterStatement': {
        const operand = given(this.evaluateBlock(node.body!, new Environment(scope)))
        return this.filter({ type: 'FilterExpression', operand, filter: node.filter }, scope)
      }
      case 'CallExpression':
        return this.#call(node, scope)
      case 'TestExpression':
        return this.test(node, scope)
      case 'MemberExpression':
        return this.#member(node, scope)
      case 'Set': {
        if (node.value) break
        const written = this.evaluateBlock(node.body!, new Environment(scope))
        return super.evaluate({ ...node, value: given(written) }, scope)
      }
    }
    return super.evaluate(node, scope)
  }

  override evaluateBlock(statements: Node[], scope: Environment): Value {
    this.count(1)
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
    this.count(10 * items.length)
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

  #member(node: Node, scope: Environment): Value {
    const object = this.evaluate(node.object, scope)
    const { computed, property } = node
    const own = { ...node, object: given(object) }
    if (!computed && object.type === 'ObjectValue' && OF_OBJECTS.has(property!.value as string))
      return (object as Builtins).builtins.get(property!.value as string)!
    if (!computed || object.type !== 'StringValue' || property!.type === 'SliceExpression') return super.evaluate(own, scope)
    const at = this.evaluate(property, scope)
    if (at.type !== 'IntegerValue') return super.evaluate({ ...own, property: given(at) }, scope)
    const sign = Array.from(object.value as string).at(Number(at.value))
    return sign === undefined ? NOTHING : text(sign)
  }

  #binary(node: Node, scope: Environment): Value {
    const operator = node.operator!.value
    if (operator === 'and' || operator === 'or') return super.evaluate(node, scope)
    const [left, right] = [this.evaluate(node.left, scope), this.evaluate(node.right, scope)]
    if (COMPARING.has(operator)) this.count(sizeOf(right))
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
    const compare = comparison(operator)
    if (compare) return truth(compare(left, right))
    const numbers = NUMBERS.has(left.type) && NUMBERS.has(right.type)
    if (['/', '//', '%'].includes(operator) && numbers) {
      const [number, by] = [Number(left.value), Number(right.value)]
      if (by === 0) throw new Error(`${operator} divides by zero`)
      // What is left has the sign of the divisor.
      const rest = ((number % by) + by) % by
      if (operator === '%') return [left, right].some(({ type }) => type === 'FloatValue') ? new FloatValue(rest) : made(rest)
    }
    const operands = numbers ? [left, right].map(counted) : [left, right]
    return super.evaluate({ ...node, left: given(operands[0]), right: given(operands[1]) }, scope)
  }

  /** Methods of texts, of which others go on to the library. */
  #call(node: Node, scope: Environment): Value {
    const callee = node.callee!
    const method = callee.type === 'MemberExpression' && !callee.computed ? (callee.property!.value as string) : ''
    const more = MORE_METHODS.has(method)
    if (!more && !METHODS.has(method)) return super.evaluate(node, scope)
    const object = this.evaluate(callee.object, scope)
    if (more && !Array.isArray(object.value) && object.type !== 'StringValue')
      return super.evaluate({ ...node, callee: { ...callee, object: given(object) } }, scope)
    const args = node.args!.map((arg) => this.evaluate(arg, scope))
    if (more) {
      this.count(sizeOf(object))
      return called(object, method, args)
    }
    const [argument] = args
    if (method === 'startswith' || method === 'endswith') {
      if (args.length > 1) throw new Error(`${method} takes only one argument here`)
      return super.evaluate(
        { ...node, callee: { ...callee, object: given(object) }, args: argument ? [given(argument)] : [] },
        scope,
      )
    }
    if (object.type === 'StringValue' && (method === 'title' || method === 'capitalize'))
      return text((method === 'title' ? titled : capitalized)(object.value as string))
    if (method === 'join' && object.type === 'StringValue' && Array.isArray(argument?.value))
      return text((argument.value as Value[]).map(pythonText).join(object.value as string))
    if (method === 'join') return super.evaluate({ ...node, callee: { ...callee, object: given(object) } }, scope)
    return text(stripped(object.value, argument?.value, STRIPS[method].start, STRIPS[method].end))
  }
}

/** A boolean as the number that it is to Python. */
const counted = (value: Value): Value => (value.type === 'BooleanValue' ? new IntegerValue(Number(value.value)) : value)

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
