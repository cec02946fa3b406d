/**
 * Counts that a recorded plan leaves open: how many rows a micro-batch has, how many of its tokens are scored; also plain values such as a seed.
 * A plan is recorded for a capacity, and `gpu.replay(plan, values)` puts the real numbers into its commands. Code that computes with counts
 * (kernel wrappers, operations) takes a `Count`, so that it is written once for numbers and for `Size`s. Code that decides by one (which kernel,
 * which tile, how large a buffer, how many loops) decides by `capacityOf`.
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
  /** The expression's value where the variable is at its capacity. */
  readonly capacity: number
  /** Its value for a value of the variable. */
  readonly at: (value: number) => number

  constructor(variable: Variable, capacity: number, at: (value: number) => number) {
    this.variable = variable
    this.capacity = capacity
    this.at = at
  }

  /** A variable of its own. A plain value (a seed, a factor) has no capacity: it must not decide anything. */
  static of(name: string, capacity = Infinity): Size {
    return new Size({ name, capacity }, capacity, (value) => value)
  }
}

export type Count = number | Size

/** Applies fn to a count. `fn` must not decrease where the result is used as a count: its value at the capacity becomes the new capacity. */
export function map(count: Count, fn: (value: number) => number): Count {
  if (typeof count === 'number') return fn(count)
  const { variable, capacity, at } = count
  return new Size(variable, fn(capacity), (value) => fn(at(value)))
}

/** The number that buffers, kernels and loops are made for. */
export const capacityOf = (count: Count): number => (typeof count === 'number' ? count : count.capacity)

export const times = (count: Count, factor: number): Count => map(count, (n) => n * factor)

/** Number of groups of `size` that hold `count` items. */
export const groupsOf = (count: Count, size: number): Count => map(count, (n) => Math.ceil(n / size))

/** How many of `count` items lie in first .. first + most; 0 where there are fewer than `first`. */
export const within = (count: Count, first: number, most: number): Count =>
  map(count, (n) => Math.max(0, Math.min(most, n - first)))
