/** The models that an evaluation asks, one after the other: the embedded engine over a model and the adapters of a run, or an endpoint. */
import { basename, resolve } from 'node:path'
import type { ChatClient, Generator } from '../common/types.ts'
import { ChatTemplate, PolicyClient } from '../environments/index.ts'
import { Gpu } from '../gpu/gpu.ts'
import { Engine } from '../inference/engine.ts'
import { loadDecoder } from '../model/decoder-load.ts'
import { openModel } from '../model/open.ts'
import { largestRank, readAdapter } from '../model/peft.ts'
import { gainsByWideVectors } from '../model/wide-vectors.ts'
import { EndpointClient } from './eval-endpoints.ts'
import type { EvalPlan, EvalSource } from './eval-plan.ts'
import { reporter } from './model-batch.ts'
import { toolCallParser } from './tool-calls.ts'

/** One model to evaluate. */
export interface EvalTarget {
  /** In the table: a model's name, 'base', 'step_10'. */
  label: string
  /** In metadata and folder names. */
  model: string
  baseUrl?: string
  /** Readies it; the one before is done with. */
  open(): Promise<ChatClient>
}

export interface EvalTargets {
  targets: EvalTarget[]
  /** Answers that are sampled together. */
  together: number
  close: () => Promise<void>
}

/** Memory of the KV cache at most. */
const KV_BYTES = 2 ** 30
/** Room of a sequence where answers have several turns and nobody says. */
const TURNS_TOKENS = 2048

/** @throws UserError for a model, adapter or length that does not fit */
export async function openTargets(plan: EvalPlan, maxConcurrent: number): Promise<EvalTargets> {
  const { source } = plan
  if (source.kind === 'endpoint') {
    const { endpoint, name } = source
    const client = new EndpointClient(endpoint, { extra: plan.extra, timeoutSeconds: plan.generationTimeout })
    const target = { label: name, model: endpoint.model, baseUrl: endpoint.url, open: () => Promise.resolve(client) }
    return { targets: [target], together: maxConcurrent, close: () => Promise.resolve() }
  }
  return await openEmbedded(plan, source, maxConcurrent)
}

async function openEmbedded(
  plan: EvalPlan,
  source: Exclude<EvalSource, { kind: 'endpoint' }>,
  maxConcurrent: number,
): Promise<EvalTargets> {
  const opened: { close(): unknown }[] = []
  const close = async () => {
    for (const one of opened.splice(0).toReversed()) await one.close()
  }
  try {
    const model = await openModel(source.model)
    opened.push(model)
    const tokenizer = await model.tokenizer()
    const template = new ChatTemplate(tokenizer)
    const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([model.config], { trains: false }) })
    opened.push(gpu)
    if (gpu.facts.software) console.error(`no GPU here: running on the CPU (${gpu.facts.name})`)
    const progress = reporter(`loading ${model.name}`)
    const decoder = await loadDecoder(gpu, model, { quantization: source.quantization, progress })
    opened.push({ close: () => decoder.release() })
    const maxLength = lengthOf(plan, template, model.config.maxPositionEmbeddings)
    const together = Math.min(32, maxConcurrent)
    const adapters = source.adapter === undefined ? [] : [source.adapter]
    const ranks = source.kind === 'run' ? [source.rank] : []
    for (const dir of adapters) ranks.push(largestRank((await readAdapter(dir)).config))
    const engine = new Engine(decoder, {
      maxSequences: together,
      full: true,
      maxLength,
      cacheBytes: KV_BYTES,
      maxAdapters: 1,
      maxAdapterRank: Math.ceil(Math.max(8, ...ranks) / 8) * 8,
      eosTokenIds: model.config.eosTokenIds,
      decode: (ids, options) => tokenizer.decode(ids, options),
    })
    opened.push(engine)
    const clientOf = (adapter: string | null): ChatClient =>
      new PolicyClient(withAdapter(engine, adapter), template, {
        maxPromptTokens: plan.maxPromptLen,
        maxSeqTokens: maxLength,
        strategy: plan.strategy,
        parseTools: toolCallParser(plan.toolCallParser, tokenizer, template),
      })
    const withOne = (label: string, name: string, dir?: string): EvalTarget => ({
      label,
      model: name,
      open: async () => {
        for (const { name: loaded } of engine.adapters.list()) await engine.adapters.unload(loaded)
        if (dir === undefined) return clientOf(null)
        await engine.adapters.load(label, dir)
        return clientOf(label)
      },
    })
    const reloaded = (label: string, name: string, dir: string): EvalTarget => ({
      label,
      model: name,
      open: async () => {
        const files = await openModel(dir)
        try {
          await engine.reloadWeights(files)
        } finally {
          files.close()
        }
        return clientOf(null)
      },
    })
    const targets: EvalTarget[] = []
    if (source.kind === 'model') {
      const label = source.adapter === undefined ? basename(source.model) : basename(resolve(source.adapter))
      targets.push(withOne(label, source.adapter ?? source.model, source.adapter))
    } else {
      const run = basename(resolve(source.dir))
      if (source.base) targets.push(withOne('base', source.adapter ?? source.model, source.adapter))
      for (const dir of source.checkpoints)
        targets.push((source.lora ? withOne : reloaded)(basename(dir), `${run}@${basename(dir)}`, dir))
    }
    return { targets, together, close }
  } catch (error) {
    await close()
    throw error
  }
}

/** The engine, with one adapter in every request. */
function withAdapter(engine: Engine, adapter: string | null): Generator {
  return {
    get version() {
      return engine.version
    },
    generate: (request) => engine.generate({ ...request, adapter }),
  }
}

/** Tokens of a sequence: what was said, or the longest prompt with its answer. */
function lengthOf(plan: EvalPlan, template: ChatTemplate, most: number): number {
  if (plan.maxSeqLen !== undefined) return Math.min(plan.maxSeqLen, most)
  // Not Math.max(...): a call takes some 120,000 arguments at most.
  const longest = plan.environments
    .flatMap(({ env, rows }) => rows.map((row) => template.prompt(row.prompt, env.tools).ids.length))
    .reduce((most, length) => Math.max(most, length), 0)
  const turns = plan.environments.some(({ env }) => (env.maxTurns ?? 1) !== 1)
  const need = longest + plan.sampling.max_tokens
  return Math.min(most, turns ? Math.max(TURNS_TOKENS, need) : need)
}
