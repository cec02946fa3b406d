/** Holds a kernel's output against float64 sums at sampled points, before it is timed. */
import type { Random } from '../common/random.ts'

/** A benchmark's own result was wrong; the message names the case. */
export class CheckError extends Error {
  override name = 'CheckError'
}

/** A value in float64, and the size by which its error is measured (that of its terms, or of itself). */
export interface Expected {
  value: number
  size: number
}

/** How far |got - value| / size may be, by kind of work. float32 rounds to 6e-8. */
export const tolerances = {
  /** Sums of products: the size is the root of the number of terms times the sum of their squares. */
  sum: 1e-5,
  /** exp or a division by a sum on top. */
  softmax: 5e-5,
  /** Operands rounded to f16. */
  f16: 3e-4,
  /** Gradients of attention with weights of such operands: an error of a score is one of its weight, too. */
  softmaxF16: 1e-2,
}

/**
 * Compares `got` at 400 points, its first and last among them.
 * @returns the largest |got - value| / size
 * @throws CheckError naming the case and the point where that is more than `tolerance`, or NaN
 */
export function checkPoints(
  name: string,
  got: ArrayLike<number>,
  want: (index: number) => Expected,
  options: { random: Random; tolerance: number; points?: number },
): number {
  const { random, tolerance, points = 400 } = options
  let worst = 0
  for (let point = 0; point < points; point++) {
    const at = point === 0 ? 0 : point === 1 ? got.length - 1 : random.int(got.length)
    const { value, size } = want(at)
    const error = Math.abs(got[at] - value) / size
    if (!(error <= tolerance))
      throw new CheckError(`${name}: output ${at} is ${got[at]} and should be ${value}, so it is not timed.`)
    worst = Math.max(worst, error)
  }
  return worst
}

/** The float64 sum of `count` terms, with the size of a sum of so many of them. */
export function sumOf(count: number, term: (t: number) => number): Expected {
  let [value, squares] = [0, 0]
  for (let t = 0; t < count; t++) {
    const v = term(t)
    value += v
    squares += v * v
  }
  return { value, size: Math.sqrt(squares * count) || 1 }
}
