/**
 * The proof that a server has the trainer's weights: one fixed sequence, scored by both. Their difference with the same weights
 * (another order of summation, another dtype) is measured first; after a push the server must be nearer to the trainer's new weights than
 * to its old ones, wherever the step moved the log-probabilities by more than that.
 */

/** What a probe found; all means of absolute differences of log-probabilities over the sequence. */
export interface Probe {
  /** The server against the trainer, both new. */
  error: number
  /** The trainer's new weights against its last ones. */
  moved: number
  /** The server's new weights against the trainer's last ones. */
  stale: number
}

/** Where a sequence is scored: at most eight tokens, spread over it, the last among them. */
export function probePositions(length: number): number[] {
  const count = Math.min(8, length - 1)
  return Array.from({ length: count }, (_, i) => Math.round(((i + 1) * (length - 1)) / count))
}

/** Mean of |a - b|; NaN where any is. */
export function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) throw new Error(`${a.length} and ${b.length} log-probabilities can't be compared`)
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += Math.abs(a[i] - b[i])
  return sum / a.length
}

/** A server that samples from other weights than it should is off by this much at least, in nats a token; bf16 is off by about 0.02. */
export const OTHER_MODEL = 0.5

/**
 * Why the server can't have the new weights, or undefined.
 * @param noise the difference of both when they were known to have the same weights
 */
export function staleBecause({ error, moved, stale }: Probe, noise: number): string | undefined {
  const digits = (x: number) => x.toPrecision(2)
  if (!(error < OTHER_MODEL)) {
    return `its log-probabilities are off by ${digits(error)} nats a token`
  }
  // Below that the step is too small for numbers to tell; the server's answer to the push is all there is.
  if (moved > 4 * noise && error > stale) {
    return `the step moved the log-probabilities by ${digits(moved)} nats a token, and the server's are ${digits(error)} from the new ones but ${digits(stale)} from the old`
  }
  // A part of the weights may not have been replaced: vLLM 0.32 keeps the old tied output head, and is then off by a sixth of the step.
  if (error > 10 * noise + moved / 50) {
    return `its log-probabilities are off by ${digits(error)} nats a token, and were by ${digits(noise)} before; the step moved them by ${digits(moved)}, so part of the weights is still old`
  }
  return undefined
}
