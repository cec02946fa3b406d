/** reasoning-gym through verifiers' own ReasoningGymEnv, unchanged: what Python says of an answer is what a run trains on. */
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import { seed, seedWords } from '../seed.ts'
import { asPythonJudges, opened, root, withoutVerifiers } from './helpers.ts'

describe.skipIf(withoutVerifiers)('reasoning-gym', () => {
  test("rewards and metrics are those of Python's own env.evaluate on the same answers, right, half right and wrong ones", async () => {
    const args = { gym: ['spell_backward', 'chain_sum', 'letter_counting'].map((name) => ({ name, weight: 1, config: {} })), num_train_examples: 10, num_eval_examples: 40, seed: seed % 1000 } // prettier-ignore
    const id = 'reasoning-gym-env'
    const env = await opened(id, args, { python: true })
    expect(env.dataset).toHaveLength(10)
    expect(env.evalDataset).toHaveLength(40)
    expect(new Set(env.evalDataset.map(({ info }) => info.source_dataset)).size).toBe(3)
    const random = new Random(seed)
    const answers: Record<string, string> = {}
    for (const { prompt } of env.evalDataset) {
      const text = prompt.at(-1)!.content
      const word = /: (\w+)$/.exec(text)?.[1] ?? ''
      const backward = word.split('').toReversed().join('')
      const sum = /problem: ([\d +-]+) =/.exec(text)?.[1].match(/[+-]? ?\d+/g)?.reduce((total, term) => total + Number(term.replace(' ', '')), 0) // prettier-ignore
      const right = sum === undefined ? backward || String(random.int(4)) : String(sum)
      const said = [right, right, right.slice(1), '', 'I do not know'][random.int(5)]
      answers[text] = random.int(4) === 0 ? said || 'no' : `Well. <answer>${said}</answer>`
    }
    const [rewards] = await asPythonJudges([{ env, id, args, folders: [join(root, 'environments', 'python')], answers }])
    // The answers tell: some are right, some are not.
    expect(Math.max(...rewards), seedWords).toBe(1)
    expect(Math.min(...rewards), seedWords).toBeLessThan(0.3)
  })
})
