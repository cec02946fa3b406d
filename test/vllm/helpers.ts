/** The trainer's side of a vLLM test: the tiny model on the device, and samplers over real servers that are sent its weights. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Gpu } from '../../src/gpu/gpu.ts'
import { VllmSampler, type VllmSamplerOptions } from '../../src/inference/vllm/sampler.ts'
import type { LaunchOptions } from '../../src/inference/vllm/server.ts'
import { loadDecoder } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { openModel, type ModelFiles } from '../../src/model/files/open.ts'
import type { WeightsAbout } from '../../src/trainer/checkpoint.ts'
import { writeSamplerWeights } from '../../src/trainer/sampler-weights.ts'
import { moveAdapter, scoreAfter } from '../inference/helpers.ts'
import type { GeneratorUnderTest } from '../inference/generator.suite.ts'

export const root = join(import.meta.dirname, '../..')
export const tiny = join(root, 'models/tiny')
export const python = join(root, '.venv-vllm/bin/python')
export const maxLength = 512
export const rank = 8

/**
 * To be called first by each file of tests: throws where there is no vLLM, as CI sets DAWN_RL_VLLM and must have it.
 * The servers of a file get one core. Of its own accord the CPU build pins its threads to all cores but the last, so the servers of two files that run side by
 * side shared one core of two, with the compiler that each of them calls: one did not answer for 400 s. Not pinned at all, its threads wait for each other.
 */
export function vllmIsThere(): boolean {
  const worker = Number(process.env.VITEST_POOL_ID ?? 1) - 1
  process.env.VLLM_CPU_OMP_THREADS_BIND ??= String(worker % availableParallelism())
  if (existsSync(python)) return true
  throw new Error(`there is no ${python}: run bash scripts/test-vllm.sh`)
}

/** A folder that is gone after the tests of a file. */
export function scratch(): { path: string; remove: () => void } {
  const path = mkdtempSync(join(tmpdir(), 'dawn-rl-vllm-'))
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) }
}

/** How a server of the tiny model is started; `changes` are [inference.args] and what else differs. */
export function launchOf(folder: string, name: string, changes: Partial<LaunchOptions> = {}): LaunchOptions {
  const args = { dtype: 'float32', enforce_eager: true, ...changes.args }
  return {
    python, logFile: join(folder, `${name}.log`), model: tiny, servedName: 'base', maxLength, maxSequences: 16, loraRank: rank,
    maxAsyncLevel: 1, logprobsMode: 'processed_logprobs', ...changes, args,
  } // prettier-ignore
}

/** The trainer: a decoder with something to train, and what it is asked by a sampler. */
export interface TestTrainer {
  decoder: Decoder
  files: ModelFiles
  weights: WeightsAbout
  encode: (text: string) => number[]
  decode: (ids: readonly number[]) => string
}

export async function openTrainer(gpu: Gpu, kind: 'lora' | 'full', loraRank = rank): Promise<TestTrainer> {
  const files = await openModel(tiny)
  const tokenizer = await files.tokenizer()
  const targetModules = ['q_proj', 'v_proj', 'down_proj']
  const lora = { rank: loraRank, alpha: 16, dropout: 0, targetModules, seed: 1 }
  const decoder = await loadDecoder(gpu, files, { round: true, ...(kind === 'lora' ? { lora } : { full: true }) })
  const about = {
    r: loraRank,
    loraAlpha: 16,
    loraDropout: 0,
    targetModules,
    useRslora: false,
    baseModel: 'tiny',
  }
  const weights: WeightsAbout = kind === 'lora' ? { lora: about, rawConfig: {} } : { rawConfig: files.rawConfig() }
  if (kind === 'lora') await moveAdapter(decoder, 0)
  return {
    decoder, files, weights,
    encode: (text) => tokenizer.encodeChat([{ role: 'user', content: text }], { addGenerationPrompt: true }),
    decode: (ids) => tokenizer.decode([...ids]),
  } // prettier-ignore
}

/** What a sampler says of its server stands in the test's output: a server that dies where no test killed it is to be seen there. */
const says = (line: string): void => console.warn(`sampler: ${line}`)

export function samplerOptions(
  trainer: TestTrainer,
  where: VllmSamplerOptions['where'],
  weightsDir: string,
  changes: Partial<VllmSamplerOptions> = {},
): VllmSamplerOptions {
  const { decoder, weights, files } = trainer
  return {
    where, weightsDir, model: tiny, kind: weights.lora ? 'lora' : 'full', maxLength, maxAsyncLevel: 1, logprobsMode: 'processed_logprobs',
    startupMs: 400_000, maxRestarts: 3, log: says, runName: 'test', rank: weights.lora?.r ?? 0, vocabulary: files.config.vocabSize,
    rules: { eosTokenIds: new Set(), decode: trainer.decode }, probeIds: trainer.encode('Reverse the text: probe'), pushMs: 120_000,
    hasFirst: !weights.lora, write: (dir) => writeSamplerWeights(dir, decoder, weights),
    score: async (ids) => [0, ...(await scoreAfter(decoder, [ids[0]], ids.slice(1), 1))],
    ...changes,
  } // prettier-ignore
}

/** A sampler as the suite of generators takes it. */
export function underTest(trainer: TestTrainer, sampler: VllmSampler): GeneratorUnderTest {
  const { decoder, encode, decode } = trainer
  return {
    generator: sampler,
    prompts: ['Reverse the text: hello', 'Reverse the text: abc', 'Write a long story about numbers'].map(encode),
    decode: (ids) => decode(ids),
    maxLength,
    batchInvariant: false,
    score: (promptIds, ids, temperature) => scoreAfter(decoder, promptIds, ids, temperature),
    // Another order of summation, in float32.
    bound: 2e-4,
    push: async () => {
      await moveAdapter(decoder, sampler.version + 1)
      await sampler.push(sampler.version + 1)
    },
    switchesInFlight: !trainer.weights.lora,
    tellsFiltered: false,
    close: () => sampler.close(),
  }
}

/**
 * Asks again and again, so that whatever happens meanwhile comes in the middle of a request. Few at once: on a slow machine a request
 * every so often would make a queue that the push's probe waits behind until its time is over.
 * @returns ends it, and gives all that was asked
 */
export function keepAsking<T>(ask: (nth: number) => Promise<T>): () => Promise<T>[] {
  const asked: Promise<T>[] = []
  let open = 0
  const begin = () => {
    if (open === 4) return
    open++
    const one = ask(asked.length).finally(() => open--)
    // Awaited at the end; where the test fails before, its own error is the one to tell.
    one.catch(() => {})
    asked.push(one)
  }
  begin()
  const timer = setInterval(begin, 50)
  return () => {
    clearInterval(timer)
    return asked
  }
}
