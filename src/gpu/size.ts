/**
 * Counts that a recorded plan leaves open, such as the number of rows in a micro-batch or of tokens to score; also plain values such as a seed. A
 * plan is recorded for a capacity, and `gpu.replay(plan, values)` puts the actual numbers into its commands. Code that computes with counts (kernel
 * wrappers, operations) takes a `Count`, so that it is written once for numbers and for `Size`s. Code that makes a decision from a count (which
 * kernel or tile, the size of a buffer, the number of loops) uses `capacityOf`.
 */

/** A value that a plan leaves open. */
export interface Variable {
  name: string
  /** The largest value that a replay may give. */
  capacity: number
}

/** An expression over one variable. */
export class Size {
  readonly variable: Variable
  /** The expression's value when the variable is at its capacity. */
  readonly capacity: number
  /** The expression's value for a value of the variable. */
  readonly at: (value: number) => number

  constructor(variable: Variable, capacity: number, at: (value: number) => number) {
    this.variable = variable
    this.capacity = capacity
    this.at = at
  }

  /** A new variable. A plain value (a seed, a factor) has no capacity: no decision may depend on it. */
  static of(name: string, capacity = Infinity): Size {
    return new Size({ name, capacity }, capacity, (value) => value)
  }
}

/** A number, or one that a plan leaves open. */
export type Count = number | Size

/** Applies `fn` to a count. If the result is used as a count, `fn` must be non-decreasing: its value at the capacity becomes the new capacity. */
export function map(count: Count, fn: (value: number) => number): Count {
  if (typeof count === 'number') return fn(count)
  const { variable, capacity, at } = count
  return new Size(variable, fn(capacity), (value) => fn(at(value)))
}

/** The number for which buffers, kernels and loops are sized. */
export const capacityOf = (count: Count): number => (typeof count === 'number' ? count : count.capacity)

/** `count` times `factor`. */
export const times = (count: Count, factor: number): Count => map(count, (n) => n * factor)

/** Number of groups of `size` needed for `count` items. */
export const groupsOf = (count: Count, size: number): Count => map(count, (n) => Math.ceil(n / size))

/** How many of `count` items lie in first .. first + most; 0 if there are at most `first`. */
export const within = (count: Count, first: number, most: number): Count =>
  map(count, (n) => Math.max(0, Math.min(most, n - first)))
