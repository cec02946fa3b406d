/** What docs/algorithms.md says of TRL's options, against numbers of TRL's own loss function (test/peers/make_trl_losses.py). */
import { readFileSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { Rollout } from '../../src/common/types.ts'
import groupMean from '../../src/orchestrator/advantages/group_mean.ts'
import type { AdvantageFunction } from '../../src/orchestrator/types.ts'
import { loadLoss, runHostLoss } from '../../src/trainer/losses/index.ts'
import { withKl } from '../../src/trainer/losses/kl.ts'
import type { LossInputs } from '../../src/trainer/losses/types.ts'
import { policyMetrics } from '../../src/trainer/metrics.ts'
import { seed, seedWords } from '../seed.ts'
import { tempFolder } from './helpers.ts'

interface Sequence {
  logprobs: number[]
  inference_logprobs: number[]
  ref_logprobs: number[]
  loss_mask: number[]
  entropy: number[]
  advantage: number
}
interface Case {
  loss: number
  gradients: number[][]
  kl?: number
  cispo_clip_ratio?: number
}

const root = join(import.meta.dirname, '../..')
const trl = JSON.parse(readFileSync(join(root, 'test/fixtures/trl-losses.json'), 'utf8')) as {
  max_length: number
  batch: Sequence[]
  cases: Record<string, Case>
  rewards: number[]
  /** Of another group of the batch. */
  others: number[]
  advantages: Record<'group' | 'batch' | 'none' | 'rloo', number[]>
}
const folder = tempFolder()

/** An example of a page, found by a word in it, as a file that Node can load; around another loss than the one that it imports where that is named. */
function example(page: string, kind: string, word: string, around = `${root}/configs/losses/ppo-clip.ts`): string {
  const bodies = [...readFileSync(join(root, page), 'utf8').matchAll(/^```ts (\w+)\n([\s\S]*?)^```$/gm)]
  const [, , body] = bodies.find(([, of, text]) => of === kind && text.includes(word))!
  const path = join(folder, `${word} around ${basename(around)}`)
  writeFileSync(path, body.replaceAll("'./configs/losses/ppo-clip.ts'", `'${around.replaceAll('\\', '/')}'`))
  return path
}

const total = trl.batch.reduce((sum, { loss_mask }) => sum + loss_mask.reduce((a, b) => a + b), 0)
const sequences = trl.batch.map(({ logprobs, inference_logprobs, ref_logprobs, loss_mask, entropy, advantage }): LossInputs => ({
  logprobs: Float32Array.from(logprobs),
  frozenLogprobs: Float32Array.from(logprobs),
  inferenceLogprobs: Float32Array.from(inference_logprobs),
  refLogprobs: Float32Array.from(ref_logprobs),
  advantages: new Float32Array(logprobs.length).fill(advantage),
  lossMask: Uint8Array.from(loss_mask),
  entropy: Float32Array.from(entropy),
  lossTokenCount: total,
}))

describe("a loss of TRL's", () => {
  const rollouts = trl.batch.length
  const ppo = 'configs/losses/ppo-clip.ts'
  const of = (word: string, around?: string) => example('docs/algorithms.md', 'loss', `function ${word}`, around)
  const bounds = { mask_ratio_low: 0, mask_ratio_high: 1.3 }
  const clips = { low: 0.05, high: 0.08 }
  test.each<[string, () => string, Record<string, number>, number]>([
    ['dapo', () => ppo, { clip_low: 0.2, clip_high: 0.28 }, 0],
    ['bnpo', () => ppo, {}, 0],
    ['grpo', () => of('bySequence'), { rollouts }, 0],
    ['dr_grpo', () => of('bySequence'), { rollouts, length: trl.max_length }, 0],
    ['cispo', () => 'cispo', {}, 0],
    ['gspo', () => of('gspo'), clips, 0],
    ['gspo by sequence', () => of('bySequence', of('gspo')), { rollouts, ...clips }, 0],
    ['luspo', () => of('bySequence', of('gspo')), { rollouts, length: 1, ...clips }, 0],
    ['sapo', () => of('bySequence', of('sapo')), { rollouts }, 0],
    ['vespo', () => of('vespo'), {}, 0],
    ['delta', () => ppo, { clip_high: 0.08, delta: 1.2 }, 0],
    ['top entropy', () => of('someTokens'), { top_entropy: 0.3 }, 0],
    ['off-policy mask', () => of('someTokens'), { off_policy: 0.02 }, 0],
    ['kl', () => ppo, {}, 0.4],
    ['kl with bias correction', () => of('otherKl'), { corrected: 0.4 }, 0],
  ])('%s', async (name, file, args, beta) => {
    const loss = await loadLoss(file(), bounds, args)
    expectNumbers(name, (x) => withKl(runHostLoss(loss, x), x, beta))
  })

  test("a KL taken from the reward, as RLOO's: the gradient in the mean over all answers of a small policy", async () => {
    const random = new Random(seed)
    const [words, beta] = [[0, 1, 2], 0.3]
    // Logits of the first word, and of the second one behind each; answers of two words, and what each earns.
    const [theta, reference] = [0, 1].map(() => Float64Array.from({ length: 12 }, () => random.normal()))
    const answers = words.flatMap((a) => words.map((b) => ({ at: [0, 3 + 3 * a], words: [a, b], reward: random.normal() })))
    const logp = (logits: Float64Array, at: number, word: number) =>
      logits[at + word] - Math.log(total(words.map((w) => Math.exp(logits[at + w]))))
    const logps = (logits: Float64Array, y: (typeof answers)[0]) => y.at.map((at, t) => logp(logits, at, y.words[t]))
    const total = (values: number[]) => values.reduce((sum, value) => sum + value, 0)
    const objective = (logits: Float64Array) =>
      total(
        answers.map((y) => {
          const own = total(logps(logits, y))
          return Math.exp(own) * (y.reward - beta * (own - total(logps(reference, y))))
        }),
      )
    const loss = await loadLoss(of('otherKl'), bounds, { in_reward: beta })
    const gradient = new Float64Array(12)
    for (const y of answers) {
      const logprobs = Float32Array.from([0, ...logps(theta, y)])
      const out = runHostLoss(loss, {
        logprobs,
        frozenLogprobs: logprobs,
        inferenceLogprobs: logprobs,
        refLogprobs: Float32Array.from([0, ...logps(reference, y)]),
        advantages: new Float32Array(3).fill(y.reward - 0.2), // any baseline
        lossMask: Uint8Array.of(0, 1, 1),
        entropy: new Float32Array(3),
        lossTokenCount: 1,
      })
      const chance = Math.exp(total(logps(theta, y)))
      for (const [t, at] of y.at.entries())
        for (const w of words)
          gradient[at + w] += chance * out.gradient[t + 1] * (Number(w === y.words[t]) - Math.exp(logp(theta, at, w)))
    }
    for (const i of theta.keys()) {
      const moved = (by: number) => objective(theta.map((value, j) => value + (i === j ? by : 0)))
      expect(gradient[i], seedWords).toBeCloseTo(-(moved(1e-4) - moved(-1e-4)) / 2e-4, 5)
    }
  })

  /** Loss and derivatives to float32's rounding; a sequence without a loss token is never asked about. */
  function expectNumbers(name: string, run: (x: LossInputs) => { gradient: Float32Array; loss: number }): void {
    const want = trl.cases[name]
    let loss = 0
    for (const [i, x] of sequences.entries()) {
      if (!x.lossMask.includes(1)) continue
      const out = run(x)
      loss += out.loss
      for (const [t, value] of want.gradients[i].entries())
        expect(Math.abs(out.gradient[t] - value), `sequence ${i}, token ${t}`).toBeLessThan(1e-6 * Math.abs(value) + 1e-9)
    }
    expect(Math.abs(loss - want.loss)).toBeLessThan(1e-6)
  }
})

test("metrics of TRL's: kl is ref_kl, and cispo_clip_ratio counts tokens of answers with A > 0 alone", () => {
  const samples = sequences.map((x) => ({ ...x, ids: new Int32Array(x.logprobs.length) }))
  const metrics = policyMetrics({ step: 1, samples, lossTokenCount: total }, sequences, {
    mask_ratio_low: 0,
    mask_ratio_high: 1.3,
  })
  expect(metrics['ref_kl/all/mean']).toBeCloseTo(trl.cases.kl.kl!, 6)
  const high = (x: LossInputs) =>
    x.lossMask.filter((counts, t) => counts && Math.exp(x.logprobs[t] - x.inferenceLogprobs[t]) > 1.3).length
  const above = sequences.filter((x) => x.advantages[0] > 0).reduce((sum, x) => sum + high(x), 0)
  expect(above / total).toBeCloseTo(trl.cases.cispo.cispo_clip_ratio!, 6)
  expect(metrics['is_masked_high/mean']).toBeGreaterThan(trl.cases.cispo.cispo_clip_ratio!)
})

describe("an advantage of TRL's", () => {
  const [group, others] = [trl.rewards, trl.others].map((rewards) => rewards.map((reward) => ({ reward }) as Rollout))
  test.each([
    ['none', () => groupMean],
    ['group', async () => (await load('docs/algorithms.md', 'function normalised')) as AdvantageFunction],
    ['batch', async () => (await load('docs/algorithms.md', 'function batchScaled')) as AdvantageFunction],
    ['rloo', async () => (await load('README.md', 'function leaveOneOut')) as AdvantageFunction],
  ] as const)('%s', async (name, advantage) => {
    const run: AdvantageFunction = await advantage()
    for (const [i, value] of run(group, {}, [group, others]).entries()) expect(value).toBeCloseTo(trl.advantages[name][i], 12)
  })
  const load = async (page: string, word: string) =>
    ((await import(example(page, 'advantage', word))) as { default: unknown }).default
})
