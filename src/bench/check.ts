/** Compares a kernel's output with float64 results at sampled points, before it is timed. */
import type { Random } from '../common/random.ts'

/** Thrown if a benchmark's own result is wrong; the message names the case. */
export class CheckError extends Error {
  override name = 'CheckError'
}

/** A float64 value, and the size relative to which its error is measured (that of its terms, or its own). */
export interface Expected {
  value: number
  size: number
}

/** Limits of |got - value| / size by kind of work. float32 rounds to 6e-8. */
export const tolerances = {
  /** Sums of products. The size is the square root of the number of terms times the sum of their squares. */
  sum: 1e-5,
  /** With exp or a division by a sum in addition. */
  softmax: 5e-5,
  /** With operands rounded to f16. */
  f16: 3e-4,
  /** Gradients of attention from such operands: an error of a score is also one of its weight. */
  softmaxF16: 1e-2,
}

/**
 * Compares `got` at 400 points, including its first and last.
 * @returns the largest |got - value| / size
 * @throws CheckError naming the case and the point, if that exceeds `tolerance` or is NaN
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

/** The float64 sum of `count` terms, with the size of such a sum. */
export function sumOf(count: number, term: (t: number) => number): Expected {
  let [value, squares] = [0, 0]
  for (let t = 0; t < count; t++) {
    const v = term(t)
    value += v
    squares += v * v
  }
  return { value, size: Math.sqrt(squares * count) || 1 }
}
