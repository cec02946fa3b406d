/** Decides whether two answers are equal. Anything other than numbers, words and structures of them is left to `Symbols`. */
import { cleanAnswer } from './clean.ts'
import { asNumber, hundredth, sameRational } from './rational.ts'
import { type Answer, parseAnswer } from './structure.ts'

/** Compares expressions. Implemented in symbols.ts. */
export interface Symbols {
  /** Whether two LaTeX expressions have the same value for all values of their variables. */
  same(a: string, b: string): boolean
  /** Whether two equations have the same solutions: `left - right` of one is a constant multiple of that of the other. */
  sameEquation(a: { left: string; right: string }, b: { left: string; right: string }): boolean
  /** The value of an expression without variables, or null. */
  numeric(latex: string): number | null
}

export interface CompareOptions {
  /** Relative difference up to which two numbers count as equal. Default 0: exact comparison. */
  tolerance?: number
}

/** Longer texts cannot be final answers. */
const maxAnswerLength = 1000

/** Whether two extracted answers are equal. */
export function sameAnswer(gold: string, given: string, symbols: Symbols, options: CompareOptions): boolean {
  if (gold.length > maxAnswerLength || given.length > maxAnswerLength) return gold.trim() === given.trim()
  const [a, b] = [gold, given].map((answer) => unrounded(cleanAnswer(answer), symbols))
  if (a === '' || b === '') return false
  if (a === b) return true
  const compare = new Comparison(symbols, options.tolerance ?? 0)
  return compare.same(...named(parseAnswer(a), parseAnswer(b)))
}

/** Leaves away the decimal number in `9\pi \approx 28.27`, if it is the exact value rounded. */
function unrounded(text: string, symbols: Symbols): string {
  const [, exact, digits, decimals = '', unit = ''] =
    /^(.+?)\s*\\approx\s*(-?\d[\d,]*(?:\.(\d+))?)\s*(\\text\{[^{}]*\})?$/u.exec(text) ?? []
  if (exact === undefined) return text
  const value = symbols.numeric(exact.split('=').at(-1)!)
  const off = value === null ? Infinity : Math.abs(value - Number(digits.replaceAll(',', '')))
  return off <= 0.50001 * 10 ** -decimals.length ? `${exact}${unit}` : text
}

/** Removes `x =` or `x \in` if only one of the answers has it. */
function named(a: Answer, b: Answer): [Answer, Answer] {
  const [nameA, nameB] = [nameOf(a), nameOf(b)]
  if (nameA !== null && nameB === null && !isStatement(b)) return [unnamed(a), b]
  if (nameB !== null && nameA === null && !isStatement(a)) return [a, unnamed(b)]
  // "x = 2 or x = -3" and "x = 2, -3"
  if (nameA !== null && nameA === nameB && (isCollection(a) || isCollection(b))) return [unnamed(a), unnamed(b)]
  return [a, b]
}

const isStatement = (answer: Answer) => answer.kind === 'equation' || answer.kind === 'relation'
const isName = (text: string) =>
  !/\b(?:not|never|minus|negative|wrong)\b/iu.test(text) &&
  /^(?:[a-zA-Z](?:_\{?\w+\}?)?'*|\\[a-z]+|[a-zA-Z]\((?:[a-zA-Z]|-?\d+)\)|P\([A-Z][^()]*\)|m?\\angle\s*[A-Z]{1,3}|\\overline\{[A-Z]{2}\}|\|[A-Z]{2}\||\([a-zA-Z](?:\s*,\s*[a-zA-Z])+\)|\\text\{[^{}]*\}|[A-Za-z ]+)$/u.test(
    text,
  )

/** The variable that an answer is about: that of an equation or a range, or of a list of these that share it. */
function nameOf(answer: Answer): string | null {
  if (answer.kind === 'range') return answer.variable
  if (answer.kind === 'equation') return isName(answer.left) ? answer.left : null
  if (!isCollection(answer)) return null
  const names = answer.items.map(nameOf)
  const first = names[0]
  // "x = 1, x = 2" and "x = 1, 2"
  const same = first !== null && names.slice(1).every((name) => name === first)
  const firstAlone = first !== null && names.slice(1).every((name) => name === null)
  return same || firstAlone ? first : null
}

function unnamed(answer: Answer): Answer {
  if (answer.kind === 'range') return answer.range
  if (answer.kind === 'equation') return parseAnswer(answer.right)
  return isCollection(answer) ? { kind: answer.kind, items: answer.items.map(unnamed) } : answer
}

class Comparison {
  readonly #symbols: Symbols
  readonly #tolerance: number
  constructor(symbols: Symbols, tolerance: number) {
    this.#symbols = symbols
    this.#tolerance = tolerance
  }

  same(a: Answer, b: Answer): boolean {
    if (a.kind === 'choice' || b.kind === 'choice') return a.kind === 'choice' && b.kind === 'choice' && a.letter === b.letter
    if (isCollection(a) || isCollection(b)) return this.#sameUnordered(flat(a), flat(b)) && (a.kind === b.kind || mayDiffer(a, b))
    if (a.kind === 'value' && b.kind === 'value') return this.#sameValue(a, b)
    if (a.kind === 'words' && b.kind === 'words') return a.text === b.text
    if (a.kind === 'bracket' && b.kind === 'bracket')
      return a.open === b.open && a.close === b.close && this.#sameOrdered(a.items, b.items)
    if (a.kind === 'ratio' && b.kind === 'ratio') return this.#sameOrdered(a.items, b.items)
    if (a.kind === 'matrix' && b.kind === 'matrix') {
      return a.form === b.form && a.rows.length === b.rows.length && a.rows.every((row, i) => this.#sameOrdered(row, b.rows[i]))
    }
    if (a.kind === 'range' && b.kind === 'range') return a.variable === b.variable && this.same(a.range, b.range)
    if (a.kind === 'equation' && b.kind === 'equation') return this.#sameEquation(a, b)
    // The calculation "2 + 3 = 5" is accepted for 5, if it is correct.
    if (a.kind === 'equation') return b.kind === 'value' && this.#isResult(a, b)
    if (b.kind === 'equation') return a.kind === 'value' && this.#isResult(b, a)
    if (a.kind === 'relation' && b.kind === 'relation') {
      const signs = (answer: { signs: string[] }) => answer.signs.join(' ')
      return (
        signs(a) === signs(b) &&
        a.sides.length === b.sides.length &&
        a.sides.every((side, i) => this.#sameSides(side, b.sides[i]))
      )
    }
    return false
  }

  #sameValue(a: Answer & { kind: 'value' }, b: Answer & { kind: 'value' }): boolean {
    const percents = [a, b].filter((answer) => answer.unit === '%').length
    if (percents === 1) {
      // 40% equals 2/5. It also equals 40, as the other answer may leave out the percent sign.
      const [percent, other] = a.unit === '%' ? [a, b] : [b, a]
      if (other.unit !== '') return false
      if (!percent.rational || !other.rational) return this.#sameLatex(percent.latex, other.latex)
      return sameRational(percent.rational, other.rational) || sameRational(hundredth(percent.rational), other.rational)
    }
    if (a.unit !== '' && b.unit !== '' && a.unit !== b.unit) return false
    // "5\text{ m}" and "5 m", whose letter could be a variable.
    if (a.unit !== b.unit && spellings(a).some((spelling) => spellings(b).includes(spelling))) return true
    if (a.rational && b.rational) {
      return sameRational(a.rational, b.rational) || this.#isClose(asNumber(a.rational), asNumber(b.rational))
    }
    return this.#sameLatex(a.latex, b.latex)
  }

  #sameLatex(a: string, b: string): boolean {
    if (dense(a) === dense(b)) return true
    if (this.#symbols.same(a, b)) return true
    if (this.#tolerance === 0) return false
    const [x, y] = [this.#symbols.numeric(a), this.#symbols.numeric(b)]
    return x !== null && y !== null && this.#isClose(x, y)
  }

  #isClose(x: number, y: number): boolean {
    return this.#tolerance > 0 && Math.abs(x - y) <= this.#tolerance * Math.abs(x)
  }

  #sameSides = (a: string, b: string) => this.same(parseAnswer(a), parseAnswer(b))

  #sameEquation(a: { left: string; right: string }, b: { left: string; right: string }): boolean {
    // f(x) = ... and y = ... are treated as equal.
    const name = (left: string) => (/^[a-zA-Z]\([a-zA-Z]\)$/u.test(left) ? 'y' : left)
    if (name(a.left) === name(b.left) && this.#sameSides(a.right, b.right)) return true
    return this.#symbols.sameEquation(a, b)
  }

  #isResult(equation: { left: string; right: string }, value: Answer): boolean {
    return this.#sameSides(equation.left, equation.right) && this.same(parseAnswer(equation.right), value)
  }

  #sameOrdered(a: Answer[], b: Answer[]): boolean {
    return a.length === b.length && a.every((item, i) => this.same(item, b[i]))
  }

  /** Whether the items can be matched one to one, in any order. */
  #sameUnordered(a: Answer[], b: Answer[]): boolean {
    if (a.length !== b.length || a.length > 50) return false
    const left = [...b]
    return a.every((item) => {
      const at = left.findIndex((other) => this.same(item, other))
      if (at >= 0) left.splice(at, 1)
      return at >= 0
    })
  }
}

/** Removes text commands and spaces, except spaces between digits. */
const dense = (latex: string) => latex.replace(/\\text\s*\{([^{}]*)\}/gu, '$1').replace(/(?<!\d) +| +(?![\d.])/gu, '')

/** A value with a unit of one letter, as a product: `5m`, `5M`, `5m^{2}`. */
function spellings({ latex, unit }: Answer & { kind: 'value' }): string[] {
  const [, letter = '', power] = /^([a-z])(?:\^([23]))?$/u.exec(unit) ?? []
  return [letter, letter.toUpperCase()].map((one) => dense(`${latex}${one}${power ? `^{${power}}` : ''}`))
}

const isCollection = (answer: Answer): answer is Answer & { kind: 'list' | 'set' | 'union' } =>
  answer.kind === 'list' || answer.kind === 'set' || answer.kind === 'union'

/** The items of a collection, with nested lists (as made by \pm) flattened. Any other answer is its own only item. */
function flat(answer: Answer): Answer[] {
  return isCollection(answer) ? answer.items.flatMap((item) => (item.kind === 'list' ? flat(item) : [item])) : [answer]
}

/** Removes set braces: `\{1, 2\}` becomes `1, 2`, `\{5\}` becomes 5. A union of sets stays. */
const mayDiffer = (a: Answer, b: Answer) => a.kind !== 'union' && b.kind !== 'union'
