/** Python's way to print values, strip texts and format dates, which chat templates rely on. */

/** A value as the template library has it: lists are arrays of values, objects Maps of them. */
export interface Value {
  type: string
  value: unknown
}

/** A number that Python reads as a float although it may be whole: 5.0, 1e3. */
export class PythonFloat {
  readonly value: number
  constructor(value: number) {
    this.value = value
  }
}

/** JSON text as Python reads it: 5.0 is no 5, and of a whole number no digit is lost. */
export function pythonJson(text: string): unknown {
  return JSON.parse(text, (_, value: unknown, { source = '' }: { source?: string } = {}) => {
    if (typeof value !== 'number') return value
    if (/[.e]/iu.test(source)) return new PythonFloat(value)
    return Number.isSafeInteger(value) ? value : BigInt(source)
  })
}

/** White space that Python's strip methods remove by default. */
const WHITE_SPACE =
  '\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000'

/** Python's `strip`, `lstrip` (no `end`) and `rstrip` (no `start`); without letters, of white space. */
export function stripped(text: unknown, letters: unknown, start: boolean, end: boolean): string {
  if (typeof text !== 'string') throw new Error('strip, lstrip and rstrip work on text only')
  const off = new Set((letters as string | null | undefined) ?? WHITE_SPACE)
  const all = Array.from(text)
  let [from, to] = [0, all.length]
  while (start && from < to && off.has(all[from])) from++
  while (end && to > from && off.has(all[to - 1])) to--
  return all.slice(from, to).join('')
}

/** Python's `str(value)`, which a template also writes where a value stands alone; what is not there is no text. */
export function pythonText({ type, value }: Value): string {
  if (type === 'StringValue') return value as string
  return type === 'UndefinedValue' ? '' : pythonRepr({ type, value })
}

function pythonRepr({ type, value }: Value): string {
  if (typeof value === 'string') return quoted(value)
  if (type === 'NullValue') return 'None'
  if (type === 'UndefinedValue') return 'Undefined'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (type === 'FloatValue') return floatText(value as number)
  if (Array.isArray(value)) {
    const inner = (value as Value[]).map(pythonRepr).join(', ')
    return type === 'TupleValue' ? `(${inner}${value.length === 1 ? ',' : ''})` : `[${inner}]`
  }
  if (value instanceof Map)
    return `{${[...(value as Map<string, Value>)].map(([key, inner]) => `${quoted(key)}: ${pythonRepr(inner)}`).join(', ')}}`
  return String(value)
}

/** Python's `repr` of a float. */
export function floatText(value: number): string {
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) return value.toExponential().replace(/([+-])(\d)$/, '$10$2')
  const text = Object.is(value, -0) ? '-0' : String(value)
  return Number.isInteger(value) ? `${text}.0` : text
}

/** Python's `repr` of a string: in single quotes, if it has none or has double ones too; what cannot be seen is written as its number. */
function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'"
  const names: Record<string, string> = { '\n': '\\n', '\r': '\\r', '\t': '\\t', '\\': '\\\\', [quote]: `\\${quote}` }
  const hidden = (sign: string): string => {
    const code = sign.codePointAt(0)!
    const [mark, digits] = code < 0x100 ? ['x', 2] : code < 0x10000 ? ['u', 4] : ['U', 8]
    return `\\${mark}${code.toString(16).padStart(digits as number, '0')}`
  }
  const written = (sign: string) => names[sign] ?? (sign !== ' ' && /[\p{C}\p{Z}]/u.test(sign) ? hidden(sign) : sign)
  return quote + Array.from(text, written).join('') + quote
}

/** Python's `left == right`: by what is in lists and objects, and no text is a number. */
export function same(left: Value, right: Value): boolean {
  const [a, b] = [left.value, right.value]
  if (Array.isArray(a) && Array.isArray(b))
    return left.type === right.type && a.length === b.length && a.every((one: Value, i) => same(one, b[i] as Value))
  if (a instanceof Map && b instanceof Map) {
    const others = b as Map<string, Value>
    return (
      a.size === b.size && [...(a as Map<string, Value>)].every(([key, one]) => others.has(key) && same(one, others.get(key)!))
    )
  }
  // The library's none and undefined both have no value.
  if (a === undefined || b === undefined) return left.type === right.type
  const number = (value: unknown) => (typeof value === 'boolean' ? Number(value) : value)
  return number(a) === number(b)
}

/** Python's `strftime` in the C locale; a minus (`%-d`) leaves out the zeros before a number. */
export function strftime(format: string, date: Date): string {
  const [year, month, day, hour] = [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours()]
  const padded = (number: number, width = 2, fill = '0') => String(number).padStart(width, fill)
  const named = (options: Intl.DateTimeFormatOptions) => date.toLocaleDateString('en-US', options)
  const parts: Record<string, () => string> = {
    a: () => named({ weekday: 'short' }),
    A: () => named({ weekday: 'long' }),
    b: () => named({ month: 'short' }),
    B: () => named({ month: 'long' }),
    d: () => padded(day),
    e: () => padded(day, 2, ' '),
    F: () => strftime('%Y-%m-%d', date),
    H: () => padded(hour),
    I: () => padded(hour % 12 || 12),
    j: () => padded((Date.UTC(year, month, day) - Date.UTC(year, 0, 0)) / 86_400_000, 3),
    m: () => padded(month + 1),
    M: () => padded(date.getMinutes()),
    p: () => (hour < 12 ? 'AM' : 'PM'),
    S: () => padded(date.getSeconds()),
    T: () => strftime('%H:%M:%S', date),
    y: () => padded(year % 100),
    Y: () => String(year),
    '%': () => '%',
  }
  return format.replace(/%(-?)([a-zA-Z%])/gu, (whole, bare: string, letter: string) => {
    if ('cCDfgGhklnPrRstuUVwWxXzZ'.includes(letter)) throw new Error(`strftime_now does not support %${letter}`)
    const part = Object.hasOwn(parts, letter) ? parts[letter]() : whole
    return bare && part !== whole ? part.replace(/^[0 ]+(?=\d)/u, '') : part
  })
}
