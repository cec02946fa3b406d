/**
 * Regular expressions as EBNF. The whole text matches, with or without ^ and $ around the expression. Inside a JSON string (`json`)
 * what must be escaped there is written so. What a grammar cannot do (looking around, back references, word boundaries) is refused.
 */
import { UserError } from '../../common/errors.ts'
import { literal, oneCharacter } from './rules.ts'

/** Most repetitions of all brackets that stand in each other, multiplied. */
const MOST_REPEATS = 20_000
const MOST_DEPTH = 50
/** Code points of one character class, at most. */
const MOST_POINTS = 70_000

interface Class {
  points: Set<number>
  negated: boolean
}

const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
const points = (text: string) => Array.from(text, (sign) => sign.codePointAt(0)!)
const DIGITS = range(48, 57)
const WORD = [...DIGITS, ...range(65, 90), 95, ...range(97, 122)]
const SPACE = points(' \t\n\r\f\v')
const SHORTHAND: Record<string, number[]> = { d: DIGITS, w: WORD, s: SPACE }
const CONTROL: Record<string, number> = { n: 10, r: 13, t: 9, f: 12, v: 11, '0': 0 }
/** What a JSON string has only behind a backslash. */
const JSON_SPECIAL = [...range(0, 31), 34, 92]

/** An EBNF expression of a regular expression. @throws UserError that names the place in the pattern. */
export function regexGrammar(pattern: string, mode: 'text' | 'json' = 'text'): string {
  return new Parser(pattern, mode === 'json').whole()
}

class Parser {
  readonly #signs: string[]
  readonly #pattern: string
  readonly #json: boolean
  #at = 0
  #depth = 0
  /** Product of the upper bounds around, times the longest inside. */
  #repeats = 1

  constructor(pattern: string, json: boolean) {
    this.#pattern = pattern
    this.#signs = Array.from(pattern)
    this.#json = json
  }

  whole(): string {
    const out = this.#alternatives()
    if (this.#at < this.#signs.length) this.#fail('a bracket is closed that was not opened')
    return out
  }

  #fail(why: string): never {
    throw new UserError(`The regular expression ${JSON.stringify(this.#pattern)}: ${why} (at character ${this.#at + 1}).`)
  }

  #take(sign: string): boolean {
    if (this.#signs[this.#at] !== sign) return false
    this.#at++
    return true
  }

  #alternatives(): string {
    if (++this.#depth > MOST_DEPTH) this.#fail(`brackets stand more than ${MOST_DEPTH} deep`)
    const out = [this.#sequence()]
    while (this.#take('|')) out.push(this.#sequence())
    this.#depth--
    return out.length === 1 ? out[0] : `(${out.join(' | ')})`
  }

  #sequence(): string {
    const out: string[] = []
    if (this.#depth === 1) this.#take('^')
    for (;;) {
      const sign = this.#signs[this.#at]
      if (sign === undefined || sign === '|' || sign === ')') break
      if (sign === '$' && this.#depth === 1 && [undefined, '|'].includes(this.#signs[this.#at + 1])) {
        this.#at++
        break
      }
      const before = this.#repeats
      this.#repeats = 1
      const atom = this.#atom()
      const { text, most } = this.#quantifier()
      this.#repeats *= most
      if (this.#repeats > MOST_REPEATS) this.#fail(`it repeats more than ${MOST_REPEATS} times`)
      this.#repeats = Math.max(before, this.#repeats)
      out.push(text === '' ? atom : `(${atom})${text}`)
    }
    return out.length === 0 ? '""' : out.join(' ')
  }

  #atom(): string {
    const sign = this.#signs[this.#at++]
    if (sign === '(') {
      if (this.#take('?')) {
        // A group with a name, as JavaScript writes it or as Python does.
        if (this.#signs[this.#at + 1] === '<') this.#take('P')
        if (this.#take('<')) {
          if (['=', '!'].includes(this.#signs[this.#at])) this.#fail('looking back is not possible in a grammar')
          while (this.#at < this.#signs.length && !this.#take('>')) this.#at++
        } else if (!this.#take(':')) this.#fail('looking ahead and flags are not possible in a grammar')
      }
      const inner = this.#alternatives()
      if (!this.#take(')')) this.#fail('a bracket is not closed')
      return `(${inner})`
    }
    if (sign === '[') return this.#characters(this.#class())
    if (sign === '.') return this.#characters({ points: new Set([10, 13]), negated: true })
    if (sign === '\\') {
      const escape = this.#escape()
      return typeof escape === 'number'
        ? this.#characters({ points: new Set([escape]), negated: false })
        : this.#characters(escape)
    }
    if ('^$*+?'.includes(sign)) this.#fail(`${sign} cannot stand here`)
    return this.#characters({ points: new Set(points(sign)), negated: false })
  }

  /** Behind a backslash: a code point, or a class. */
  #escape(): number | Class {
    const sign = this.#signs[this.#at++]
    if (sign === undefined) this.#fail('it ends with a backslash')
    const shorthand = SHORTHAND[sign.toLowerCase()]
    if (shorthand) return { points: new Set(shorthand), negated: sign !== sign.toLowerCase() }
    if (Object.hasOwn(CONTROL, sign)) return CONTROL[sign]
    if (sign === 'x') return this.#hex(2)
    if (sign === 'u') {
      if (!this.#take('{')) return this.#hex(4)
      let code = ''
      while (this.#at < this.#signs.length && !this.#take('}')) code += this.#signs[this.#at++]
      if (!/^[0-9A-Fa-f]{1,6}$/.test(code) || Number.parseInt(code, 16) > 0x10ffff) this.#fail('\\u is followed by no code point')
      return Number.parseInt(code, 16)
    }
    if (/[A-Za-z0-9]/.test(sign)) this.#fail(`\\${sign} is not possible in a grammar`)
    return sign.codePointAt(0)!
  }

  #hex(length: number): number {
    const code = this.#signs.slice(this.#at, this.#at + length).join('')
    if (code.length !== length || !/^[0-9A-Fa-f]+$/.test(code)) this.#fail(`${length} hexadecimal digits are missing`)
    this.#at += length
    return Number.parseInt(code, 16)
  }

  #class(): Class {
    const negated = this.#take('^')
    const out = new Set<number>()
    /** All that no negated class inside (\S, \D, \W) has; undefined without one. */
    let missing: Set<number> | undefined
    while (!this.#take(']')) {
      const from = this.#member()
      if (typeof from !== 'number') {
        if (from.negated) missing = missing ? missing.intersection(from.points) : from.points
        else for (const point of from.points) out.add(point)
        continue
      }
      let to = from
      if (this.#signs[this.#at] === '-' && this.#signs[this.#at + 1] !== ']' && this.#at + 1 < this.#signs.length) {
        this.#at++
        const end = this.#member()
        if (typeof end !== 'number' || end < from) this.#fail('a range of characters goes backwards')
        to = end
      }
      if (out.size + to - from > MOST_POINTS) this.#fail(`a class has more than ${MOST_POINTS} characters; negate it`)
      for (let point = from; point <= to; point++) out.add(point)
    }
    return missing ? { points: missing.difference(out), negated: !negated } : { points: out, negated }
  }

  #member(): number | Class {
    const sign = this.#signs[this.#at++]
    if (sign === undefined) this.#fail('a class is not closed')
    return sign === '\\' ? this.#escape() : sign.codePointAt(0)!
  }

  /** A class as an expression. In JSON, negated classes leave out what must be escaped, others have it escaped. */
  #characters({ points: set, negated }: Class): string {
    const all = [...set]
    if (all.some((point) => point >= 0xd800 && point <= 0xdfff)) this.#fail('halves of surrogate pairs are no characters')
    if (negated) return oneCharacter(this.#json ? [...all, ...JSON_SPECIAL] : all, true)
    if (all.length === 0) this.#fail('a class is empty')
    const special = this.#json ? all.filter((point) => JSON_SPECIAL.includes(point)) : []
    const plain = all.filter((point) => !special.includes(point))
    const parts = special.map((point) => literal(JSON.stringify(String.fromCodePoint(point)).slice(1, -1)))
    if (plain.length > 0) parts.push(plain.length === 1 ? literal(String.fromCodePoint(plain[0])) : oneCharacter(plain))
    return parts.length === 1 ? parts[0] : `(${parts.join(' | ')})`
  }

  #quantifier(): { text: string; most: number } {
    const sign = this.#signs[this.#at]
    let out = { text: '', most: 1 }
    if (sign === '*' || sign === '+' || sign === '?') {
      this.#at++
      out = { text: sign, most: 1 }
    } else if (sign === '{') {
      const found = /^\{(\d{1,6})(,(\d{0,6}))?\}/.exec(this.#signs.slice(this.#at, this.#at + 16).join(''))
      if (!found) this.#fail('{ cannot stand here unescaped')
      this.#at += found[0].length
      const least = Number(found[1])
      const most = found[2] === undefined ? least : found[3] === '' ? Infinity : Number(found[3])
      if (most < least) this.#fail('the upper bound of a repetition is below the lower one')
      out = { text: found[0], most: Math.max(1, Number.isFinite(most) ? most : least) }
    } else return out
    // Lazy or not: the same texts match.
    this.#take('?')
    return out
  }
}
