/** What jinja2's filters and Python's methods make of texts, and of values that are written as JSON. */
import { floatText, type Value } from './python-text.ts'

/** Python's `text.capitalize()`. */
export const capitalized = (text: string): string => {
  const [first = '', ...rest] = text
  return first.toUpperCase() + rest.join('').toLowerCase()
}

/** jinja2's filter `title`: words begin after white space, hyphens and opening brackets. */
export const titledWords = (text: string): string =>
  text
    .split(/([-\s({[<]+)/u)
    .map(capitalized)
    .join('')

/** Python's `text.title()`: words begin after whatever is no letter. */
export const titled = (text: string): string => text.replaceAll(/\p{Cased}+/gu, capitalized)

/** What ends a line to Python, beside `\r\n`. */
const LINE_ENDS = '\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029'
export const LINE_END = new RegExp(`\r\n|[${LINE_ENDS}]`, 'u')

/** jinja2's filter `indent`, which reads all that Python takes for line ends and writes `\n`. */
export function indented(text: string, by: string, first: boolean, blank: boolean): string {
  const lines = text.split(LINE_END)
  return lines.map((line, i) => ((i === 0 ? first : blank || line !== '') ? by + line : line)).join('\n')
}

/** Python's `float(text)`; NaN where the text is no number. */
export function floatOf(text: string): number {
  const bare = text.trim().toLowerCase()
  const infinite = /^([+-]?)inf(?:inity)?$/u.exec(bare)
  if (infinite) return infinite[1] === '-' ? -Infinity : Infinity
  return /^[+-]?(?:\d+(?:_\d+)*\.?|(?=\.\d))(?:(?<=\.)\d+(?:_\d+)*|\.\d+)?(?:e[+-]?\d+)?$/u.test(bare)
    ? Number(bare.replaceAll('_', ''))
    : Number.NaN
}

/** What a filter's `attribute` names: a key, an index, or a path of them. */
export function attributeOf(item: Value, attribute: Value): Value | undefined {
  let found: Value | undefined = item
  for (const part of String(attribute.value).split('.')) {
    const value: unknown = found?.value
    if (value instanceof Map) found = (value as Map<string, Value>).get(part)
    else found = Array.isArray(value) && /^\d+$/u.test(part) ? (value[Number(part)] as Value | undefined) : undefined
  }
  return found
}

/** How `tojson` writes; `indent` is null for all in one line. */
export interface JsonStyle {
  ensureAscii: boolean
  indent: string | null
  separators: readonly [string, string]
  sortKeys: boolean
}

/** Python's `json.dumps`. @throws Error for what is no JSON */
export function jsonOf({ type, value }: Value, style: JsonStyle, depth = 0): string {
  const { indent, separators, ensureAscii } = style
  const quoted = (text: string) => {
    const escape = (sign: string) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`
    return ensureAscii ? JSON.stringify(text).replaceAll(/[^ -~]/g, escape) : JSON.stringify(text)
  }
  const enclosed = ([open, close]: string, parts: string[]) => {
    if (indent === null || parts.length === 0) return open + parts.join(separators[0]) + close
    const line = `\n${indent.repeat(depth)}`
    return `${open}${line}${indent}${parts.join(`${separators[0]}${line}${indent}`)}${line}${close}`
  }
  if (typeof value === 'string') return quoted(value)
  if (type === 'NullValue' || type === 'UndefinedValue') return 'null'
  if (type === 'FloatValue') return Number.isFinite(value) ? floatText(value as number) : String(value)
  if (['number', 'bigint', 'boolean'].includes(typeof value)) return String(value)
  const inner = (one: Value) => jsonOf(one, style, depth + 1)
  if (Array.isArray(value)) return enclosed('[]', (value as Value[]).map(inner))
  if (!(value instanceof Map)) throw new Error('tojson writes lists, objects, texts, numbers, true, false and none only')
  const entries = [...(value as Map<string, Value>)]
  if (style.sortKeys) entries.sort(([a], [b]) => (a < b ? -1 : 1))
  return enclosed(
    '{}',
    entries.map(([key, one]) => quoted(key) + separators[1] + inner(one)),
  )
}
