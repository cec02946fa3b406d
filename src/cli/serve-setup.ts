/** Builds a server from its options: model, device, engine, parsers. All bad input is refused here. */
import { readFile, realpath } from 'node:fs/promises'
import { createServer } from 'node:net'
import { resolve } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { listen } from '../common/servers.ts'
import { variableProblem } from '../common/template-variables.ts'
import { textOfBytes } from '../common/texts.ts'
import type { LogprobsMode } from '../common/types.ts'
import { isOutOfMemory, type DeviceLostError } from '../gpu/errors.ts'
import type { Gpu } from '../gpu/gpu.ts'
import { Engine } from '../inference/engine.ts'
import type { ServerOptions, ServerParts } from '../inference/server/parts.ts'
import { checkAccess, startServer } from '../inference/server/server.ts'
import { refuseLonger } from '../model/config/longrope.ts'
import { loadDecoder } from '../model/decoder/load.ts'
import { openModel, type ModelFiles } from '../model/files/open.ts'
import { checkAdapter, paddedRank, rankOf, readAdapter } from '../model/files/peft.ts'
import type { ModelConfig, Quantization } from '../model/types.ts'
import { bindablePages, CACHE_PAGE, cacheTokenBytes } from '../model/decoder/shapes.ts'
import { formatBytes, formatCount } from '../monitor/format.ts'
import { createLogger, standardError, type LogLevel } from '../monitor/logger.ts'
import { adapterWords, roomOf } from './gpu-memory.ts'
import { reporter } from './model-batch.ts'
import { jsonObject } from './options.ts'
import { closeAll, giveUp, openGpu, reloadWeights } from './opening.ts'
import { modelParts } from './serve-parts.ts'

export interface ServeOptions {
  model: string
  servedModelName?: string[]
  adapter?: string[]
  host: string
  port: number
  apiKey?: string[]
  allowedOrigins?: string[]
  adapterRoot?: string
  devMode?: boolean
  maxNumSeqs: number
  maxNumBatchedTokens?: number
  maxModelLen?: number
  kvCacheBytes?: number
  kvCacheDtype: 'auto' | 'f32' | 'f16'
  maxLoras: number
  maxLoraRank: number
  enablePrefixCaching: boolean
  matrixUnits?: boolean
  quantization?: Quantization
  logprobsMode: `${LogprobsMode}_logprobs`
  maxLogprobs: number
  chatTemplate?: string
  defaultChatTemplateKwargs?: string
  generationConfig: string
  toolCallParser: string
  reasoningParser: string
  maxQueue: number
  maxBodyBytes: number
  bodySeconds: number
  maxConnections: number
  drainSeconds: number
  logLevel: LogLevel
}

/** Default limit of the KV cache on a CPU, whose memory others need too, and where nothing tells how much memory the GPU has. */
const KV_BYTES = 2 ** 30
/** The share that the KV cache may take of the memory that is free once the weights are loaded. */
const KV_SHARE = 0.5

interface OpenServer {
  url: string
  /** Resolves when the device is lost, with the reason: nothing can be answered from then on. */
  lost: Promise<DeviceLostError | undefined>
  close(drainSeconds: number): Promise<void>
}

/** @throws UserError for anything of the user's that is wrong */
export async function openServer(options: ServeOptions): Promise<OpenServer> {
  const modelNames = options.servedModelName ?? [options.model]
  const adapters = (options.adapter ?? []).map((text) => adapterOf(text, modelNames))
  const chatTemplate = options.chatTemplate === undefined ? undefined : await textOf(options.chatTemplate)
  const { defaultChatTemplateKwargs: kwargs } = options
  const chatTemplateKwargs = kwargs === undefined ? undefined : jsonObject('serve', '--default-chat-template-kwargs', kwargs)
  const wrong = chatTemplateKwargs && variableProblem(chatTemplateKwargs)
  if (wrong) throw new UserError(`--default-chat-template-kwargs: ${wrong}`)
  const adapterRoot = options.adapterRoot === undefined ? undefined : await rootOf(options.adapterRoot)
  // A large model takes minutes to load: whatever can be wrong besides is found out before.
  checkAccess(serverOptions(options))
  await checkPort(options)
  const opened: { close(): unknown }[] = []
  try {
    const model = await openModel(options.model)
    opened.push(model)
    const tokenizer = await model.tokenizer()
    const ofModel = await modelParts(model, tokenizer, { ...options, chatTemplate, chatTemplateKwargs })
    opened.push(ofModel)
    await checkAdapters(adapters, options, model)
    const gpu = await openGpu(model.config, { ...options, trains: false })
    opened.push(gpu)
    const decoder = await loadDecoder(gpu, model, {
      matrixUnits: options.matrixUnits,
      quantization: options.quantization,
      progress: reporter(`loading ${model.name}`),
    })
    opened.push({ close: () => decoder.release() })
    const { maxLength, cacheRows } = roomFor(options, model.config, gpu)
    const made = model.config.maxPositionEmbeddings
    refuseLonger(model, maxLength, `--max-model-len is ${maxLength}`)
    if (maxLength > made) console.error(`--max-model-len is ${maxLength}; ${model.name} was made for ${made} tokens at most`)
    const engine = new Engine(decoder, {
      maxSequences: options.maxNumSeqs,
      maxLength,
      cacheRows,
      maxPrefillRows: prefillRows(options),
      kvCacheDtype: options.kvCacheDtype === 'f16' ? 'f16' : 'f32',
      prefixCaching: options.enablePrefixCaching,
      maxAdapters: options.maxLoras,
      maxAdapterRank: paddedRank(options.maxLoraRank),
      eosTokenIds: ofModel.parts.eosTokenIds,
      decode: (ids, options) => tokenizer.decode(ids, options),
    })
    opened.push(engine)
    await gpu.sync('start').catch((error: unknown) => {
      if (!isOutOfMemory(error)) throw error
      throw new UserError(
        `The GPU has no room for the model and a KV cache of ${formatBytes(engine.cacheRows * cacheTokenBytes(model.config, isHalf(options)))} (${error.message.split('\n')[0]}). Lower --kv-cache-bytes, or take a smaller model.`,
      )
    })
    for (const { name, dir } of adapters) await engine.adapters.load(name, dir)
    const log = createLogger(standardError, options.logLevel)
    opened.push(log)
    const parts: ServerParts = {
      ...ofModel.parts,
      names: modelNames,
      log,
      logprobsMode: options.logprobsMode.replace('_logprobs', '') as LogprobsMode,
      maxLogprobs: options.maxLogprobs,
      maxAdapters: options.maxLoras,
      reloadWeights: (dir) => reloadWeights(engine, dir ?? options.model),
    }
    const server = await startServer(engine, parts, { ...serverOptions(options), adapterRoot })
    const names = [...parts.names, ...adapters.map(({ name }) => name)].join(', ')
    const kv = `KV cache of ${formatCount(engine.cacheRows)} tokens (${formatBytes(engine.cacheRows * cacheTokenBytes(model.config, isHalf(options)))})`
    console.log(`${names} at ${server.url}/v1 | context ${maxLength} tokens | ${kv}`)
    return {
      url: server.url,
      lost: gpu.device.lost.then(() => gpu.lost),
      close: async (drainSeconds) => {
        // Requests that a pause holds back could not end, and no request can end the pause any more.
        engine.resume()
        await server.close(drainSeconds)
        await closeAll(opened)
      },
    }
  } catch (error) {
    await giveUp(opened)
    throw error
  }
}

function serverOptions(options: ServeOptions): ServerOptions {
  const key = process.env.DAWN_RL_API_KEY
  return {
    host: options.host,
    port: options.port,
    apiKeys: [...(options.apiKey ?? []), ...(key ? [key] : [])],
    allowedOrigins: options.allowedOrigins,
    devMode: options.devMode,
    maxHeld: options.maxNumSeqs + options.maxQueue,
    maxBodyBytes: options.maxBodyBytes,
    bodySeconds: options.bodySeconds,
    maxConnections: options.maxConnections,
  }
}

/** @throws UserError if the server could not listen there */
async function checkPort({ host, port }: ServeOptions): Promise<void> {
  const probe = createServer()
  await listen('server', probe, host, port)
  await new Promise((resolve) => probe.close(resolve))
}

/** The prompt tokens that a step has room for beside the next tokens of all sequences. */
function prefillRows({ maxNumBatchedTokens, maxNumSeqs }: ServeOptions): number | undefined {
  if (maxNumBatchedTokens === undefined || maxNumBatchedTokens > maxNumSeqs)
    return maxNumBatchedTokens && maxNumBatchedTokens - maxNumSeqs
  throw new UserError(
    `--max-num-batched-tokens ${maxNumBatchedTokens} leaves no room for prompts beside the next tokens of ${maxNumSeqs} sequences. Raise it, or lower --max-num-seqs.`,
  )
}

const isHalf = ({ kvCacheDtype }: ServeOptions): boolean => kvCacheDtype === 'f16'

/** The most memory of the KV cache: as given, else a share of the free memory. */
function kvBytes({ kvCacheBytes }: ServeOptions, gpu: Gpu): number {
  if (kvCacheBytes !== undefined) return kvCacheBytes
  const free = roomOf(adapterWords(gpu))?.bytes
  if (free === undefined) return KV_BYTES
  return gpu.facts.software ? Math.min(KV_BYTES, free * KV_SHARE) : free * KV_SHARE
}

/** How long a sequence may be, and how many tokens the KV cache holds. */
function roomFor(options: ServeOptions, config: ModelConfig, gpu: Gpu): { maxLength: number; cacheRows: number } {
  const { maxNumSeqs, maxModelLen, kvCacheBytes } = options
  const f16 = isHalf(options)
  const each = cacheTokenBytes(config, f16)
  const bindable = bindablePages(config, gpu.facts.limits.maxBinding, { f16 }) * CACHE_PAGE
  const affordable = Math.min(bindable, Math.floor(kvBytes(options, gpu) / (each * CACHE_PAGE)) * CACHE_PAGE)
  if (affordable === 0 && maxModelLen === undefined) {
    throw new UserError(
      `The smallest KV cache takes ${formatBytes(CACHE_PAGE * each)}, and there is room for ${formatBytes(kvBytes(options, gpu))}. Raise --kv-cache-bytes: 512M is 512 MiB.`,
    )
  }
  const most = maxModelLen ?? Math.min(config.maxPositionEmbeddings, affordable)
  if (most > affordable) {
    const need = formatBytes(Math.ceil(most / CACHE_PAGE) * CACHE_PAGE * each)
    throw new UserError(
      `One sequence of ${most} tokens needs ${need} of KV cache, and there is room for ${affordable} tokens. Raise --kv-cache-bytes or lower --max-model-len.`,
    )
  }
  return { maxLength: most, cacheRows: kvCacheBytes === undefined ? Math.min(affordable, maxNumSeqs * most) : affordable }
}

function adapterOf(text: string, modelNames: readonly string[]): { name: string; dir: string } {
  const at = text.indexOf('=')
  if (at < 1 || at === text.length - 1) throw new UserError(`--adapter ${text}: write it as NAME=DIR.`)
  const name = text.slice(0, at)
  // An adapter with the model's name would never be used.
  if (modelNames.includes(name)) throw new UserError(`--adapter ${text}: ${name} is the model's own name. Choose another.`)
  return { name, dir: resolve(text.slice(at + 1)) }
}

/** @throws UserError for adapters that the engine could not load, or not together */
async function checkAdapters(
  adapters: readonly { name: string; dir: string }[],
  { maxLoras, maxLoraRank }: ServeOptions,
  model: ModelFiles,
): Promise<void> {
  const twice = adapters.find(({ name }, i) => adapters.findIndex((other) => other.name === name) < i)
  if (twice) throw new UserError(`--adapter gives the name ${twice.name} twice. Choose another for one of them.`)
  if (adapters.length > maxLoras)
    throw new UserError(`--adapter is given ${adapters.length} times, but --max-loras is ${maxLoras}. Raise it.`)
  for (const { dir } of adapters) {
    const adapter = await readAdapter(dir)
    checkAdapter(adapter, model.config, model.name)
    const rank = rankOf(adapter)
    if (rank > paddedRank(maxLoraRank))
      throw new UserError(`The adapter ${dir} has rank ${rank}, but --max-lora-rank is ${maxLoraRank}. Raise it.`)
  }
}

async function textOf(file: string): Promise<string> {
  const bytes = await readFile(file).catch((error: unknown) => {
    throw new UserError(`--chat-template ${file} can't be read: ${messageOf(error)}.`)
  })
  return textOfBytes(bytes, `--chat-template ${file}`)
}

async function rootOf(dir: string): Promise<string> {
  return await realpath(dir).catch(() => {
    throw new UserError(`--adapter-root ${dir} does not exist. Make the folder first.`)
  })
}
