/** Python's order of values. */
import { nameOf } from './library.ts'
import { same, type Value } from './python-text.ts'

export const NUMBERS = new Set(['IntegerValue', 'FloatValue', 'BooleanValue'])

/** Below 0 where left comes first, 0 where neither does. @throws Error for values that have no order */
export function order(left: Value, right: Value): number {
  if (NUMBERS.has(left.type) && NUMBERS.has(right.type)) {
    const [a, b] = [left.value as number, right.value as number]
    return a < b ? -1 : Number(a > b)
  }
  if (left.type === 'StringValue' && right.type === 'StringValue')
    return Buffer.compare(Buffer.from(left.value as string), Buffer.from(right.value as string))
  if (Array.isArray(left.value) && Array.isArray(right.value) && left.type === right.type) {
    const [a, b] = [left.value as Value[], right.value as Value[]]
    const at = a.findIndex((item, i) => i >= b.length || !same(item, b[i]))
    if (at < 0 || at >= b.length) return a.length - b.length
    return order(a[at], b[at])
  }
  throw new Error(`${nameOf(left)} and ${nameOf(right)} cannot be compared`)
}

const COMPARISONS: Record<string, (sign: number) => boolean> = {
  '<': (sign) => sign < 0,
  '<=': (sign) => sign <= 0,
  '>': (sign) => sign > 0,
  '>=': (sign) => sign >= 0,
}
const NAMES: Record<string, string> = { lt: '<', lessthan: '<', le: '<=', gt: '>', greaterthan: '>', ge: '>=' }

/** What a comparison gives, by its sign or the name of a test; undefined for any other. */
export function comparison(name: string): ((left: Value, right: Value) => boolean) | undefined {
  const sign = NAMES[name] ?? name
  return Object.hasOwn(COMPARISONS, sign) ? (left, right) => COMPARISONS[sign](order(left, right)) : undefined
}

/** How long going through a value may take, in parts of a template evaluated. */
export function sizeOf({ value }: Value): number {
  if (typeof value === 'string') return value.length / 256
  return Array.isArray(value) ? value.length : 0
}
