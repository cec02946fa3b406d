/**
 * Chat templates. The only file that knows the template library, whose `strip`, `lstrip` and `rstrip` take off white space whatever
 * letters they are given: Qwen3's `content.lstrip('\n')` took the indentation of an answer with it. Here they are Python's. And its filter `string`
 * knows no objects, which SmolLM3's template writes tools with (`tool | string`): here as Python writes a dict.
 */
import { Template } from '@huggingface/jinja'

type Node = { type?: string } & Record<string, unknown>

/** What Python's methods take off by themselves. */
const WHITE_SPACE =
  '\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000'
const STRIPS: Record<string, { start: boolean; end: boolean }> = {
  strip: { start: true, end: true },
  lstrip: { start: true, end: false },
  rstrip: { start: false, end: true },
}
/** Names that no template has. */
const nameOf = (method: string) => `python ${method}`

/** A template made ready; throws where it cannot be read. What it gives throws the template's own complaint. */
export function compileTemplate(source: string): (variables: Record<string, unknown>) => string {
  const template = new Template(source)
  callOurs(template.parsed)
  const ours = Object.entries(STRIPS).map(([method, { start, end }]) => [
    nameOf(method),
    (text: unknown, letters?: string | null) => stripped(text, letters ?? WHITE_SPACE, start, end),
  ])
  ours.push([nameOf('string'), pythonText])
  return (variables) => template.render({ ...variables, ...(Object.fromEntries(ours) as object) })
}

/** Makes `text.lstrip(letters)` a call of our function with (text, letters), and `value | string` of the other one, in a whole tree. */
function callOurs(part: unknown): void {
  if (typeof part !== 'object' || part === null) return
  const node = part as Node
  if (node.type === 'FilterExpression' && (node.filter as Node).value === 'string') {
    const { operand, filter } = node as { operand?: unknown; filter?: unknown }
    Object.assign(node, { type: 'CallExpression', callee: { ...(filter as Node), value: nameOf('string') }, args: [operand] })
    delete node.operand
    delete node.filter
  }
  const callee = node.type === 'CallExpression' ? (node.callee as Node) : undefined
  if (callee?.type === 'MemberExpression' && !callee.computed) {
    const property = callee.property as Node
    if (Object.hasOwn(STRIPS, property.value as string)) {
      node.callee = { ...property, value: nameOf(property.value as string) }
      node.args = [callee.object, ...(node.args as Node[])]
    }
  }
  // The pairs of an object written in a template are a Map.
  for (const child of node instanceof Map ? [...node].flat() : Object.values(node)) callOurs(child)
}

function stripped(text: unknown, letters: string, start: boolean, end: boolean): string {
  if (typeof text !== 'string') throw new Error('strip, lstrip and rstrip are asked of something that is no text')
  const off = new Set(letters)
  const all = Array.from(text)
  let [from, to] = [0, all.length]
  while (start && from < to && off.has(all[from])) from++
  while (end && to > from && off.has(all[to - 1])) to--
  return all.slice(from, to).join('')
}

/** A value inside a list or an object, as the template library has it. */
interface Inner {
  type: string
  value: unknown
}

/** Python's `str(value)` of what a template hands on: lists are arrays of `Inner`, objects Maps of them. */
function pythonText(value: unknown): string {
  if (typeof value === 'string') return value
  if (value === undefined || value === null) return '' // none and what is not there look alike here
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (Array.isArray(value)) return `[${(value as Inner[]).map(pythonRepr).join(', ')}]`
  if (value instanceof Map)
    return `{${[...(value as Map<string, Inner>)].map(([key, inner]) => `${quoted(key)}: ${pythonRepr(inner)}`).join(', ')}}`
  return (value as number).toString()
}

function pythonRepr({ type, value }: Inner): string {
  if (type === 'NullValue') return 'None'
  if (type === 'FloatValue') return Number.isInteger(value) ? `${String(value)}.0` : String(value).replace(/e-(\d)$/, 'e-0$1')
  return typeof value === 'string' ? quoted(value) : pythonText(value)
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
