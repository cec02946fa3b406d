/** Our step of reinforcement learning at TRL's shape: orchestrator, environment, chat client, engine and trainer of a run, nothing sampled ahead. */
import { PolicyClient, Rubric, SingleTurnEnv } from '../../src/environments/index.ts'
import { Engine } from '../../src/inference/engine.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import { Progress } from '../../src/monitor/progress.ts'
import groupMean from '../../src/orchestrator/advantages/group_mean.ts'
import { Orchestrator } from '../../src/orchestrator/orchestrator.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { LORA, sampling, type Bench } from './ours-shared.ts'
import { trainerOf } from './ours-trainer.ts'
import { median } from './table.ts'

/** The share of e among the letters; TRL's side has the same. */
const shareOfE = ({ text }: { text: string }): number =>
  text.split('e').length - 1 === 0 ? 0 : (text.split('e').length - 1) / text.length

/** Steps that each sample and then train: seconds for a step, and the part that generation took. */
export async function reinforcementSteps({ job, gpu, files, report }: Bench): Promise<void> {
  const decoder = await loadDecoder(gpu, files, { round: true, ...(job.lora ? { lora: LORA } : { full: true }) })
  const tokenizer = await files.tokenizer()
  const encode = (messages: Parameters<typeof tokenizer.encodeChat>[0]) =>
    tokenizer.encodeChat(messages, { addGenerationPrompt: true })
  const longest = Math.max(...job.prompts.map((content) => encode([{ role: 'user', content }]).length))
  const engine = new Engine(decoder, {
    maxSequences: job.rollouts,
    full: true,
    maxLength: longest + job.tokens,
    eosTokenIds: [],
    decode: (ids) => tokenizer.decode(ids),
  })
  const env = await SingleTurnEnv.create({
    id: 'peers',
    rubric: new Rubric({ share_of_e: shareOfE }),
    dataset: job.prompts.map((prompt) => ({ prompt, answer: '' })),
    evalSize: 0,
  })
  const orchestrator = new Orchestrator({
    environments: [{ name: 'peers', env, weight: 1 }],
    client: new PolicyClient(engine, encode),
    sampling: sampling({ max_tokens: job.tokens }),
    seed: 1,
    groupsPerStep: job.rollouts / job.group,
    rolloutsPerExample: job.group,
    maxConcurrent: job.rollouts,
    maxSampling: job.rollouts,
    maxOffPolicySteps: 0,
    generationTimeoutSeconds: 600,
    rewardTimeoutSeconds: 60,
    vocabulary: decoder.config.vocabSize,
    // No filter: TRL also trains on groups with equal rewards.
    algorithm: { advantage: { name: 'group_mean', run: groupMean, args: {} }, filters: [] },
    progress: new Progress(),
  })
  const loss = await loadLoss('cispo', { mask_ratio_low: 0.125, mask_ratio_high: 8 })
  const { checkpointing, microBatch: microBatchTokens } = job
  const trainer = trainerOf(decoder, loss, { microBatchTokens, checkpointing, maxGradNorm: 1 })
  const [steps, generations]: number[][] = [[], []]
  let promptTokens = 0
  for (let step = 1; step <= job.steps + 1; step++) {
    const begin = performance.now()
    const { batch, rollouts } = await orchestrator.batch(step, step - 1)
    const sampled = performance.now()
    const { skipped } = await trainer.trainStep(batch, { published: () => engine.publish(step) })
    const short = rollouts.find(({ rollout }) => rollout.completion_tokens.ids.length !== job.tokens)
    if (skipped || short)
      throw new Error(skipped ? `step ${step} trained nothing` : `a rollout ended early: ${short!.rollout.error}`)
    promptTokens = rollouts.reduce((sum, { rollout }) => sum + rollout.promptIds.length, 0)
    steps.push((performance.now() - begin) / 1000)
    generations.push((sampled - begin) / 1000)
  }
  await orchestrator.close()
  await engine.close()
  report({ name: job.work, value: median(steps.slice(1)), generation: median(generations.slice(1)), promptTokens })
}
