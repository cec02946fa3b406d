/** EBNF for numbers between bounds, digit by digit: a grammar cannot compare numbers, so the bounds are spelled out. */
import { UserError } from '../../common/errors.ts'

/** Bounds of a number; infinite if there is none. */
export interface Bounds {
  low: number
  high: number
  /** Whether the bound itself is excluded. */
  lowOpen: boolean
  highOpen: boolean
}

/** Number of digits that JSON.parse reads exactly. */
const MOST_DIGITS = 15
const LARGEST = 10 ** MOST_DIGITS - 1
/** Number of digits that may follow the last one of a bound. */
const MORE_DECIMALS = 6

/** Bounds with fewer digits that leave out no number that these allow. */
export function widened({ low, high, lowOpen, highOpen }: Bounds): Bounds {
  const shorter = (value: number, round: (value: number) => number, none: number) => {
    if (Math.abs(value) > LARGEST) return none
    return Math.abs(value) < 1e9 ? round(value * 1e6) / 1e6 : round(value)
  }
  const [from, to] = [shorter(low, Math.floor, -Infinity), shorter(high, Math.ceil, Infinity)]
  return { low: from, high: to, lowOpen: lowOpen && from === low, highOpen: highOpen && to === high }
}

/**
 * EBNF for an integer between the bounds.
 * @throws UserError if there is none
 */
export function integerBetween({ low, high, lowOpen, highOpen }: Bounds): string {
  const from = Math.max(-LARGEST, lowOpen && Number.isInteger(low) ? low + 1 : Math.ceil(low))
  const to = Math.min(LARGEST, highOpen && Number.isInteger(high) ? high - 1 : Math.floor(high))
  if (from > LARGEST || to < -LARGEST) throw tooLong(low, high)
  if (from > to) throw new UserError(`There is no integer between ${low} and ${high}.`)
  const parts: string[] = []
  if (from < 0) parts.push(`"-" ${natural(Math.max(1, -to), -from)}`)
  if (to >= 0) parts.push(natural(Math.max(0, from), to))
  return group(parts)
}

/**
 * EBNF for a number between the bounds, without an exponent.
 * @throws UserError if there is none, or if a bound has too many digits
 */
export function numberBetween({ low, high, lowOpen, highOpen }: Bounds): string {
  const places = Math.max(...[low, high].filter(Number.isFinite).map(decimals), 0)
  const scale = 10 ** places
  // A side without a bound ends at the largest number whose digits, including decimals, are still read exactly.
  const far = 10 ** (MOST_DIGITS - places) - 1
  const bounds = {
    low: low === -Infinity ? -far : Math.max(low, -LARGEST),
    high: high === Infinity ? far : Math.min(high, LARGEST),
  }
  const [a, b] = [Math.round(bounds.low * scale), Math.round(bounds.high * scale)]
  if (!Number.isFinite(a) || !Number.isFinite(b) || Math.max(Math.abs(a), Math.abs(b)) >= 10 ** (MOST_DIGITS + 1))
    throw tooLong(low, high)
  if (low <= high && a > b) throw tooLong(low, high)
  if (a > b || (a === b && (lowOpen || highOpen))) throw new UserError(`There is no number between ${low} and ${high}.`)
  const parts: string[] = []
  if (b > 0 || (b === 0 && !highOpen)) parts.push(...magnitudes(Math.max(a, 0), b, lowOpen && a >= 0, highOpen, places))
  if (a < 0) {
    // -0 is left to the other side.
    const open = b >= 0 || highOpen
    const below = magnitudes(Math.max(-b, 0), -a, open, lowOpen, places)
    if (below.length > 0) parts.push(`"-" ${group(below)}`)
  }
  if (parts.length === 0) throw tooLong(low, high)
  return group(parts)
}

/**
 * Numbers from a to b, both scaled by 10 ** places: everything that begins with a .. b - 1, b itself followed by zeros, and what has fewer decimals
 * than the bounds. Beside a bound that is excluded, numbers have so few digits that JSON.parse does not round them to it.
 */
function magnitudes(a: number, b: number, aOpen: boolean, bOpen: boolean, places: number): string[] {
  const spare = (value: number) => Math.min(MORE_DECIMALS, Math.max(0, MOST_DIGITS - String(value).length))
  const more = (count: number) => (count === 0 ? '' : places > 0 ? `[0-9]{0,${count}}` : `("." [0-9]{1,${count}})?`)
  const zeros = places > 0 ? `"0"{0,${MORE_DECIMALS}}` : `("." "0"{1,${MORE_DECIMALS}})?`
  const parts: string[] = []
  const first = aOpen ? a + 1 : a
  const last = bOpen ? b - 1 : b
  for (let fewer = 0; fewer < places; fewer++) {
    const step = 10 ** (places - fewer)
    const [from, to] = [Math.ceil(first / step), Math.floor(last / step)]
    if (from <= to) parts.push(natural(from, to, fewer))
  }
  if (aOpen && a < b && spare(a) > 0) {
    // Not only zeros after a.
    const nonzero = Array.from({ length: spare(a) }, (_, i) => `"${'0'.repeat(i)}" [1-9] [0-9]{0,${spare(a) - 1 - i}}`)
    parts.push(`${natural(a, a, places)} ${places > 0 ? '' : '"." '}${group(nonzero)}`)
  }
  const whole = bOpen ? b - 2 : b - 1
  if (first <= whole) parts.push(`${natural(first, whole, places)} ${more(MORE_DECIMALS)}`)
  if (bOpen && first <= last) parts.push(`${natural(last, last, places)} ${more(spare(last))}`)
  if (!bOpen && first <= b) parts.push(`${natural(b, b, places)} ${zeros}`)
  return parts
}

function decimals(value: number): number {
  const text = String(value)
  if (text.includes('e')) throw new UserError(`The bound ${value} has too many digits.`)
  const count = text.split('.')[1]?.length ?? 0
  if (count > 6) throw new UserError(`The bound ${value} has more than 6 decimals.`)
  return count
}

/** Integers from a to b (0 <= a <= b) without leading zeros, with a decimal point before the last `places` digits. */
function natural(a: number, b: number, places = 0): string {
  const parts: string[] = []
  const shortest = places + 1
  for (let length = Math.max(shortest, String(a).length); length <= Math.max(shortest, String(b).length); length++) {
    const least = length === shortest ? 0 : 10 ** (length - 1)
    const from = String(Math.max(a, least)).padStart(length, '0')
    const to = String(Math.min(b, 10 ** length - 1)).padStart(length, '0')
    parts.push(digits(from, to, length - places))
  }
  return group(parts)
}

/** Digit strings between `from` and `to`, which have equal lengths; the decimal point comes before digit `point`. */
function digits(from: string, to: string, point: number): string {
  if (from === '') return '""'
  const dot = point === 0 ? '"." ' : ''
  if (/^0*$/.test(from) && /^9*$/.test(to)) {
    if (point <= 0 || point >= from.length) return `${dot}[0-9]{${from.length}}`
    return `[0-9]{${point}} "." [0-9]{${from.length - point}}`
  }
  const [x, y] = [Number(from[0]), Number(to[0])]
  const rest = from.length - 1
  if (x === y) return `${dot}"${x}" ${digits(from.slice(1), to.slice(1), point - 1)}`
  const parts: string[] = []
  const lowest = /^0*$/.test(from.slice(1)) ? x : x + 1
  const highest = /^9*$/.test(to.slice(1)) ? y : y - 1
  if (lowest > x) parts.push(`"${x}" ${digits(from.slice(1), '9'.repeat(rest), point - 1)}`)
  if (lowest <= highest) parts.push(`[${lowest}-${highest}] ${digits('0'.repeat(rest), '9'.repeat(rest), point - 1)}`)
  if (highest < y) parts.push(`"${y}" ${digits('0'.repeat(rest), to.slice(1), point - 1)}`)
  return `${dot}${group(parts)}`
}

const tooLong = (low: number, high: number) => new UserError(`The bounds ${low} and ${high} have too many digits.`)

const group = (parts: string[]) => (parts.length === 1 ? parts[0] : `(${parts.join(' | ')})`)
