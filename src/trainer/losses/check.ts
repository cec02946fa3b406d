/**
 * Checks of a user's loss: its outputs on a synthetic sequence, before the run starts (`checkLossShape`), and its gradient against finite
 * differences, on the first batch that has any (`checkLossGradient`). Terms under a stop-gradient must read `frozenLogprobs`, which the check does
 * not perturb. A file whose gradient is deliberately not the derivative declares `export const checkGradient = false`.
 */
import { UserError } from '../../common/errors.ts'
import type { Rollout } from '../../common/types.ts'
import { runHostLoss, type Loss } from './index.ts'
import type { LossInputs } from './types.ts'

/** The perturbation of a log-probability. The error of a central difference is of the order of its square. */
const STEP = 1e-3
/** Tolerance relative to the gradient, plus FLOOR relative to the largest gradient seen. Both are far above the rounding of float32. */
const TOLERANCE = 1e-2
const FLOOR = 1e-3
const TOKENS = 32

/** The gradient that the loss returns for a token, and its finite differences: to the left (`low`), to the right (`high`) and central (`middle`). */
interface Slopes {
  sequence: number
  token: number
  ratio: number
  gradient: number
  low: number
  high: number
  middle: number
}

/**
 * Runs a loss on a made-up sequence of 6 tokens.
 * @param reference whether the run has a reference model, and the sequence therefore `refLogprobs`
 * @throws UserError if the loss throws, returns the wrong shape or a value that is not finite, or gives a token outside the mask a gradient
 */
export function checkLossShape(loss: Loss, reference = false): void {
  const inputs = syntheticInputs(reference)
  const { gradient, loss: value, metrics } = runHostLoss(loss, inputs)
  const say = (what: string) => new UserError(`The loss ${loss.name}, tried on a made-up sequence of 6 tokens, ${what}.`)
  const bad = gradient.findIndex((g, t) => !Number.isFinite(g) || (g !== 0 && !inputs.lossMask[t]))
  if (bad >= 0 && !Number.isFinite(gradient[bad])) throw say(`gives token ${bad} the gradient ${gradient[bad]}`)
  if (bad >= 0) throw say(`gives token ${bad} the gradient ${gradient[bad]}, although its lossMask is 0: such tokens must get 0`)
  if (!Number.isFinite(value)) throw say(`is ${value}`)
  for (const [name, metric] of Object.entries(metrics ?? {})) {
    if (typeof metric !== 'number') throw say(`gives the metric ${name} as ${JSON.stringify(metric)}; metrics are numbers`)
  }
}

/**
 * Compares gradients with finite differences at some tokens of the sequences.
 * @returns whether there was anything to compare: false if all gradients and differences are 0
 * @throws UserError that names the token, both values and the likely cause
 */
export function checkLossGradient(loss: Loss, sequences: readonly LossInputs[]): boolean {
  const found: Slopes[] = []
  const chosen = spread(sequences.length, 8)
  for (const [i, sequence] of [...chosen, ...chosen].entries()) {
    const inputs = i < chosen.length ? sequences[sequence] : apart(sequences[sequence])
    const { gradient } = runHostLoss(loss, inputs)
    const counted = [...inputs.lossMask.keys()].filter((t) => inputs.lossMask[t])
    for (const place of spread(counted.length, Math.ceil(TOKENS / chosen.length))) {
      const token = counted[place]
      const ratio = Math.exp(inputs.logprobs[token] - inputs.inferenceLogprobs[token])
      found.push({ sequence, token, ratio, gradient: gradient[token], ...differences(loss, inputs, token) })
    }
  }
  const scale = Math.max(0, ...found.map((f) => Math.max(Math.abs(f.gradient), Math.abs(f.middle))))
  const wrong = found.filter((f) => {
    const bound = TOLERANCE * Math.max(Math.abs(f.gradient), Math.abs(f.middle)) + FLOOR * scale
    // At a kink of the loss (a token exactly at a clipping bound) any slope between the left and the right one is correct.
    return f.gradient < Math.min(f.low, f.high, f.middle) - bound || f.gradient > Math.max(f.low, f.high, f.middle) + bound
  })
  if (wrong.length > 0) {
    const { sequence, token, ratio, gradient, middle } = wrong[0]
    throw new UserError(
      `The loss ${loss.name} says that dLoss/dlogprob of token ${token} of sequence ${sequence} is ${show(gradient)} where the importance ` +
        `ratio is ${show(ratio)}, but moving that log-probability by ${STEP} changes the loss by ${show(middle)} per unit (${wrong.length} of ${found.length} tokens disagree). ` +
        likelyCause(wrong, sequences[sequence].lossTokenCount),
    )
  }
  return scale > 0
}

/**
 * Perturbs the sampler's and the reference's log-probabilities. In a run's first batch, policy, sampler and reference mostly agree, which would hide
 * a missing ratio or a wrong derivative of a KL term. Some of the resulting ratios are near 1, some beyond the clipping bounds.
 */
function apart(x: LossInputs): LossInputs {
  const moved = (values: Float32Array, by: readonly number[]) => values.map((value, t) => value + by[t % by.length])
  return {
    ...x,
    inferenceLogprobs: moved(x.inferenceLogprobs, [0.03, -0.4, 0.15, 1.1, -0.1]),
    refLogprobs: x.refLogprobs && moved(x.refLogprobs, [-0.2, 0.5, 0.1]),
  }
}

function differences(loss: Loss, inputs: LossInputs, token: number): Pick<Slopes, 'low' | 'high' | 'middle'> {
  const at = (offset: number) => {
    const logprobs = inputs.logprobs.slice()
    logprobs[token] += offset
    return { x: logprobs[token], y: runHostLoss(loss, { ...inputs, logprobs }).loss }
  }
  const [a, b, c] = [at(-STEP), at(0), at(STEP)]
  // The points as rounded to float32.
  return { low: (b.y - a.y) / (b.x - a.x), high: (c.y - b.y) / (c.x - b.x), middle: (c.y - a.y) / (c.x - a.x) }
}

/** Guesses the mistake from what all disagreements have in common. */
function likelyCause(wrong: readonly Slopes[], n: number): string {
  const all = (expected: (difference: number, ratio: number) => number) =>
    wrong.every(
      ({ ratio, gradient, middle }) => Math.abs(gradient - expected(middle, ratio)) <= 0.05 * Math.abs(expected(middle, ratio)),
    )
  if (all((d) => -d)) return 'The sign is wrong: return the gradient of the loss itself, which is minimised.'
  if (n > 1 && (all((d) => d * n) || all((d) => d / n))) {
    return `The two differ by the factor lossTokenCount (${n}): divide both the loss and the gradient by it, or neither.`
  }
  if (all((d, ratio) => d / ratio)) {
    return 'The two differ by the ratio, which is its own derivative: the gradient of -ratio A is -ratio A, not -A.'
  }
  return (
    'Is a factor of the chain rule missing? A term under a stop-gradient must be computed from frozenLogprobs, which the check does ' +
    'not change. If the gradient differs on purpose, write `export const checkGradient = false` in the file.'
  )
}

const show = (value: number) => Number(value.toPrecision(5)).toString()

/** At most `most` indices below `count`, evenly spaced, including the first and the last. */
function spread(count: number, most: number): number[] {
  const n = Math.min(count, most)
  return Array.from({ length: n }, (_, i) => (n === 1 ? 0 : Math.round((i * (count - 1)) / (n - 1))))
}

/** Ratios below, at and above 1, advantages of both signs, and two prompt tokens outside the mask. */
function syntheticInputs(reference: boolean): LossInputs {
  const logprobs = Float32Array.of(0, -1, -0.5, -2, -3, -0.1)
  const rollout: Rollout = {
    exampleId: 0, env: 'synthetic', group: 'synthetic', index: 0, prompt: [{ role: 'user', content: 'question' }],
    completion: [{ role: 'assistant', content: 'answer' }], answer: 'answer', info: {}, reward: 0.5, metrics: {}, promptIds: [0, 1],
    completion_tokens: { ids: [2, 3, 4, 5], logprobs: [-0.6, -2, -2.8, -0.1], versions: [0, 0, 0, 0] }, isTruncated: false,
    stopCondition: 'eos', error: null, seed: 0, timing: { generation_ms: 1, scoring_ms: 1, total_ms: 2 },
  } // prettier-ignore
  return {
    logprobs,
    frozenLogprobs: logprobs,
    inferenceLogprobs: Float32Array.of(0, 0, -0.6, -2, -2.8, -0.1),
    refLogprobs: reference ? Float32Array.of(0, 0, -0.5, -2.1, -2.5, -0.2) : undefined,
    advantages: Float32Array.of(0, 0, 0.5, 0.5, -0.5, -0.5),
    lossMask: Uint8Array.of(0, 0, 1, 1, 1, 1),
    entropy: Float32Array.of(0, 0, 1, 1, 1, 1),
    lossTokenCount: 8,
    rollout,
  }
}
