/** The only file that knows the template library: its interpreter, which filtering.ts and jinja.ts go on from, and its values. */
import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja'
import { isFloat } from '../../common/json-floats.ts'
import { PythonFloat, type Value } from './python-text.ts'
import { testsAsFilters } from './syntax.ts'

export { Environment }

/** A part of a parsed template. `Given` is ours: a value that is there already. */
export interface Node {
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
  key?: Node
}

type Truth = Value & { __bool__(): { value: boolean } }
export type Builtins = Value & { builtins: Map<string, Value> }

/** The library's interpreter with what is overridden here: its types call `evaluateBlock` private. */
export const Library = Interpreter as unknown as new (scope: Environment) => {
  run(program: unknown): Value
  evaluate(node: Node | undefined, scope: Environment): Value
  evaluateBlock(statements: Node[], scope: Environment): Value
}

export type Declared = Parameters<Environment['setVariable']>[1]

/** The library's value of a plain one. */
export const made = (plain: unknown): Value => new Environment().set('value', plain)
const kindOf = (plain: unknown) => made(plain).constructor as new (value: unknown) => Value
const [TextValue, TruthValue, ListValue] = [kindOf(''), kindOf(true), kindOf([])]
export const [ObjectValue, IntegerValue, FloatValue] = [kindOf({}), kindOf(1), kindOf(0.5)]
export const FunctionValue = kindOf(() => null)
export const NOTHING = made(undefined)
export const text = (value: string): Value => new TextValue(value)
export const truth = (value: boolean): Value => new TruthValue(value)
export const list = (items: Value[]): Value => new ListValue(items)
/** A tuple is a list that is written in round brackets. */
export const tuple = (items: Value[]): Value => new TupleValue(items)
const object = (items: Iterable<[string, Value]>): Value => new ObjectValue(new Map(items))
/** What is a generator to Python: true although it may give nothing. */
export class LazyList extends ListValue {
  __bool__(): Value {
    return truth(true)
  }
}
const TupleValue = new Library(new Environment()).evaluate({ type: 'TupleLiteral', value: [] }, new Environment())
  .constructor as typeof ListValue
export const given = (value: Value): Node => ({ type: 'Given', value })

/** As `made`, keeping apart what JavaScript's numbers cannot: Python's floats and large integers. */
export function valueOf(plain: unknown): Value {
  if (typeof plain === 'string') return text(plain)
  if (plain instanceof PythonFloat) return new FloatValue(plain.value)
  if (typeof plain === 'bigint') return new IntegerValue(plain)
  if (typeof plain !== 'object' || plain === null) return made(plain)
  const held = (value: unknown, key: string | number) => (isFloat(plain, key) ? new FloatValue(value) : valueOf(value))
  if (Array.isArray(plain)) return list(plain.map(held))
  return object(Object.entries(plain).map(([key, value]) => [key, held(value, key)]))
}

export const isTrue = (value: Value): boolean => (value as Truth).__bool__().value

/** What kind of value it is, for errors: `object`, `string`, `undefined`. */
export const nameOf = ({ type }: Value) => type.replace('Value', '').toLowerCase()

/** The parts of a template. @throws SyntaxError where it cannot be read */
export function parsed(source: string): unknown {
  const tokens = tokenize(source, { lstrip_blocks: true, trim_blocks: true })
  return parse(testsAsFilters(tokens) as typeof tokens)
}
