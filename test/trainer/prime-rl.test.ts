/** The files of docs/algorithms.md that do what prime-rl does, against numbers worked out by hand from its formulas (loss.py, algo/grpo.py). */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { loadAlgorithm } from '../../src/orchestrator/plugins.ts'
import { assignAdvantages } from '../../src/orchestrator/algorithm.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { rollout } from '../orchestrator/helpers.ts'
import { tempFolder } from './helpers.ts'

const folder = tempFolder()
function example(name: string): string {
  const page = readFileSync(join(import.meta.dirname, '../../docs/algorithms.md'), 'utf8')
  const [, body] = [...page.matchAll(/^```ts \w+\n([\s\S]*?)^```$/gm)].find(([, text]) => text.startsWith(`// ${name}`))!
  const path = join(folder, name)
  writeFileSync(path, body)
  return path
}

test('dppo.ts: tokens are dropped by how far their probability moved, in the direction of the advantage', async () => {
  const loss = await loadLoss(example('dppo.ts'), { mask_ratio_low: 0, mask_ratio_high: 1 })
  const one = (now: number, then: number, advantage: number, args = {}) => {
    const logprobs = Float32Array.of(0, Math.log(now))
    const inferenceLogprobs = Float32Array.of(0, Math.log(then))
    const inputs = { logprobs, frozenLogprobs: logprobs, inferenceLogprobs, lossTokenCount: 10 }
    const arrays = { advantages: Float32Array.of(0, advantage), lossMask: Uint8Array.of(0, 1), entropy: new Float32Array(2) }
    const out = loss.run({ ...inputs, ...arrays }, args)
    return [out.loss, out.gradient[1], out.metrics!.masked]
  }
  const near = (got: number[], wanted: number[]) => got.forEach((value, i) => expect(value).toBeCloseTo(wanted[i], 6))
  const square = Math.log(2) ** 2 / 10 // of a ratio of 2 or of 1/2, / N
  const slope = (2 * Math.log(2)) / 10
  // From 0.1 to 0.2 is a ratio of 2 and a move of 0.1: kept. From 0.3 to 0.6 it is one of 0.3: dropped, where the advantage is above 0.
  near(one(0.2, 0.1, 1), [1e-3 * square - 0.2, 1e-3 * slope - 0.2, 0])
  near(one(0.6, 0.3, 1), [1e-3 * square, 1e-3 * slope, 1])
  near(one(0.6, 0.3, -1), [1e-3 * square + 0.2, 1e-3 * slope + 0.2, 0])
  near(one(0.3, 0.6, -1), [1e-3 * square, -1e-3 * slope, 1])
  near(one(0.3, 0.6, 1), [1e-3 * square - 0.05, -1e-3 * slope - 0.05, 0])
  near(one(0.6, 0.3, 1, { mask_high: 0.4, kl_tau: 0 }), [-0.2, -0.2, 0])
})

test('length_penalty.ts: of two that earned the same the shorter one has the advantage, the more the better the group is', async () => {
  const given = { advantage: example('length_penalty.ts'), advantage_args: {}, filters: [], filter_args: {} }
  const ofLength = (tokens: number, reward: number, turns = 1) => {
    const ids = Array.from({ length: tokens }, () => 5)
    const completion_tokens = { ids, logprobs: ids.map(() => -1), versions: ids.map(() => 0) }
    const played = Array.from({ length: turns }, (_, t) => ({ branch: t === 0, promptIds: [1, 2], sampled: tokens / turns }))
    return rollout({ reward, completion_tokens, ...(turns > 1 && { turns: played }) })
  }
  const advantages = async (group: ReturnType<typeof rollout>[], args: Record<string, number> = {}) =>
    assignAdvantages(group, await loadAlgorithm({ ...given, advantage_args: args })).map(({ advantage }) => advantage as number)
  const near = (got: number[], wanted: number[]) => got.forEach((value, i) => expect(value).toBeCloseTo(wanted[i], 6))
  // Penalties of 0.25 and 0.125 of a mean of 1; prompt and turns are the same.
  near(await advantages([ofLength(10, 1), ofLength(5, 1)]), [-0.0625, 0.0625])
  // With a mean of 0.5: 1 - 0.125 and 0 - 0.0625, each with 0.05 + 0.05 less.
  near(await advantages([ofLength(10, 1), ofLength(5, 0)]), [0.46875, -0.46875])
  // As long, in two turns and in one: 4 and 2 tokens that were given, 2 turns and 1.
  near(await advantages([ofLength(8, 1, 2), ofLength(8, 1)]), [-0.05, 0.05])
  near(await advantages([ofLength(8, 1, 2), ofLength(8, 1)], { input: 0, turns: 0 }), [0, 0])
})
