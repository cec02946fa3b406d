/** The sampler of a run: the embedded engine on the trainer's own weights, or a vLLM server to which the weights are sent. */
import { rmSync } from 'node:fs'
import { basename, join, resolve } from 'node:path'
import { whenThereIsRoom } from '../common/faults.ts'
import type { Generator, Message, PolicyVersion } from '../common/types.ts'
import { filtersOf } from '../config/inference-checks.ts'
import type { EmbeddedConfig } from '../config/inference-schema.ts'
import type { RunConfig } from '../config/schema.ts'
import { evenShare } from '../gpu/share.ts'
import { Engine } from '../inference/engine.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { untrained } from '../model/decoder/packed.ts'
import { largestRank } from '../model/files/peft.ts'
import { createLogger } from '../monitor/logger.ts'
import type { Monitor } from '../monitor/monitor.ts'
import type { RunFolder } from '../monitor/run-folder.ts'
import type { LoopParts } from '../orchestrator/loop.ts'
import type { WeightsAbout } from '../trainer/checkpoint.ts'
import { scoreSamples } from '../trainer/gradients.ts'
import { writeSamplerWeights } from '../trainer/sampler-weights.ts'
import type { Inputs } from './train-inputs.ts'

interface RunSampler {
  generator: Generator
  publish: LoopParts['publish']
  /** True when it will never answer again. */
  gone: () => boolean
  close(): Promise<void>
}

interface SamplerParts {
  config: RunConfig
  decoder: Decoder
  inputs: Pick<Inputs, 'model' | 'tokenizer' | 'encode' | 'environments'>
  folder: RunFolder
  monitor: Monitor
  weights: WeightsAbout
}

/**
 * Opens the sampler with the decoder's weights as `version`.
 * @throws UserError for lengths that do not fit, or a server that the run can't sample from
 */
export async function openSampler(parts: SamplerParts, version: PolicyVersion): Promise<RunSampler> {
  const { config, decoder, inputs } = parts
  if (config.inference.backend === 'vllm') return await openVllm(parts, version)
  const { max_num_seqs, max_num_batched_tokens, kv_cache_bytes, kv_cache_dtype, reuse_kv_cache } = config.inference
  const engine = new Engine(decoder, {
    maxSequences: max_num_seqs,
    full: true,
    maxLength: config.trainer.args.max_seq_len,
    maxPrefillRows: max_num_batched_tokens && max_num_batched_tokens - max_num_seqs,
    cacheBytes: kv_cache_bytes,
    kvCacheDtype: kv_cache_dtype,
    cacheAcrossVersions: reuse_kv_cache,
    eosTokenIds: inputs.tokenizer.eosTokenIds,
    decode: (ids, options) => inputs.tokenizer.decode(ids, options),
  })
  engine.publish(version)
  const served = config.inference.serve ? await serveEngine(engine, parts, config.inference) : undefined
  const close = async () => {
    await served?.close()
    await engine.close()
  }
  return { generator: engine, publish: (v) => engine.publish(v), gone: () => false, close }
}

/** Seconds that clients' requests get to finish once the run has ended. */
const DRAIN_SECONDS = 2

/** Serves the policy to other clients while it learns. They can't stop the engine or change its weights. */
async function serveEngine(engine: Engine, parts: SamplerParts, inference: EmbeddedConfig): Promise<{ close(): Promise<void> }> {
  const { config, decoder, folder, monitor, inputs } = parts
  const { startServer } = await import('../inference/server/server.ts')
  const { modelParts } = await import('./serve-parts.ts')
  const { model, tokenizer } = inputs
  const { chat_template_kwargs: chatTemplateKwargs } = config.trainer.args
  const answers = { toolCallParser: 'auto', reasoningParser: 'auto', generationConfig: 'auto', chatTemplateKwargs }
  const ofModel = await modelParts(model, tokenizer, answers)
  const log = createLogger(join(folder.path, 'logs', 'server.log'))
  // With an adapter, the model itself is served too.
  const names = [...new Set(['policy', basename(folder.path), ...(config.trainer.args.use_lora ? [] : [model.name])])]
  const baseName = config.trainer.args.use_lora && !names.includes(model.name) ? model.name : undefined
  // Unlike a run's own rollouts, clients' requests may never end: training must not wait for them.
  decoder.gpu.share.least = evenShare
  const key = process.env.DAWN_RL_API_KEY
  const { serve_host: host, serve_port: port = 8000 } = inference
  try {
    const server = await startServer(
      engine,
      { ...ofModel.parts, names, baseName, log },
      { host, port, apiKeys: key ? [key] : [], devMode: false },
    )
    monitor.console.print(`serving  ${[...names, ...(baseName === undefined ? [] : [baseName])].join(', ')} at ${server.url}/v1`)
    return {
      close: async () => {
        await server.close(DRAIN_SECONDS)
        await ofModel.close()
        log.close()
      },
    }
  } catch (error) {
    log.close()
    await engine.close()
    throw error
  }
}

/** Tokens of the sequence that checks a push of weights: enough for an average, few enough to cost nothing. */
const PROBE_TOKENS = 48

async function openVllm(parts: SamplerParts, version: PolicyVersion): Promise<RunSampler> {
  const { config, decoder, inputs, folder, monitor, weights } = parts
  const { inference } = config
  const { args } = config.trainer
  if (inference.backend !== 'vllm') throw new Error('not a vLLM run')
  const { VllmSampler } = await import('../inference/vllm/sampler.ts')
  const { model, tokenizer, encode, environments } = inputs
  // With filters (top_p and the like) only the raw log-probability is the policy's; the config's checks then require temperature 1.
  const filtered = filtersOf(args).length > 0
  const kind = args.use_lora ? 'lora' : 'full'
  // Some modules of an adapter that training starts from may have a larger rank.
  const rank = weights.lora ? largestRank(weights.lora) : args.lora_rank
  const needs = {
    model: resolve(model.path),
    maxLength: args.max_seq_len,
    maxAsyncLevel: args.max_async_level,
    logprobsMode: filtered ? 'raw_logprobs' : 'processed_logprobs',
  } as const
  // Weights that an earlier process of this run left there are of no use to a new server.
  const weightsDir = join(folder.path, 'weights')
  rmSync(weightsDir, { recursive: true, force: true })
  // In full fine-tuning the server starts on the trainer's weights, written as for a push.
  const base = join(weightsDir, 'base')
  if (kind === 'full' && !inference.base_url) await writeSamplerWeights(base, decoder, weights, tokenizer)
  const launch = {
    ...needs,
    ...(kind === 'full' && { model: resolve(base) }),
    servedName: 'base',
    maxSequences: inference.max_num_seqs,
    loraRank: args.use_lora ? rank : undefined,
    args: inference.args,
    python: inference.python,
    logFile: join(folder.path, 'logs', 'vllm.log'),
  }
  const options = {
    ...needs,
    kind,
    where: inference.base_url ? { url: inference.base_url } : { launch },
    startupMs: inference.startup_timeout * 1000,
    pushMs: inference.push_timeout * 1000,
    maxRestarts: inference.max_restarts,
    log: (line: string) => monitor.console.warn(line),
    runName: basename(folder.path),
    rank,
    vocabulary: model.config.vocabSize,
    rules: { eosTokenIds: new Set(tokenizer.eosTokenIds), decode: (ids: readonly number[]) => tokenizer.decode([...ids]) },
    weightsDir,
    hasFirst: kind === 'full' && (!inference.base_url || version === 0),
    write: (dir: string) =>
      whenThereIsRoom(
        'the weights on their way to vLLM',
        () => writeSamplerWeights(dir, decoder, weights),
        (line) => monitor.console.warn(line),
      ),
    score: (ids: readonly number[]) => scoreIds(decoder, ids),
    probeIds: probeOf(environments[0].env.dataset[0].prompt, encode),
  } as const
  const what = inference.base_url ? `vLLM at ${inference.base_url}` : 'vLLM'
  const limitMs = options.startupMs + 2 * options.pushMs + 600_000
  const hint = inference.base_url ? 'raise startup_timeout under [inference]' : `see ${launch.logFile}`
  const sampler = await monitor.progress.run(`starting ${what}`, { limitMs, hint }, () => VllmSampler.open(options, version))
  const publish = (v: PolicyVersion) => {
    // Only weights of whole steps are sent: those between two updates with one batch would be outdated on arrival.
    if (!Number.isInteger(v)) return
    const pushed = sampler.push(v)
    // A push that fails during the training step is reported when the step is done.
    pushed.catch(() => {})
    return pushed
  }
  const { server, url } = sampler.stats
  monitor.console.print(`sampler  ${server} at ${url}${inference.base_url ? '' : `, log ${launch.logFile}`}`)
  return { generator: sampler, publish, gone: () => sampler.gone, close: () => sampler.close() }
}

function probeOf(prompt: Message[], encode: Inputs['encode']): number[] {
  const ids = encode(prompt).slice(0, PROBE_TOKENS)
  return ids.length > 1 ? ids : [...ids, ...ids]
}

/** Log-probabilities at temperature 1. */
async function scoreIds(decoder: Decoder, ids: readonly number[]): Promise<Float32Array> {
  const options = { temperature: 1, microBatchTokens: ids.length }
  const [{ logprobs }] = await scoreSamples(decoder, [untrained(Int32Array.from(ids))], options)
  return logprobs
}
