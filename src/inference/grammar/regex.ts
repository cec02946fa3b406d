/**
 * Converts regular expressions to EBNF. The whole text must match, with or without ^ and $ around the expression. Inside a JSON string (`json`),
 * characters that must be escaped there are written so. What a grammar cannot express (lookaround, back references, word boundaries) is refused.
 */
import { UserError } from '../../common/errors.ts'
import { complement, type Range } from './ebnf.ts'
import { inRanges, literal } from './rules.ts'

/** Maximum repetitions: the product over nested groups. */
const MOST_REPEATS = 20_000
const MOST_DEPTH = 50
/** Longest pattern: each character takes at least one node of the network. */
const MOST_LENGTH = 200_000
/** Number of characters of the pattern that errors show. */
const SHOWN = 100

/** A character class. Kept as ranges, since a class that is written with a few characters may contain 50,000. */
interface Class {
  ranges: readonly Range[]
  /** All characters of the class in JavaScript, if more than `ranges`: for classes that are negated, or contain a negated class. */
  all?: readonly Range[]
  /** Whether it contains a negated class: in JSON it then leaves out the characters that must be escaped. */
  open: boolean
}

const each = (points: readonly number[]) => points.map((point): Range => [point, point])
const points = (text: string) => Array.from(text, (sign) => sign.codePointAt(0)!)
const DIGITS: Range[] = [[48, 57]]
const WORD: Range[] = [...DIGITS, [65, 90], [95, 95], [97, 122]]
const SPACE = each(points(' \t\n\r\f\v'))
const LINE_ENDS = each([10, 13, 0x2028, 0x2029])
/** White space that may be generated, and the additional characters of JavaScript's \s. */
const ALL_SPACE: Range[] = [...SPACE, ...LINE_ENDS, ...each([0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff]), [0x2000, 0x200a]]
const SHORTHAND: Record<string, { ranges: Range[]; all?: Range[] }> = {
  d: { ranges: DIGITS },
  w: { ranges: WORD },
  s: { ranges: SPACE, all: ALL_SPACE },
}
const CONTROL: Record<string, number> = { n: 10, r: 13, t: 9, f: 12, v: 11, '0': 0 }
/** Characters that a JSON string must escape. */
const JSON_SPECIAL = [...Array(32).keys(), 34, 92]

/** The ranges without the given code points. */
const without = (ranges: readonly Range[], some: readonly number[]) => complement([...complement(ranges), ...each(some)])

/**
 * The EBNF expression for a regular expression.
 * @throws UserError that names the place in the pattern
 */
export function regexGrammar(pattern: string, mode: 'text' | 'json' = 'text'): string {
  return new Parser(pattern, mode === 'json').whole()
}

class Parser {
  readonly #signs: string[]
  readonly #pattern: string
  readonly #json: boolean
  #at = 0
  #depth = 0
  /** Product of the upper bounds of the enclosing repetitions, times the largest inside. */
  #repeats = 1

  constructor(pattern: string, json: boolean) {
    this.#pattern = pattern
    if (pattern.length > MOST_LENGTH) throw new UserError(`The regular expression is longer than ${MOST_LENGTH} characters.`)
    this.#signs = Array.from(pattern)
    this.#json = json
  }

  whole(): string {
    const out = this.#alternatives()
    if (this.#at < this.#signs.length) this.#fail('a parenthesis is closed that was not opened')
    return out
  }

  #fail(why: string): never {
    const shown = `${JSON.stringify(this.#pattern.slice(0, SHOWN))}${this.#pattern.length > SHOWN ? '...' : ''}`
    throw new UserError(`The regular expression ${shown}: ${why} (at character ${this.#at + 1}).`)
  }

  #take(sign: string): boolean {
    if (this.#signs[this.#at] !== sign) return false
    this.#at++
    return true
  }

  #alternatives(): string {
    if (++this.#depth > MOST_DEPTH) this.#fail(`parentheses are nested more than ${MOST_DEPTH} deep`)
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
        // A named group, in JavaScript's or Python's syntax.
        if (this.#signs[this.#at + 1] === '<') this.#take('P')
        if (this.#take('<')) {
          if (['=', '!'].includes(this.#signs[this.#at])) this.#fail('lookbehind is not supported in a grammar')
          while (this.#at < this.#signs.length && !this.#take('>')) this.#at++
        } else if (!this.#take(':')) this.#fail('lookahead and flags are not supported in a grammar')
      }
      const inner = this.#alternatives()
      if (!this.#take(')')) this.#fail('a parenthesis is not closed')
      return `(${inner})`
    }
    if (sign === '[') return this.#characters(this.#class())
    if (sign === '.') return this.#characters({ ranges: complement(LINE_ENDS), open: true })
    if (sign === '\\') {
      const escape = this.#escape()
      return this.#characters(typeof escape === 'number' ? { ranges: each([escape]), open: false } : escape)
    }
    if ('^$*+?'.includes(sign)) this.#fail(`${sign} is not allowed here`)
    return this.#characters({ ranges: each(points(sign)), open: false })
  }

  /** Reads what follows a backslash: a code point, or a class. */
  #escape(): number | Class {
    const sign = this.#signs[this.#at++]
    if (sign === undefined) this.#fail('it ends with a backslash')
    const shorthand = SHORTHAND[sign.toLowerCase()]
    if (shorthand) {
      const { ranges, all = ranges } = shorthand
      return sign === sign.toLowerCase() ? { ranges, all, open: false } : { ranges: complement(all), open: true }
    }
    if (Object.hasOwn(CONTROL, sign)) return CONTROL[sign]
    if (sign === 'x') return this.#hex(2)
    if (sign === 'u') {
      if (!this.#take('{')) return this.#hex(4)
      let code = ''
      while (this.#at < this.#signs.length && !this.#take('}')) code += this.#signs[this.#at++]
      if (!/^[0-9A-Fa-f]{1,6}$/.test(code) || Number.parseInt(code, 16) > 0x10ffff)
        this.#fail('\\u must be followed by a code point')
      return Number.parseInt(code, 16)
    }
    if (/[A-Za-z0-9]/.test(sign)) this.#fail(`\\${sign} is not supported in a grammar`)
    return sign.codePointAt(0)!
  }

  #hex(length: number): number {
    const code = this.#signs.slice(this.#at, this.#at + length).join('')
    if (code.length !== length || !/^[0-9A-Fa-f]+$/.test(code)) this.#fail(`${length} hexadecimal digits are expected here`)
    this.#at += length
    return Number.parseInt(code, 16)
  }

  #class(): Class {
    const negated = this.#take('^')
    const ranges: Range[] = []
    const rest: Range[] = []
    let open = negated
    while (!this.#take(']')) {
      const from = this.#member()
      if (typeof from !== 'number') {
        for (const range of from.ranges) ranges.push(range)
        for (const range of from.all ?? []) rest.push(range)
        open ||= from.open
        continue
      }
      let to = from
      if (this.#signs[this.#at] === '-' && this.#signs[this.#at + 1] !== ']' && this.#at + 1 < this.#signs.length) {
        this.#at++
        const end = this.#member()
        if (typeof end !== 'number' || end < from) this.#fail('a range of characters is in reverse order')
        to = end
      }
      ranges.push([from, to])
    }
    const others = complement(open ? [...ranges, ...rest] : ranges)
    return { ranges: negated ? others : complement(others), open }
  }

  #member(): number | Class {
    const sign = this.#signs[this.#at++]
    if (sign === undefined) this.#fail('a character class is not closed')
    return sign === '\\' ? this.#escape() : sign.codePointAt(0)!
  }

  /** A class as an expression. In JSON, negated classes omit the characters that must be escaped, and other classes have them escaped. */
  #characters({ ranges, open }: Class): string {
    if (ranges.length === 0) this.#fail('a character class is empty')
    if (open) return inRanges(this.#json ? without(ranges, JSON_SPECIAL) : ranges)
    // A range over all of them is one of characters: the halves are left out.
    const isHalf = (point: number) => point >= 0xd800 && point <= 0xdfff
    if (ranges.some(([from, to]) => isHalf(from) || isHalf(to))) this.#fail('halves of surrogate pairs are not characters')
    const isIn = (point: number) => ranges.some(([from, to]) => from <= point && point <= to)
    const special = this.#json ? JSON_SPECIAL.filter(isIn) : []
    const plain = special.length > 0 ? without(ranges, special) : ranges
    const parts = special.map((point) => literal(JSON.stringify(String.fromCodePoint(point)).slice(1, -1)))
    if (plain.length > 0) {
      const [[from, to]] = plain
      parts.push(plain.length === 1 && from === to ? literal(String.fromCodePoint(from)) : inRanges(plain))
    }
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
      if (!found) this.#fail('{ must be escaped here')
      this.#at += found[0].length
      const least = Number(found[1])
      const most = found[2] === undefined ? least : found[3] === '' ? Infinity : Number(found[3])
      if (most < least) this.#fail('the upper bound of a repetition is below the lower one')
      out = { text: found[0], most: Math.max(1, Number.isFinite(most) ? most : least) }
    } else return out
    // Lazy or not, the same texts match.
    this.#take('?')
    return out
  }
}
