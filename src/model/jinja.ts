/**
 * Chat templates. The only file that knows the template library, whose `strip`, `lstrip` and `rstrip` take off white space whatever
 * letters they are given: Qwen3's `content.lstrip('\n')` took the indentation of an answer with it. Here they are Python's.
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
  return (variables) => template.render({ ...variables, ...(Object.fromEntries(ours) as object) })
}

/** Makes `text.lstrip(letters)` a call of our function with (text, letters), in a whole tree. */
function callOurs(part: unknown): void {
  if (typeof part !== 'object' || part === null) return
  const node = part as Node
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
