/**
 * Equality of expressions, using @cortex-js/compute-engine, which reads LaTeX and computes with any number of digits. Constants are equal if their
 * difference is 0 to 60 digits. Expressions with variables are equal if they agree to 40 digits at random points, positive and negative: the
 * probability that different polynomials agree at such points is almost 0. Six points far from 0 tell |x + 3| from x + 3. Symbolic rewriting is not
 * used: it would answer "different" whenever it finds no proof, and its search takes unbounded time.
 */
import { ComputeEngine, type Expression } from '@cortex-js/compute-engine'
import { hashSeed, Random } from '../../common/random.ts'
import type { Symbols } from './compare.ts'

const ce = new ComputeEngine()
ce.precision = 80

/** Number of points at which expressions are compared, and at how many of them (`needed`) both must have a value for a verdict. */
const points = 8
const needed = 4
/** Further points must not differ either: these many of each sign, between 3 and `far`. Beyond that, 80 digits are too few for hyperbolic functions. */
const farPoints = 3
const far = 20

interface Complex {
  re: number
  im: number
}

const isFinite = ({ re, im }: Complex) => Number.isFinite(re) && Number.isFinite(im)
const size = ({ re, im }: Complex) => Math.hypot(re, im)

function parse(latex: string): Expression | null {
  // The library reads "4 2" as 42, and 1010_2 as ten, which is no answer to a question for binary digits.
  if (/(?<!_)\d\s+\.?\d|\d\s*_/u.test(latex)) return null
  const expression = ce.parse(bars(latex).replaceAll('\\degree', '^\\circ'))
  if (!expression?.isValid) return null
  const json = JSON.stringify(expression.json)
  // Refuse words inside an expression, parse errors, values that are not numbers, and derivatives of unknown functions, which would be 0.
  return /"'|"(?:Error|Derivative|Nothing|LatexString|Undefined|Tuple|Sequence|Set|Pair|Equal|True|False)"/u.test(json)
    ? null
    : expression
}

/** The library reads `\bar{x}` as the mean of the number x, which is x. It is a variable of its own; over z and w the bar means the conjugate. */
const bars = (latex: string) =>
  latex.replace(/\\(?:bar|overline)\s*(?:\{\s*([a-zA-Z])\s*\}|(?<=\s)([a-zA-Z])(?![a-zA-Z]))/gu, (_, grouped, bare) => {
    const letter = String(grouped ?? bare)
    return /[wz]/u.test(letter) ? `\\overline{${letter}}` : `{${letter}_{bar}}`
  })

function value(expression: Expression): Complex {
  const n = expression.N()
  const [re, im] = [Number(n.re), Number(n.im)]
  return { re, im: Number.isNaN(im) && Number.isFinite(re) ? 0 : im }
}

/** a - b and the magnitude of both, at one point. Null if only one of them has a value there. */
function difference(a: Expression, b: Expression, at: Point, domain?: Domain): { off: number; scale: number } | null | undefined {
  const [x, y] = [a.subs(at), b.subs(at)]
  const [u, v] = [value(x), value(y)]
  if (!isFinite(u) && !isFinite(v)) return undefined
  if (domain === 'real' && (u.im !== 0 || v.im !== 0)) return undefined
  if (!isFinite(u) || !isFinite(v)) return domain === 'whole' ? undefined : null
  const off = value(ce.box(['Subtract', x.json, y.json] as never))
  return { off: isFinite(off) ? size(off) : Infinity, scale: Math.max(size(u), size(v)) }
}

function variables(...expressions: Expression[]): string[] {
  return [...new Set(expressions.flatMap((expression) => expression.unknowns))].toSorted()
}

type Point = Record<string, number | Expression>

/**
 * Where expressions with factorials or logarithms are compared. `whole`: only at positive integers, as other numbers have no factorial. `real`: only
 * where both are real, so that \ln(xy) equals \ln x + \ln y. The absolute value in \ln|x| is there to be real elsewhere too, and must not be left out.
 */
type Domain = 'whole' | 'real' | undefined

function domainOf(...expressions: Expression[]): Domain {
  const json = JSON.stringify(expressions.map((expression) => expression.json))
  if (json.includes('"Factorial"')) return 'whole'
  return /"(?:Ln|Log|Lb)"/u.test(json) && !json.includes('"Abs"') ? 'real' : undefined
}
type Equation = { left: string; right: string }

/**
 * Yields points far from 0, at which each variable has both signs. They only ever show that expressions differ. If one of the expressions takes a
 * conjugate or a part of a complex number, z and w are not real.
 */
function* farProbes(names: string[], ...expressions: Expression[]): Generator<Point> {
  const isComplex = /"(?:Conjugate|Real|Imaginary|Argument)"/u.test(JSON.stringify(expressions.map(({ json }) => json)))
  const random = new Random(hashSeed('far', ...names))
  const width = (far - 3) / farPoints
  const columns = names.map((name) => {
    const values = Array.from({ length: 2 * farPoints }, (_, i) => {
      const size = 3 + width * (Math.floor(i / 2) + Math.floor(random.next() * 2 ** 20) / 2 ** 20)
      return i % 2 === 0 ? size : -size
    })
    const shuffled = random.shuffle(values)
    if (!isComplex || !/^[wz](?:_|$)/u.test(name)) return [name, shuffled] as const
    return [name, shuffled.map((re) => ce.box(['Complex', re, random.next() + 1] as never))] as const
  })
  for (let i = 0; i < 2 * farPoints; i++) yield Object.fromEntries(columns.map(([name, values]) => [name, values[i]]))
}

/** Yields the same points for the same variables, so that rewards are deterministic. */
function* probes(names: string[], domain?: Domain): Generator<Record<string, number>> {
  const random = new Random(hashSeed('probe', ...names))
  // A domain excludes some of the points: those where k > n, or where not all variables are positive.
  for (let i = 0; i < (domain ? 3 * points : points); i++) {
    const sign = () => (i >= points ? 1 : random.int(2) ? 1 : -1)
    const at = names.map((name) => [name, sign() * (0.2 + Math.floor(random.next() * 2 ** 20) / 2 ** 19)] as const)
    yield Object.fromEntries(domain === 'whole' ? at.map(([name, x]) => [name, Math.ceil(5 * Math.abs(x))]) : at)
  }
}

function sameConstant(a: Expression, b: Expression): boolean {
  const [u, v] = [value(a), value(b)]
  if (!isFinite(u) || !isFinite(v)) return false
  const apart = difference(a, b, {})
  return apart ? apart.off <= 1e-60 * Math.max(apart.scale, 1e-60) || (apart.scale === 0 && apart.off === 0) : false
}

function sameEverywhere(a: Expression, b: Expression, names: string[]): boolean {
  const isApart = ({ off, scale }: { off: number; scale: number }) => !(off <= 1e-40 * Math.max(scale, 1e-10))
  const domain = domainOf(a, b)
  let agreed = 0
  for (const at of probes(names, domain)) {
    const apart = difference(a, b, at, domain)
    if (apart === undefined) continue
    if (apart === null || isApart(apart)) return false
    agreed++
  }
  if (agreed < needed) return false
  // The points of whole numbers are up to 11 already.
  if (domain === 'whole') return true
  for (const at of farProbes(names, a, b)) {
    const apart = difference(a, b, at, domain)
    if (apart && isApart(apart)) return false
  }
  return true
}

/** `a(b+c)` is a product, unless the name is one that functions have. Without a declaration it is a call of a function a. */
const factors = [
  ...Array.from('abcdjklmnopqrstuvwxyzABCDEIJKLMNOPQRSTUVWXYZ'),
  'alpha',
  'beta',
  'gamma',
  'delta',
  'theta',
  'lambda',
  'mu',
  'omega',
]

/**
 * Runs one comparison in a scope of its own. The engine remembers what an expression tells of its symbols: after an answer with `x(y)`, x would be a
 * function in all later answers of this thread.
 */
function scoped<Args extends unknown[], T>(compare: (...args: Args) => T): (...args: Args) => T {
  return (...args) => {
    const said = JSON.stringify(args)
    ce.pushScope()
    try {
      // All of them take 0.6 of the 2 ms that constants take.
      for (const name of factors) if (said.includes(name)) ce.declare(name, 'number')
      return compare(...args)
    } finally {
      ce.popScope()
    }
  }
}

/** `Symbols` by compute-engine. */
export const symbols: Symbols = {
  same: scoped((latexA: string, latexB: string) => {
    const [a, b] = [parse(latexA), parse(latexB)]
    if (!a || !b) return false
    const infinities = [latexA, latexB].filter((latex) => latex.includes('\\infty')).length
    // \frac{1}{0} and \frac{2}{0} have no value, so they equal no answer.
    if (infinities > 0) return infinities === 2 && a.isSame(b)
    const names = variables(a, b)
    return names.length === 0 ? sameConstant(a, b) : sameEverywhere(a, b, names)
  }),

  sameEquation: scoped((first: Equation, second: Equation) => {
    const minus = (equation: Equation) => parse(`(${equation.left})-(${equation.right})`)
    const [a, b] = [minus(first), minus(second)]
    if (!a || !b) return false
    const names = variables(a, b)
    if (names.length === 0 || variables(a).join() !== variables(b).join()) return false
    // The equations are equal if a = c b with the same c at all points.
    const ratio = ce.box(['Divide', a.json, b.json] as never)
    const at = [...probes(names)].map((point) => value(ratio.subs(point))).filter(isFinite)
    const base = at[0]
    if (at.length < needed || size(base) < 1e-9) return false
    for (const point of farProbes(names, a, b)) {
      const there = value(ratio.subs(point))
      if (isFinite(there)) at.push(there)
    }
    return at.every((c) => Math.hypot(c.re - base.re, c.im - base.im) <= 1e-12 * size(base))
  }),

  numeric: scoped((latex: string) => {
    const expression = parse(latex)
    if (!expression || expression.unknowns.length > 0) return null
    const { re, im } = value(expression)
    return Number.isFinite(re) && im === 0 ? re : null
  }),
}
