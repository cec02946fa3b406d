/** Exact rational numbers. Numbers are compared as fractions of integers, so that 0.1 equals 1/10 and 0.333 does not equal 1/3. */

/** The fraction n / d in lowest terms. */
export interface Rational {
  n: bigint
  /** Positive, with no common factor with n. */
  d: bigint
}

/** Numbers with more digits or larger powers are left to symbols.ts, which runs under a time limit. */
const maxDigits = 400
const maxPower = 400

function make(n: bigint, d: bigint): Rational | null {
  if (d === 0n) return null
  let [a, b] = [n < 0n ? -n : n, d < 0n ? -d : d]
  while (b !== 0n) [a, b] = [b, a % b]
  const sign = d < 0n ? -1n : 1n
  return a === 0n ? { n: 0n, d: 1n } : { n: (sign * n) / a, d: (sign * d) / a }
}

export const sameRational = (a: Rational, b: Rational) => a.n === b.n && a.d === b.d
export const hundredth = (a: Rational) => make(a.n, a.d * 100n)!
/** Converts to a float, for comparisons with a tolerance. */
export const asNumber = (a: Rational) => Number(a.n) / Number(a.d)

const negative = (a: Rational | null) => a && { n: -a.n, d: a.d }

/**
 * Parses one number from normalised LaTeX (cleanAnswer): integers with thousands separators, decimals, repeating decimals (`0.\overline{3}`),
 * fractions (`\frac`, `a/b`), mixed numbers, scientific notation, powers of integers. Returns null for anything else.
 */
export function parseRational(text: string): Rational | null {
  const s = text.trim()
  if (s.length === 0 || s.length > 2 * maxDigits) return null
  const sign = /^([-+])\s*/u.exec(s)
  if (sign) {
    const rest = s.slice(sign[0].length)
    return /^[-+]/u.test(rest) ? null : sign[1] === '-' ? negative(parseRational(rest)) : parseRational(rest)
  }
  const inner = /^\(([^()]*)\)$/u.exec(s) ?? /^\{([^{}]*)\}$/u.exec(s)
  if (inner) return parseRational(inner[1])
  return parseDecimal(s) ?? parseFraction(s) ?? parseMixed(s) ?? parsePower(s)
}

function parseDecimal(s: string): Rational | null {
  const whole = s.replace(/^(\d{1,3})((?:,\d{3})+)(?=$|\.)/u, (_, head: string, rest: string) => head + rest.replaceAll(',', ''))
  const match = /^(\d*)(?:\.(\d*)(?:\\overline\{(\d+)\})?(\\ldots|\\dots|\.\.\.)?)?$/u.exec(whole)
  if (!match || match[4] || whole.length > maxDigits) return null
  const [, left, right = '', repeated = ''] = match
  if (left === '' && right === '' && repeated === '') return null
  const scale = 10n ** BigInt(right.length)
  const base = make(BigInt(`${left}${right}` || '0'), scale)!
  if (repeated === '') return base
  const cycle = make(BigInt(repeated), scale * (10n ** BigInt(repeated.length) - 1n))!
  return make(base.n * cycle.d + cycle.n * base.d, base.d * cycle.d)
}

function parseFraction(s: string): Rational | null {
  const match = /^\\frac\{([^{}]*)\}\{([^{}]*)\}$/u.exec(s) ?? /^([^/\s]+)\s*\/\s*([^/\s]+)$/u.exec(s)
  const [top, bottom] = [match && parseRational(match[1]), match && parseRational(match[2])]
  return top && bottom ? make(top.n * bottom.d, top.d * bottom.n) : null
}

/** Parses `3\frac{1}{2}`, `3 1/2`: an integer before a proper fraction. Before an improper fraction it may be a product: null. */
function parseMixed(s: string): Rational | null {
  const match = /^(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}$/u.exec(s) ?? /^(\d+)\s+(\d+)\s*\/\s*(\d+)$/u.exec(s)
  if (!match) return null
  const [whole, top, bottom] = match.slice(1).map((digits) => (digits.length > maxDigits ? -1n : BigInt(digits)))
  return whole < 0n || top <= 0n || top >= bottom ? null : make(whole * bottom + top, bottom)
}

/** `2^{10}`, `1.5\times 10^{-3}`, `3\times 4`. */
function parsePower(s: string): Rational | null {
  const product = s.split('\\times').map((part) => part.trim())
  let result: Rational = { n: 1n, d: 1n }
  if (product.length > 4) return null
  for (const part of product) {
    const power = /^(\d+)\s*\^\s*\{(-?\d{1,3})\}$/u.exec(part)
    const factor = power ? raise(power[1], Number(power[2])) : parseDecimal(part)
    const next = factor && make(result.n * factor.n, result.d * factor.d)
    if (!next) return null
    result = next
  }
  return result
}

function raise(base: string, power: number): Rational | null {
  if (Math.abs(power) > maxPower || base.length > 20) return null
  const value = BigInt(base) ** BigInt(Math.abs(power))
  return power < 0 ? make(1n, value) : make(value, 1n)
}
