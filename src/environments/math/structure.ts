/** Parses normalised LaTeX into structures: numbers, expressions, tuples, intervals, sets, lists, unions, equations, inequalities, matrices, words. */
import { dateOf } from './dates.ts'
import { parseRational, type Rational } from './rational.ts'
import { splitUnit } from './units.ts'

/** A parsed answer. */
export type Answer =
  | { kind: 'value'; latex: string; unit: string; rational: Rational | null }
  | { kind: 'words'; text: string }
  /** A, (A), \text{(A)} 7, option A */
  | { kind: 'choice'; letter: string }
  /** Lists without brackets, and sets: order does not matter. */
  | { kind: 'list' | 'set' | 'union'; items: Answer[] }
  /** Tuples and intervals: brackets and order matter. */
  | { kind: 'bracket'; open: string; close: string; items: Answer[] }
  | { kind: 'equation'; left: string; right: string }
  /** The range of a single variable. */
  | { kind: 'range'; variable: string; range: Answer }
  | { kind: 'relation'; sides: string[]; signs: string[] }
  | { kind: 'matrix'; form: string; rows: Answer[][] }
  | { kind: 'ratio'; items: Answer[] }
  | { kind: 'nothing' }

const synonyms: Record<string, string> = {
  dne: 'does not exist',
  undefined: 'does not exist',
  'no solutions': 'no solution',
  'no real solutions': 'no real solution',
}

/** Parses an answer. Beyond 20 levels of nesting the text is not parsed any further. */
export function parseAnswer(text: string, depth = 0): Answer {
  const s = text.trim()
  if (s === '') return { kind: 'nothing' }
  if (depth > 20) return { kind: 'words', text: s }
  const deeper = (part: string) => parseAnswer(part, depth + 1)
  const date = dateOf(s)
  if (date !== null) return { kind: 'words', text: date }
  const choice = parseChoice(s)
  if (choice) return choice
  if (s === '\\emptyset') return { kind: 'set', items: [] }
  if (/^(?:\\mathbb\s*\{?R\}?)$/u.test(s)) return allNumbers()
  const matrix = /^\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}$/u.exec(s)
  if (matrix && !matrix[2].includes('\\begin')) {
    const form = /^[vV]/u.test(matrix[1]) ? matrix[1] : 'matrix'
    const rows = matrix[2].split('\\\\').map((row) => row.trim()).filter((row) => row !== '') // prettier-ignore
    return { kind: 'matrix', form, rows: rows.map((row) => row.split('&').map(deeper)) }
  }
  const union = splitTop(s, ['\\cup'])
  if (union.parts.length > 1) return { kind: 'union', items: union.parts.map(deeper) }
  const list = splitTop(thousands(s), [',', ';'])
  if (list.parts.length > 1) return { kind: 'list', items: list.parts.map(deeper) }
  const relation = parseRelation(thousands(s), depth)
  if (relation) return relation
  const bracket = parseBracket(s, depth)
  if (bracket) return bracket
  if (/\\pm|\\mp/u.test(s)) {
    const [plus, minus] = [s.replace(/\\pm/gu, '+').replace(/\\mp/gu, '-'), s.replace(/\\pm/gu, '-').replace(/\\mp/gu, '+')]
    return { kind: 'list', items: [plus, minus].map((part) => deeper(part.replace(/^\+/u, ''))) }
  }
  if (/^\d+(?:\s*:\s*\d+)+$/u.test(s)) return { kind: 'ratio', items: s.split(':').map(deeper) }
  return parseValue(thousands(s))
}

const allNumbers = (): Answer => ({
  kind: 'bracket',
  open: '(',
  close: ')',
  items: [parseValue('-\\infty'), parseValue('\\infty')],
})

function parseChoice(s: string): Answer | null {
  const letter =
    /^\\text\s*\{\s*\(([A-Z])\)\s*\}/u.exec(s) ??
    /^\(([A-Z])\)(?:$|\s+\S)/u.exec(s) ??
    /^([A-Z])(?:$|\)$|\)\s+\S)/u.exec(s) ??
    /^(?:\\text\s*\{)?\s*(?:option|choice)\s*\}?\s*\(?([A-Za-z])\)?\s*\}?$/iu.exec(s)
  // "(A) (B)" chooses nothing.
  const letters = new Set(Array.from(s.matchAll(/(?<![A-Za-z(])\(?([A-Z])\)/gu), ([, one]) => one))
  return letter && letters.size < 2 ? { kind: 'choice', letter: letter[1].toUpperCase() } : null
}

/** Removes the commas of `1,234,567`, unless brackets around them make them separators. */
function thousands(s: string): string {
  return /[([{]\s*-?\d{1,3}(?:,\d{3})+\s*,?|\\\{/u.test(s) && !s.startsWith('\\frac')
    ? s
    : s.replace(
        /(?<![\d.,])(\d{1,3})((?:,\d{3})+)(?![\d,])/gu,
        (_, head: string, rest: string) => head + rest.replaceAll(',', ''),
      )
}

/** Splits a text at separators that are outside all brackets. `signs[i]` is the separator between parts i and i + 1. */
function splitTop(s: string, separators: readonly string[]): { parts: string[]; signs: string[] } {
  const parts: string[] = []
  const signs: string[] = []
  let [depth, from] = [0, 0]
  for (let i = 0; i < s.length; i++) {
    if (depth === 0) {
      const found = separators.find(
        (sign) => s.startsWith(sign, i) && !(sign.startsWith('\\') && /[A-Za-z]/u.test(s[i + sign.length] ?? '')),
      )
      if (found !== undefined) {
        parts.push(s.slice(from, i).trim())
        signs.push(found)
        i += found.length - 1
        from = i + 1
        continue
      }
    }
    if (s[i] === '\\' && /[{}[\]()|]/u.test(s[i + 1] ?? '')) i++
    if ('([{'.includes(s[i])) depth++
    else if (')]}'.includes(s[i])) depth = Math.max(0, depth - 1)
  }
  parts.push(s.slice(from).trim())
  return { parts, signs }
}

const relationSigns = ['\\le', '\\ge', '\\ne', '\\in', '\\approx', '<', '>', '=']

function parseRelation(s: string, depth: number): Answer | null {
  const { parts, signs } = splitTop(s, relationSigns)
  if (signs.length === 0) return null
  if (signs.length === 1 && signs[0] === '\\approx' && parts[0] === '') return parseAnswer(parts[1], depth + 1)
  if (parts.some((part) => part === '')) {
    // "= 5" as an answer to "x".
    return parts[0] === '' && signs[0] === '=' && parts.length === 2
      ? parseAnswer(parts[1], depth + 1)
      : { kind: 'words', text: s }
  }
  if (signs.length === 1 && signs[0] === '\\in')
    return { kind: 'range', variable: parts[0], range: parseAnswer(parts[1], depth + 1) }
  if (signs.every((sign) => sign === '=' || sign === '\\approx'))
    return { kind: 'equation', left: parts[0], right: parts.at(-1)! }
  return parseRange(parts, signs) ?? { kind: 'relation', sides: parts, signs }
}

/** Parses `x < 3`, `1 < x \le 2`, `2 \ge x > 1` as intervals. */
function parseRange(parts: string[], signs: string[]): Answer | null {
  const isVariable = (part: string) => /^(?:[a-zA-Z]|\\[a-z]+)$/u.test(part) && !/^\\(?:pi|infty)$/u.test(part)
  const downward = signs.every((sign) => sign === '>' || sign === '\\ge')
  if (!downward && !signs.every((sign) => sign === '<' || sign === '\\le')) return null
  const [up, upSigns] = downward ? [parts.toReversed(), signs.toReversed()] : [parts, signs]
  const isOpen = (sign: string) => sign === '<' || sign === '>'
  const at = up.findIndex(isVariable)
  if (at < 0 || up.length > 3 || (up.length === 3 && at !== 1)) return null
  const [low, high] = [at > 0 ? up[at - 1] : '-\\infty', at < up.length - 1 ? up[at + 1] : '\\infty']
  const open = at > 0 && !isOpen(upSigns[at - 1]) ? '[' : '('
  const close = at < up.length - 1 && !isOpen(upSigns[at]) ? ']' : ')'
  return { kind: 'range', variable: up[at], range: { kind: 'bracket', open, close, items: [parseValue(low), parseValue(high)] } }
}

const pairs: [string, string][] = [['\\{', '\\}'], ['\\langle', '\\rangle'], ['(', ')'], ['(', ']'], ['[', ')'], ['[', ']']] // prettier-ignore

function parseBracket(s: string, depth: number): Answer | null {
  for (const [open, close] of pairs) {
    if (!s.startsWith(open) || !s.endsWith(close) || !spans(s, open.length, close.length)) continue
    const inner = s.slice(open.length, -close.length)
    if (open === '\\{') {
      const [element, condition, ...more] = splitTop(inner, ['|', ':']).parts
      // \{x \mid 1 < x < 2\} is what its condition says. Of other sets in this notation only equal texts are equal.
      if (condition !== undefined)
        return more.length === 0 && /^[a-z](?:\s*\\in\s*\\mathbb\s*\{?R\}?)?$/u.test(element)
          ? parseAnswer(condition, depth + 1)
          : null
      return { kind: 'set', items: splitTop(inner, [',', ';']).parts.map((part) => parseAnswer(part, depth + 1)) }
    }
    const items = splitTop(inner, [',', ';']).parts
    if (items.length > 1) return { kind: 'bracket', open, close, items: items.map((part) => parseAnswer(part, depth + 1)) }
    return open === '(' && close === ')' ? parseAnswer(inner, depth + 1) : null
  }
  return null
}

/** Whether the first bracket is closed by the last one. Any closing bracket matches any opening one, for half-open intervals. */
function spans(s: string, openLength: number, closeLength: number): boolean {
  let depth = 1
  for (let i = openLength; i < s.length - closeLength; i++) {
    if (s[i] === '\\' && /[{}]/u.test(s[i + 1] ?? '')) depth += s[++i] === '{' ? 1 : -1
    else if ('([{'.includes(s[i])) depth++
    else if (')]}'.includes(s[i])) depth--
    if (depth === 0) return false
  }
  return depth === 1
}

function parseValue(s: string): Answer {
  const { value, unit } = splitUnit(s)
  const rational = parseRational(value)
  if (rational) return { kind: 'value', latex: value, unit, rational }
  const words = plainWords(s)
  if (words !== null) return { kind: 'words', text: synonyms[words] ?? words }
  return { kind: 'value', latex: value, unit, rational: null }
}

const shortWords = new Set('am an as at be by do go he hi if in is it me my no of ok on or so to up us we'.split(' '))

/**
 * The text in lower case if it consists of words (or is a time of day), else null. A single letter is a variable, two letters are a product unless
 * they form a known word.
 */
function plainWords(s: string): string | null {
  const inner = s.replace(/\\text\s*\{([^{}]*)\}/gu, '$1').trim()
  const words = inner.toLowerCase().replace(/["'.!]/gu, '').replace(/\s+/gu, ' ').trim() // prettier-ignore
  if (/^\d{1,2}:\d\d ?(?:am|pm)$/u.test(words)) return words.replace(' ', '')
  if (!/^["']?[A-Za-z][A-Za-z .'"!-]*$/u.test(inner) || inner.length < 2) return null
  if (/^[a-zA-Z](?: [a-zA-Z])+$/u.test(inner)) return null // a b: a product
  if (words.length === 1) return null // n!, y'
  if (words.length === 2 && !s.includes('\\text') && !shortWords.has(words)) return null
  return words.replace(/^(?:the|a|an) /u, '')
}
