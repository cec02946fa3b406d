/**
 * Verifies that a server has the trainer's weights: both score one fixed sequence. Their difference with the same weights (from another order of
 * summation, or another dtype) is measured first. After a push, the server must be closer to the trainer's new weights than to its old ones, wherever
 * the step moved the log-probabilities by more than that difference.
 */

/** The result of a probe: means of absolute differences of log-probabilities over the sequence, in nats per token. */
export interface Probe {
  /** The server against the trainer, both with the new weights. */
  error: number
  /** The trainer's new weights against its previous ones. */
  moved: number
  /** The server's new weights against the trainer's previous ones. */
  stale: number
}

/** Positions at which a sequence is scored: at most eight, spread over it, including the last. */
export function probePositions(length: number): number[] {
  const count = Math.min(8, length - 1)
  return Array.from({ length: count }, (_, i) => Math.round(((i + 1) * (length - 1)) / count))
}

/** Mean of |a - b|; NaN if any element is. */
export function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  if (a.length !== b.length) throw new Error(`${a.length} and ${b.length} log-probabilities can't be compared`)
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += Math.abs(a[i] - b[i])
  return sum / a.length
}

/** A server with other weights than it should have differs by at least this much, in nats per token; bf16 alone makes about 0.02. */
export const OTHER_MODEL = 0.5

/**
 * The reason why the server can't have the new weights; undefined if it may have them.
 * @param noise the difference measured when both were known to have the same weights
 */
export function staleBecause({ error, moved, stale }: Probe, noise: number): string | undefined {
  const digits = (x: number) => x.toPrecision(2)
  if (!(error < OTHER_MODEL)) {
    return `its log-probabilities are off by ${digits(error)} nats per token`
  }
  // For a smaller step, the numbers cannot tell; then only the server's answer to the push counts.
  if (moved > 4 * noise && error > stale) {
    return `the step moved the log-probabilities by ${digits(moved)} nats per token, but the server's are ${digits(error)} from the new ones and only ${digits(stale)} from the old ones`
  }
  // Some of the weights may not have been replaced: vLLM 0.32 keeps the old tied output head, and then differs by a sixth of the step.
  if (error > 10 * noise + moved / 50) {
    return `its log-probabilities are off by ${digits(error)} nats per token, up from ${digits(noise)} before; the step moved them by ${digits(moved)}, so some of the weights are still the old ones`
  }
  return undefined
}
