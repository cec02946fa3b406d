/** A generator that follows a script behind the real chat client, and a small real environment: everything of a run but the model. */
import { neutralSampling } from '../../src/common/sampling.ts'
import type { GenerationRequest, GenerationResult, Generator, PolicyVersion, Rollout } from '../../src/common/types.ts'
import { PolicyClient, Rubric, SingleTurnEnv, type RewardFunction } from '../../src/environments/index.ts'
import { Progress } from '../../src/monitor/progress.ts'
import groupMean from '../../src/orchestrator/advantages/group_mean.ts'
import type { Algorithm } from '../../src/orchestrator/algorithm.ts'
import zeroVariance from '../../src/orchestrator/filters/zero_variance.ts'
import type { OrchestratorOptions } from '../../src/orchestrator/options.ts'
import { Orchestrator } from '../../src/orchestrator/orchestrator.ts'
import type { RunEnvironment } from '../../src/orchestrator/tasks.ts'

export interface Reply {
  /** One token a character. */
  text: string
  afterMs?: number
  /** Settles only when it is aborted, or never where `deaf`. */
  hangs?: boolean
  deaf?: boolean
  fails?: string
  /** Cut off by max_tokens. */
  cut?: boolean
  logprobs?: number[]
}

/** Asked for the n-th reply to a prompt (in the order of requests). */
export type Script = (prompt: string, n: number, request: GenerationRequest) => Reply

export class ScriptedGenerator implements Generator {
  version: PolicyVersion = 0
  readonly requests: { prompt: string; seed: number; version: PolicyVersion; temperature: number }[] = []
  running = 0
  mostRunning = 0
  aborted = 0
  readonly #script: Script

  constructor(script: Script) {
    this.#script = script
  }

  async generate(request: GenerationRequest): Promise<GenerationResult> {
    const prompt = String.fromCharCode(...request.promptIds)
    const version = this.version
    const { seed, temperature } = request.sampling
    const n = this.requests.push({ prompt, seed, version, temperature }) - 1
    const reply = this.#script(prompt, n, request)
    this.mostRunning = Math.max(this.mostRunning, ++this.running)
    try {
      const aborted = await waitFor(reply, request.signal)
      if (aborted) this.aborted++
      if (reply.fails) throw new Error(reply.fails)
      const ids = aborted ? [] : Array.from(reply.text, (char) => char.charCodeAt(0))
      const logprobs = reply.logprobs ?? ids.map(() => -0.5)
      // The first half under the weights of its beginning, the rest under those of its end: published in flight.
      const versions = ids.map((_, i) => (i < ids.length / 2 ? version : this.version))
      const finishReason = aborted ? 'abort' : reply.cut ? 'length' : 'stop'
      const stopCondition = aborted ? 'abort' : reply.cut ? 'max_tokens' : 'eos'
      return { text: reply.text, ids, logprobs, versions, finishReason, stopCondition }
    } finally {
      this.running--
    }
  }
}

/** True when the signal ended it. */
async function waitFor({ afterMs = 0, hangs, deaf }: Reply, signal?: AbortSignal): Promise<boolean> {
  if (deaf) return await new Promise(() => {})
  return await new Promise<boolean>((resolve) => {
    if (signal?.aborted) return resolve(true)
    const timer = hangs ? undefined : setTimeout(() => resolve(false), afterMs)
    signal?.addEventListener('abort', () => {
      clearTimeout(timer)
      resolve(true)
    })
  })
}

/** The reward is the number that the answer says; other answers fail. */
const says: RewardFunction = ({ text }) => {
  if (text === '' || !Number.isFinite(Number(text))) throw new Error(`"${text}" is no number`)
  return Number(text)
}

export async function numbersEnv(name = 'numbers', rows = 6, reward: RewardFunction = says): Promise<RunEnvironment> {
  const make = (word: string, count: number) =>
    Array.from({ length: count }, (_, i) => ({ prompt: `${name} ${word} ${i}`, answer: `${i}` }))
  const env = await SingleTurnEnv.create({
    id: name,
    rubric: new Rubric({ says: reward }),
    dataset: make('train', rows),
    evalDataset: make('held', 3),
  })
  return { name, env, weight: 1 }
}

export const algorithm: Algorithm = {
  advantage: { name: 'group_mean', run: groupMean, args: {} },
  filters: [{ name: 'zero_variance', run: zeroVariance, args: {} }],
}

export async function makeOrchestrator(
  script: Script,
  over: Partial<OrchestratorOptions> & { maxPromptTokens?: number } = {},
): Promise<{ orchestrator: Orchestrator; generator: ScriptedGenerator; progress: Progress }> {
  const generator = new ScriptedGenerator(script)
  const encode = (messages: { content: string }[]) => Array.from(messages.at(-1)!.content, (char) => char.charCodeAt(0))
  const progress = over.progress ?? new Progress()
  const { maxPromptTokens = 100, ...options } = over
  const orchestrator = new Orchestrator({
    environments: options.environments ?? [await numbersEnv()],
    client: new PolicyClient(generator, encode, { maxPromptTokens }),
    sampling: { ...neutralSampling, max_tokens: 8 },
    seed: 1,
    groupsPerStep: 2,
    rolloutsPerExample: 3,
    maxConcurrent: 64,
    maxSampling: 64,
    maxOffPolicySteps: 8,
    generationTimeoutSeconds: 20,
    rewardTimeoutSeconds: 20,
    vocabulary: 65_536,
    algorithm,
    progress,
    ...options,
  }) // prettier-ignore
  return { orchestrator, generator, progress }
}

/** A finished rollout of three tokens. */
export function rollout(over: Partial<Rollout> = {}): Rollout {
  return {
    exampleId: 0, env: 'numbers', group: '1.0', index: 0, prompt: [{ role: 'user', content: 'q' }], completion: [{ role: 'assistant', content: 'a' }],
    answer: 'a', info: {}, reward: 1, metrics: {}, promptIds: [10, 11], completion_tokens: { ids: [5, 6, 7], logprobs: [-0.1, -0.2, -0.3], versions: [0, 0, 0] },
    isTruncated: false, stopCondition: 'eos', error: null, seed: 1, timing: { generation_ms: 1, scoring_ms: 1, total_ms: 2 }, ...over,
  } // prettier-ignore
}
