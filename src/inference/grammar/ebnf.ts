/**
 * Reads EBNF in GBNF's syntax: NAME ::= "text" [a-z] [^x] (group) other-rule | alternative, each with * + ? or {n,m} after it; # begins a comment.
 */
import { UserError } from '../../common/errors.ts'

/** Code points from .. to, both included. */
export type Range = readonly [number, number]

/** The syntax tree of an expression. */
export type Expression =
  | { kind: 'text'; text: string }
  | { kind: 'class'; ranges: Range[] }
  | { kind: 'rule'; name: string }
  | { kind: 'sequence'; parts: Expression[] }
  | { kind: 'either'; parts: Expression[] }
  | { kind: 'repeat'; part: Expression; least: number; most: number }

const MOST_DEPTH = 200
const LAST = 0x10ffff
const NAME = /[A-Za-z_][A-Za-z0-9_.-]*/y
const SPACE = /(?:\s|#[^\n]*)*/y
const CONTROL: Record<string, number> = { n: 10, r: 13, t: 9, f: 12, v: 11, b: 8, '0': 0 }

/** The rules of a grammar, by name. @throws UserError that names the line */
export function readEbnf(text: string): Map<string, Expression> {
  return new Reader(text).rules()
}

class Reader {
  readonly #text: string
  #at = 0
  #depth = 0
  /** How deep repetitions are nested in the expression that was read last. */
  #height = 0

  constructor(text: string) {
    this.#text = text
  }

  rules(): Map<string, Expression> {
    const out = new Map<string, Expression>()
    this.#space()
    while (this.#at < this.#text.length) {
      const name = this.#head()
      if (name === undefined) this.#fail('a rule, NAME ::= ..., is expected')
      if (out.has(name)) this.#fail(`the rule "${name}" is defined twice`)
      out.set(name, this.#either())
    }
    if (!out.has('root')) throw new UserError('The grammar has no rule "root".')
    return out
  }

  #fail(why: string): never {
    const before = this.#text.slice(0, this.#at).split('\n')
    throw new UserError(`The grammar, line ${before.length}, column ${before.at(-1)!.length + 1}: ${why}.`)
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at
    return pattern.exec(this.#text)?.[0]
  }

  #space(): void {
    this.#at += this.#match(SPACE)?.length ?? 0
  }

  #take(sign: string): boolean {
    if (!this.#text.startsWith(sign, this.#at)) return false
    this.#at += sign.length
    return true
  }

  /** The name of the rule that begins here, if one does; its body follows. */
  #head(): string | undefined {
    const from = this.#at
    const name = this.#match(NAME)
    if (name !== undefined) {
      this.#at += name.length
      this.#space()
      if (this.#take('::=')) {
        this.#space()
        return name
      }
    }
    this.#at = from
    return undefined
  }

  #either(): Expression {
    if (++this.#depth > MOST_DEPTH) this.#fail(`parentheses are nested more than ${MOST_DEPTH} deep`)
    const parts = [this.#sequence()]
    let height = this.#height
    while (this.#take('|')) {
      parts.push(this.#sequence())
      height = Math.max(height, this.#height)
    }
    this.#depth--
    this.#height = height
    return parts.length === 1 ? parts[0] : { kind: 'either', parts }
  }

  #sequence(): Expression {
    const parts: Expression[] = []
    let height = 0
    for (;;) {
      this.#space()
      if (this.#at >= this.#text.length || '|)'.includes(this.#text[this.#at])) break
      const from = this.#at
      const next = this.#head()
      if (next !== undefined) {
        this.#at = from
        if (this.#depth > 1) this.#fail('a parenthesis is not closed')
        break
      }
      this.#height = 0
      parts.push(this.#repeated(this.#atom()))
      height = Math.max(height, this.#height)
    }
    this.#height = height
    if (this.#depth === 1 && this.#text[this.#at] === ')') this.#fail('a parenthesis is closed that was not opened')
    return parts.length === 1 ? parts[0] : { kind: 'sequence', parts }
  }

  #atom(): Expression {
    if (this.#take('"')) {
      let text = ''
      while (!this.#take('"')) text += String.fromCodePoint(this.#character('a text'))
      return { kind: 'text', text }
    }
    if (this.#take('[')) return this.#class()
    if (this.#take('.')) return { kind: 'class', ranges: [[0, LAST]] }
    if (this.#take('(')) {
      const inner = this.#either()
      this.#space()
      if (!this.#take(')')) this.#fail('a parenthesis is not closed')
      return inner
    }
    const name = this.#match(NAME)
    if (name === undefined) this.#fail(`${JSON.stringify(this.#text[this.#at])} is not allowed here`)
    this.#at += name.length
    return { kind: 'rule', name }
  }

  #repeated(part: Expression): Expression {
    this.#space()
    let out = part
    for (; ; this.#height++) {
      if (this.#height > MOST_DEPTH) this.#fail(`repetitions are nested more than ${MOST_DEPTH} deep`)
      if (this.#take('*')) out = { kind: 'repeat', part: out, least: 0, most: Infinity }
      else if (this.#take('+')) out = { kind: 'repeat', part: out, least: 1, most: Infinity }
      else if (this.#take('?')) out = { kind: 'repeat', part: out, least: 0, most: 1 }
      else if (this.#text[this.#at] === '{') {
        const found = this.#match(/\{\s*(\d{1,7})\s*(,\s*(\d{0,7})\s*)?\}/y)
        if (found === undefined) this.#fail('a repetition must be {n}, {n,} or {n,m}')
        const [first, second] = found.slice(1, -1).split(',')
        const least = Number(first)
        const most = second === undefined ? least : second.trim() === '' ? Infinity : Number(second)
        if (most < least) this.#fail('the upper bound of a repetition is below the lower one')
        this.#at += found.length
        out = { kind: 'repeat', part: out, least, most }
      } else return out
      this.#space()
    }
  }

  #class(): Expression {
    const negated = this.#take('^')
    const ranges: Range[] = []
    while (!this.#take(']')) {
      const from = this.#character('a character class')
      let to = from
      if (this.#text[this.#at] === '-' && this.#text[this.#at + 1] !== ']') {
        this.#at++
        to = this.#character('a character class')
      }
      if (to < from) this.#fail('a range of characters is in reverse order')
      ranges.push([from, to])
    }
    return { kind: 'class', ranges: negated ? complement(ranges) : ranges }
  }

  /** Reads one character of a literal or a class, possibly escaped with a backslash. */
  #character(where: string): number {
    const point = this.#text.codePointAt(this.#at)
    if (point === undefined || point === 10) this.#fail(`${where} is not closed`)
    this.#at += point > 0xffff ? 2 : 1
    if (point !== 92) return point
    const sign = this.#text[this.#at++]
    if (sign === undefined) this.#fail(`${where} is not closed`)
    if (Object.hasOwn(CONTROL, sign)) return CONTROL[sign]
    const length = { x: 2, u: 4, U: 8 }[sign]
    if (length === undefined) return sign.codePointAt(0)!
    const code = this.#text.slice(this.#at, this.#at + length)
    if (!/^[0-9A-Fa-f]+$/.test(code) || code.length < length || Number.parseInt(code, 16) > LAST)
      this.#fail(`\\${sign} must be followed by ${length} hexadecimal digits`)
    this.#at += length
    return Number.parseInt(code, 16)
  }
}

/** All other code points, in order. Applied twice, it sorts ranges and joins those that touch. */
export function complement(ranges: readonly Range[]): Range[] {
  const out: Range[] = []
  let next = 0
  for (const [from, to] of ranges.toSorted((a, b) => a[0] - b[0])) {
    if (from > next) out.push([next, from - 1])
    next = Math.max(next, to + 1)
  }
  if (next <= LAST) out.push([next, LAST])
  return out
}
