/** What `eval --run` makes of the folder of a run. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { closeEnvironments, planEval } from '../../src/cli/eval-plan.ts'

test('a run of sft: its environment, its checkpoints, and the model that it began with where there was one', async () => {
  const run = mkdtempSync(join(tmpdir(), 'dawn-rl-plan-'))
  const step = join(run, 'checkpoints', 'step_3')
  mkdirSync(step, { recursive: true })
  writeFileSync(join(step, 'STABLE'), '{}')
  const options = { run, base: true, split: 'eval', maxConcurrent: 1, outputDir: run, seed: 0, solvedAt: 0.5, numExamples: 2 } as const // prettier-ignore
  const planOf = async (model: string) => {
    writeFileSync(join(run, 'config.toml'), `${model}\n[data.env]\nid = "reverse-text"\n[trainer.args]\nuse_lora = false\n`)
    const plan = await planEval([], options)
    await closeEnvironments(plan.environments)
    return plan
  }
  try {
    const named = await planOf('model = "models/tiny"')
    expect(named.environments.map(({ name, rows }) => [name, rows.length])).toEqual([['reverse-text', 2]])
    expect(named.source).toMatchObject({ kind: 'run', model: 'models/tiny', checkpoints: [step], lora: false, base: true })
    // Each once, and what is no step as it was written.
    const thrice = await planEval([], { ...options, steps: '3, 3,3' })
    expect(thrice.source).toMatchObject({ checkpoints: [step] })
    await expect(planEval([], { ...options, steps: '3,best' })).rejects.toThrow('no checkpoint of step best. There are 3.')
    const made = await planOf('[model.new]\nfamily = "qwen3"\nhidden_size = 64\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\nnum_key_value_heads = 1\nhead_dim = 32') // prettier-ignore
    expect(made.source).toMatchObject({ model: step, checkpoints: [step], base: false })
  } finally {
    rmSync(run, { recursive: true })
  }
})
