/** Built-in losses against their twins on the GPU, and the checks that a loss of the user's must pass. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { BUILT_IN } from '../../src/config/algorithm-schema.ts'
import { checkLossGradient, checkLossShape } from '../../src/trainer/losses/check.ts'
import { loadLoss, negativeLogLikelihood, runHostLoss, runLossKernel, type Loss } from '../../src/trainer/losses/index.ts'
import type { LossFunction, LossInputs } from '../../src/trainer/losses/types.ts'
import { seed, seedWords } from '../seed.ts'
import { bounds, openGpu, tempFolder } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()

/** Ratios from far below to far above the bounds, and some exactly 1. */
function randomInputs(random: Random, length: number): LossInputs {
  const logprobs = Float32Array.from({ length }, () => -4 * random.next())
  return {
    logprobs,
    frozenLogprobs: logprobs,
    inferenceLogprobs: logprobs.map((l) => (random.next() < 0.2 ? l : l + 2 * random.normal())),
    advantages: Float32Array.from({ length }, () => random.normal()),
    lossMask: Uint8Array.from({ length }, (_, t) => Number(t > 0 && random.next() < 0.8)),
    entropy: new Float32Array(length),
    lossTokenCount: 3 * length,
  }
}

test("the loss of supervised training is -logp of each token, and its gradient -1 / N, whatever the sampler's log-probability", async () => {
  const device = await gpu
  const { logprobs, inferenceLogprobs } = randomInputs(new Random(seed), 100)
  for (const sampler of [inferenceLogprobs, new Float32Array(100)]) {
    const up = (data: Float32Array) => device.upload(data, 'test')
    const ones = new Float32Array(100).fill(1)
    const [gradient, loss] = [up(new Float32Array(100).fill(NaN)), up(new Float32Array(100).fill(NaN))]
    const t = { logprobs: up(logprobs), inferenceLogprobs: up(sampler), advantages: up(ones), gradient, loss }
    runLossKernel(device, negativeLogLikelihood.kernel!, t, 100, { lossTokenCount: 8 })
    expect(await device.readF32(gradient, 100), seedWords).toEqual(new Float32Array(100).fill(-1 / 8))
    expect(await device.readF32(loss, 100), seedWords).toEqual(logprobs.map((l) => -l / 8))
    for (const buffer of Object.values(t)) buffer.release()
  }
})

const custom = (run: LossFunction, args = {}): Loss => ({ name: 'mine.ts', run, args, checked: true })

describe.each(BUILT_IN.loss)('%s', (name) => {
  test('in TypeScript and in WGSL', async () => {
    const random = new Random(seed)
    const device = await gpu
    const loss = await loadLoss(name, bounds)
    for (const length of [1, 63, 300]) {
      const inputs = { ...randomInputs(random, length), lossMask: new Uint8Array(length).fill(1) }
      const onHost = loss.run(inputs, loss.args)
      const up = (data: Float32Array) => device.upload(data, 'test')
      const t = {
        logprobs: up(inputs.logprobs),
        inferenceLogprobs: up(inputs.inferenceLogprobs),
        advantages: up(inputs.advantages),
        gradient: up(new Float32Array(length).fill(NaN)),
        loss: up(new Float32Array(length).fill(NaN)),
      }
      runLossKernel(device, loss.kernel!, t, length, { lossTokenCount: inputs.lossTokenCount })
      const gradient = await device.readF32(t.gradient, length)
      const values = await device.readF32(t.loss, length)
      for (let i = 0; i < length; i++) {
        const want = onHost.gradient[i]
        expect(Math.abs(gradient[i] - want), `token ${i}, ${seedWords}`).toBeLessThanOrEqual(1e-5 * Math.abs(want))
      }
      const sum = values.reduce((a, b) => a + b, 0)
      expect(Math.abs(sum - onHost.loss), seedWords).toBeLessThan(1e-5 * values.reduce((a, b) => a + Math.abs(b), 1e-9))
      for (const buffer of Object.values(t)) buffer.release()
    }
  })

  test('passes the checks that a loss of a file must pass', async () => {
    const loss = await loadLoss(name, bounds)
    checkLossShape(loss)
    const random = new Random(seed)
    const sequences = Array.from({ length: 5 }, () => randomInputs(random, 20))
    expect(checkLossGradient(loss, sequences), seedWords).toBe(true)
  })
})

describe('the check by finite differences', () => {
  const inputs = () => [randomInputs(new Random(seed), 40)]
  /** REINFORCE with a slip: `gradient` and `value` are what each token adds, without A / N. */
  const reinforce =
    (gradient: (n: number) => number, value: (l: number, frozen: number, n: number) => number): LossFunction =>
    (x) => {
      const out = { gradient: new Float32Array(x.logprobs.length), loss: 0 }
      x.lossMask.forEach((counts, t) => {
        if (!counts) return
        out.gradient[t] = gradient(x.lossTokenCount) * x.advantages[t]
        out.loss += value(x.logprobs[t], x.frozenLogprobs[t], x.lossTokenCount) * x.advantages[t]
      })
      return out
    }

  test('a right one passes', () => {
    expect(
      checkLossGradient(
        custom(
          reinforce(
            (n) => -1 / n,
            (l, _f, n) => -l / n,
          ),
        ),
        inputs(),
      ),
    ).toBe(true)
  })
  test('a gradient that is 3% off, and one that forgets tokens that count little', () => {
    const [x] = inputs()
    const uneven = [{ ...x, advantages: x.advantages.map((_, t) => (t % 2 === 0 ? 1 : 0.02)) }]
    const check = (factor: (advantage: number) => number) => {
      const run: LossFunction = ({ logprobs, advantages, lossMask }) => {
        const weights = advantages.map((advantage, t) => advantage * lossMask[t])
        const loss = -logprobs.reduce((sum, l, t) => sum + weights[t] * l, 0)
        return { gradient: weights.map((weight) => -factor(weight) * weight), loss }
      }
      return checkLossGradient(custom(run), uneven)
    }
    expect(check(() => 1)).toBe(true)
    for (const factor of [0.97, 1.03]) expect(() => check(() => factor)).toThrow('tokens disagree')
    expect(() => check((advantage) => (advantage === 1 ? 1 : 0))).toThrow('tokens disagree')
  })
  test('a wrong sign', () => {
    const loss = custom(
      reinforce(
        (n) => 1 / n,
        (l, _f, n) => -l / n,
      ),
    )
    expect(() => checkLossGradient(loss, inputs())).toThrow(
      /mine\.ts says that dLoss\/dlogprob of token \d+ of sequence 0 is .* The sign is wrong/,
    )
  })
  test('N on one side only', () => {
    const loss = custom(
      reinforce(
        () => -1,
        (l, _f, n) => -l / n,
      ),
    )
    expect(() => checkLossGradient(loss, inputs())).toThrow(/differ by the factor lossTokenCount \(120\)/)
  })
  test('a weight under a stop-gradient: frozenLogprobs passes, logprobs is told so', () => {
    const weighted =
      (from: 'logprobs' | 'frozenLogprobs'): LossFunction =>
      (x) => {
        const out = { gradient: new Float32Array(x.logprobs.length), loss: 0 }
        x.lossMask.forEach((counts, t) => {
          if (!counts) return
          const weight = Math.exp(x[from][t])
          out.gradient[t] = -weight * x.advantages[t]
          out.loss -= weight * x.advantages[t] * x.logprobs[t]
        })
        return out
      }
    expect(checkLossGradient(custom(weighted('frozenLogprobs')), inputs())).toBe(true)
    expect(() => checkLossGradient(custom(weighted('logprobs')), inputs())).toThrow(/frozenLogprobs.*checkGradient = false/)
  })
  test('a kink passes with any slope between its sides', () => {
    // |ratio - 1| on fresh samples: every token sits on the kink.
    const slopeAt =
      (kink: number): LossFunction =>
      (x) => {
        const over = x.logprobs.map((l, t) => (x.lossMask[t] ? Math.exp(l - x.inferenceLogprobs[t]) - 1 : 0))
        const gradient = over.map((o, t) => x.lossMask[t] * (Math.sign(o) || kink) * (1 + o))
        return { gradient, loss: over.reduce((sum, o) => sum + Math.abs(o), 0) }
      }
    const fresh = inputs().map((x) => ({ ...x, inferenceLogprobs: x.logprobs }))
    for (const kink of [-1, 0, 1]) expect(checkLossGradient(custom(slopeAt(kink)), fresh)).toBe(true)
    for (const kink of [-1.1, 1.1]) expect(() => checkLossGradient(custom(slopeAt(kink)), fresh)).toThrow('tokens disagree')
  })
  test('a ratio that is missing, and a KL term with a wrong slope, where all of both are still 1 and 0', () => {
    const fresh = inputs().map((x) => ({ ...x, inferenceLogprobs: x.logprobs, refLogprobs: x.logprobs }))
    /** -ratio A + beta x (exp(d) - d - 1), with slips in its gradient. */
    const check = (slips: { ratio?: (ratio: number) => number; kl?: number; beta?: number }) => {
      const { ratio: ofRatio = (ratio) => ratio, kl = 1, beta = 1 } = slips
      const run: LossFunction = (x) => {
        const out = { gradient: new Float32Array(x.logprobs.length), loss: 0 }
        x.lossMask.forEach((counts, t) => {
          if (!counts) return
          const ratio = Math.exp(x.logprobs[t] - x.inferenceLogprobs[t])
          const d = x.refLogprobs![t] - x.logprobs[t]
          out.gradient[t] = -ofRatio(ratio) * x.advantages[t] + kl * beta * (1 - Math.exp(d))
          out.loss += -ratio * x.advantages[t] + beta * (Math.exp(d) - d - 1)
        })
        return out
      }
      return checkLossGradient(custom(run), fresh)
    }
    expect(check({})).toBe(true)
    expect(() => check({ kl: -1 })).toThrow(/where the importance ratio is (?!1,)/)
    expect(() => check({ ratio: () => 1 })).toThrow(/where the importance ratio is (?!1,)/)
    expect(() => check({ ratio: () => 1, beta: 0 })).toThrow(/The two differ by the ratio/)
  })
  test('nothing to compare where all advantages are 0', () => {
    const flat = inputs().map((x) => ({ ...x, advantages: new Float32Array(x.advantages.length) }))
    expect(
      checkLossGradient(
        custom(
          reinforce(
            (n) => -1 / n,
            (l, _f, n) => -l / n,
          ),
        ),
        flat,
      ),
    ).toBe(false)
  })
})

describe('the shape check', () => {
  const shaped = (change: (out: { gradient: Float32Array; loss: number; metrics?: Record<string, number> }) => unknown) =>
    custom((x) => change({ gradient: new Float32Array(x.logprobs.length), loss: 0 }) as ReturnType<LossFunction>)
  test.each([
    ['nothing', () => undefined, /must return \{ gradient: Float32Array of 6 values/],
    ['a promise', (out: object) => Promise.resolve(out), /it returned a promise \(the function must not be async\)/],
    ['an array', (out: object) => ({ ...out, gradient: [0, 0, 0, 0, 0, 0] }), /it returned gradient: Array of 6/],
    ['too few', (out: object) => ({ ...out, gradient: new Float32Array(2) }), /Float32Array of 2/],
    ['no loss', (out: object) => ({ ...out, loss: undefined }), /it returned gradient: Float32Array of 6, loss: undefined/],
    ['NaN', (out: object) => ({ ...out, gradient: Float32Array.of(0, 0, NaN, 0, 0, 0) }), /gives token 2 the gradient NaN/],
    ['outside', (out: object) => ({ ...out, gradient: Float32Array.of(0, 1, 0, 0, 0, 0) }), /token 1 .* lossMask is 0/],
    ['loss', (out: object) => ({ ...out, loss: Infinity }), /is Infinity/],
    ['metric', (out: object) => ({ ...out, metrics: { kl: '1' } }), /the metric kl as "1"/],
  ])('%s', (_name, change, message) => {
    expect(() => checkLossShape(shaped(change as never))).toThrow(message)
  })
  test('a loss that throws is named with its place', () => {
    const loss = custom(() => {
      throw new TypeError('no such thing')
    })
    expect(() => checkLossShape(loss)).toThrow(/The loss mine\.ts threw: no such thing \(at .*losses\.test\.ts:\d+/)
  })
})

test('cispo_mask keeps a ratio that is exactly at a bound, in TypeScript and in WGSL', async () => {
  const device = await gpu
  const loss = await loadLoss('cispo_mask', { mask_ratio_low: 1, mask_ratio_high: 1 })
  const logprobs = Float32Array.of(-1, -1, -1)
  const inferenceLogprobs = Float32Array.of(-1, -0.5, -2)
  const inputs = { ...randomInputs(new Random(seed), 3), logprobs, inferenceLogprobs, advantages: Float32Array.of(2, 2, 2) }
  const out = runHostLoss(loss, { ...inputs, lossMask: Uint8Array.of(1, 1, 1), lossTokenCount: 4 })
  expect([...out.gradient]).toEqual([-0.5, 0, 0])
  const [up, none] = [(data: Float32Array) => device.upload(data, 'test'), () => new Float32Array(3).fill(NaN)]
  const t = { logprobs: up(logprobs), inferenceLogprobs: up(inferenceLogprobs), advantages: up(inputs.advantages) }
  const [gradient, value] = [up(none()), up(none())]
  runLossKernel(device, loss.kernel!, { ...t, gradient, loss: value }, 3, { lossTokenCount: 4 })
  expect([...(await device.readF32(gradient, 3))]).toEqual([-0.5, 0, 0])
  for (const buffer of [...Object.values(t), gradient, value]) buffer.release()
})

test('a loss that writes into what it is given changes it for itself alone', () => {
  const inputs = { ...randomInputs(new Random(seed), 8), refLogprobs: new Float32Array(8).fill(-1) }
  const before = structuredClone(inputs)
  const loss = custom((x) => {
    for (const array of Object.values(x)) if (ArrayBuffer.isView(array)) (array as Float32Array).fill(9)
    return { gradient: x.logprobs, loss: 0 }
  })
  expect(runHostLoss(loss, inputs).gradient).toEqual(new Float32Array(8).fill(9))
  expect(inputs).toEqual(before)
})

test('a loss that needs a reference model says which key gives one', () => {
  const loss = custom((x) => ({ gradient: new Float32Array(x.logprobs.length), loss: x.refLogprobs![0] }))
  expect(() => checkLossShape(loss)).toThrow(
    /threw: .* It reads refLogprobs, which exist only with trainer\.args\.use_ref_model = true/,
  )
  checkLossShape(loss, true)
})

describe('files', () => {
  const file = (name: string, text: string) => {
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, name), text)
    return join(folder, name)
  }
  test('the shipped example passes both checks', async () => {
    const loss = await loadLoss('configs/losses/ppo-clip.ts', bounds, { clip_low: 0.2, clip_high: 0.28 })
    checkLossShape(loss)
    expect(checkLossGradient(loss, [randomInputs(new Random(seed), 60)]), seedWords).toBe(true)
  })
  test('so does on-policy distillation, which needs a teacher', async () => {
    const distill = (args: Record<string, unknown>) => loadLoss('configs/losses/on-policy-distillation.ts', bounds, args)
    const random = new Random(seed)
    const inputs = randomInputs(random, 60)
    inputs.refLogprobs = inputs.logprobs.map((l) => l + 3 * random.normal())
    for (const args of [{}, { reward: 1, distill: 0.5, most: 2 }]) {
      const loss = await distill(args)
      checkLossShape(loss, true)
      expect(checkLossGradient(loss, [inputs]), seedWords).toBe(true)
    }
    // Fresh samples: every token goes the way that the teacher says, as far as the two are apart, at most 2.
    const fresh = { ...inputs, inferenceLogprobs: inputs.logprobs, frozenLogprobs: inputs.logprobs }
    const { gradient } = runHostLoss(await distill({ most: 2 }), fresh)
    for (const [t, g] of gradient.entries()) {
      const above = Math.min(Math.max(inputs.refLogprobs[t] - inputs.logprobs[t], -2), 2)
      expect(g).toBeCloseTo(inputs.lossMask[t] ? -above / inputs.lossTokenCount : 0, 6)
    }
    const { run, ...about } = await distill({})
    expect(() => checkLossShape({ run, ...about }, false)).toThrow(/needs a teacher: set trainer\.args\.ref_model/)
  })
  test('checkGradient = false is heard', async () => {
    const path = file('own.ts', 'export const checkGradient = false\nexport default () => ({})\n')
    expect((await loadLoss(path, bounds)).checked).toBe(false)
  })
  test('its arguments are loss_args', async () => {
    const loss = await loadLoss(
      file('args.ts', 'export default (x, args) => ({ gradient: x.logprobs, loss: args.a })\n'),
      bounds,
      { a: 3 },
    )
    expect(loss.args).toEqual({ a: 3 })
  })
  test.each([
    ['nowhere.ts', undefined, /there is no such file, and the built-in losses are cispo, cispo_mask/],
    ['constructor', undefined, /there is no such file/],
    ['broken.ts', 'export default (\n', /cannot be loaded/],
    ['empty.ts', 'export const x = 1\n', /must export a function as its default/],
  ])('%s', async (name, text, message) => {
    const path = text === undefined ? name : file(name, text)
    await expect(loadLoss(path, bounds)).rejects.toThrow(message)
  })
})
