/** Builds EBNF grammars (in GBNF's syntax, as `ebnf.ts` reads it), with literals escaped so that they may be any text. */
import { UserError } from '../../common/errors.ts'
import { complement, type Range } from './ebnf.ts'

/** Longest grammar: compiling a longer one would block the event loop for too long. */
const MAX_LENGTH = 2_000_000

/** Named rules. A body may use the names of rules that are defined later. */
export class Rules {
  readonly #bodies: string[] = []
  readonly #byBody = new Map<string, string>()
  #length = 0

  /** The name of a rule with this body; equal bodies share one. */
  add(body: string): string {
    const known = this.#byBody.get(body)
    if (known !== undefined) return known
    const name = this.reserve()
    this.define(name, body)
    this.#byBody.set(body, name)
    return name
  }

  /** Reserves a name for a rule whose body uses the name itself; the body follows by `define`. */
  reserve(): string {
    this.#bodies.push('')
    return `r${this.#bodies.length - 1}`
  }

  /** @throws UserError when the grammar has become too large to compile. */
  define(name: string, body: string): void {
    this.#length += body.length
    if (this.#length > MAX_LENGTH) throw new UserError('The resulting grammar is too large. Lower its bounds or split it.')
    this.#bodies[Number(name.slice(1))] = body
  }

  /** The whole grammar; `root` is the expression that it begins with. */
  text(root: string): string {
    return [`root ::= ${root}`, ...this.#bodies.map((body, i) => `r${i} ::= ${body}`)].join('\n')
  }
}

/** The alternatives as one expression. */
export const oneOf = (bodies: readonly string[]): string => (bodies.length === 1 ? bodies[0] : `(${bodies.join(' | ')})`)

/** Text as a literal. */
export function literal(text: string): string {
  return `"${Array.from(text, (sign) => escaped(sign.codePointAt(0)!)).join('')}"`
}

/** One of the code points, or (`negated`) any other. */
export function oneCharacter(points: Iterable<number>, negated = false): string {
  const others = complement(Array.from(points, (point): Range => [point, point]))
  return inRanges(negated ? others : complement(others))
}

/** A character class of some ranges of code points. */
export function inRanges(ranges: readonly Range[]): string {
  return `[${ranges.map(([from, to]) => (from === to ? escaped(from) : `${escaped(from)}-${escaped(to)}`)).join('')}]`
}

function escaped(point: number): string {
  const sign = String.fromCodePoint(point)
  if (/^[A-Za-z0-9 _:;,.<>/={}@!%&~`'|+*?()$#]$/.test(sign)) return sign
  return point > 0xffff ? `\\U${hex(point, 8)}` : `\\u${hex(point, 4)}`
}

const hex = (n: number, digits: number) => n.toString(16).toUpperCase().padStart(digits, '0')
