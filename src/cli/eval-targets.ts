/** The models of an evaluation, one after the other: a model or the checkpoints of a run in the embedded engine, or an endpoint. */
import { basename, resolve } from 'node:path'
import type { ChatClient, Generator } from '../common/types.ts'
import { ChatTemplate, PolicyClient } from '../environments/index.ts'
import { Engine } from '../inference/engine.ts'
import { loadDecoder } from '../model/decoder/load.ts'
import { openModel } from '../model/files/open.ts'
import { checkAdapter, largestRank, paddedRank, readAdapter } from '../model/files/peft.ts'
import { EndpointClient } from './eval-endpoints.ts'
import type { EvalPlan, EvalSource } from './eval-plan.ts'
import { reporter } from './model-batch.ts'
import { closeAll, giveUp, openGpu, reloadWeights } from './opening.ts'
import { toolCallParser } from './tool-calls.ts'

/** One model to evaluate. */
export interface EvalTarget {
  /** Name in the table: a model's name, 'base', 'step_10'. */
  label: string
  /** Name in metadata and folder names. */
  model: string
  baseUrl?: string
  /** Loads this model; the one before is no longer used. */
  open(): Promise<ChatClient>
}

interface EvalTargets {
  targets: EvalTarget[]
  /** How many answers are sampled together. */
  together: number
  close: () => Promise<void>
}

/** The most memory of the KV cache. */
const KV_BYTES = 2 ** 30
/** Default length of a sequence for environments of several turns. */
const TURNS_TOKENS = 2048

type EmbeddedSource = Exclude<EvalSource, { kind: 'endpoint' }>

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

async function openEmbedded(plan: EvalPlan, source: EmbeddedSource, maxConcurrent: number): Promise<EvalTargets> {
  const opened: { close(): unknown }[] = []
  const close = () => closeAll(opened)
  try {
    const model = await openModel(source.model)
    opened.push(model)
    const tokenizer = await model.tokenizer()
    const template = new ChatTemplate(tokenizer, plan.extra.chat_template_kwargs as Record<string, unknown> | undefined)
    const ranks = source.kind === 'run' ? [source.rank] : []
    // Before the model is loaded, which takes minutes for a large one.
    if (source.adapter !== undefined) {
      const adapter = await readAdapter(source.adapter)
      checkAdapter(adapter, model.config, model.name)
      ranks.push(largestRank(adapter.config))
    }
    const gpu = await openGpu(model.config, { trains: false })
    opened.push(gpu)
    const progress = reporter(`loading ${model.name}`)
    const decoder = await loadDecoder(gpu, model, { quantization: source.quantization, progress })
    opened.push({ close: () => decoder.release() })
    const maxLength = lengthOf(plan, template, model.config.maxPositionEmbeddings)
    const together = Math.min(32, maxConcurrent)
    const engine = new Engine(decoder, {
      maxSequences: together,
      full: true,
      maxLength,
      cacheBytes: KV_BYTES,
      maxAdapters: 1,
      maxAdapterRank: paddedRank(Math.max(8, ...ranks)),
      eosTokenIds: tokenizer.eosTokenIds,
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
    return { targets: targetsOf(source, engine, clientOf), together, close }
  } catch (error) {
    await giveUp(opened)
    throw error
  }
}

/** A model, or the checkpoints of a run, one after the other in one engine. */
function targetsOf(source: EmbeddedSource, engine: Engine, clientOf: (adapter: string | null) => ChatClient): EvalTarget[] {
  const withAdapterOf = (label: string, model: string, dir?: string): EvalTarget => ({
    label,
    model,
    open: async () => {
      for (const { name } of engine.adapters.list()) await engine.adapters.unload(name)
      if (dir === undefined) return clientOf(null)
      await engine.adapters.load(label, dir)
      return clientOf(label)
    },
  })
  const withWeightsOf = (label: string, model: string, dir: string): EvalTarget => ({
    label,
    model,
    open: async () => {
      await reloadWeights(engine, dir)
      return clientOf(null)
    },
  })
  const begin = (label: string): EvalTarget => withAdapterOf(label, source.adapter ?? source.model, source.adapter)
  if (source.kind === 'model')
    return [begin(source.adapter === undefined ? basename(source.model) : basename(resolve(source.adapter)))]
  const run = basename(resolve(source.dir))
  const ofStep = source.lora ? withAdapterOf : withWeightsOf
  const steps = source.checkpoints.map((dir) => ofStep(basename(dir), `${run}@${basename(dir)}`, dir))
  return source.base ? [begin('base'), ...steps] : steps
}

/** The engine as a generator that always uses this adapter. */
function withAdapter(engine: Engine, adapter: string | null): Generator {
  return {
    get version() {
      return engine.version
    },
    generate: (request) => engine.generate({ ...request, adapter }),
  }
}

/** Tokens of a sequence: as given, else the longest prompt with its answer. */
function lengthOf(plan: EvalPlan, template: ChatTemplate, most: number): number {
  if (plan.maxSeqLen !== undefined) return Math.min(plan.maxSeqLen, most)
  const prompts = plan.environments.flatMap(({ env, rows }) => rows.map((row) => ({ ...row, tools: env.tools })))
  const progress = reporter("counting the prompts' tokens")
  let longest = 0
  // Stops at the first prompt that is too long; that one is not counted to its end.
  for (let i = 0; i < prompts.length && longest < most; i++) {
    const { prompt, tools, variables } = prompts[i]
    longest = Math.max(longest, template.with(variables).prompt(prompt, tools, most).ids.length)
    progress((i + 1) / prompts.length)
  }
  const turns = plan.environments.some(({ env }) => (env.maxTurns ?? 1) !== 1)
  const need = longest + plan.sampling.max_tokens
  return Math.min(most, turns ? Math.max(TURNS_TOKENS, need) : need)
}
