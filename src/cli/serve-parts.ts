/** The parts of a server that `serve` and a training run with `serve = true` share: parsers, constraints, sampling defaults. */
import { join } from 'node:path'
import * as z from 'zod'
import { UserError } from '../common/errors.ts'
import type { Grammars } from '../inference/grammar/types.ts'
import { templateThinks } from '../inference/parsers/reasoning.ts'
import { TOOL_PARSERS } from '../inference/parsers/tools/index.ts'
import type { SamplingDefaults, ServerParts } from '../inference/server/parts.ts'
import { samplingFields } from '../inference/server/schemas/common.ts'
import { readJson } from '../model/files/files.ts'
import type { ModelFiles } from '../model/files/open.ts'
import { endOfTurn, type Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { versionOf } from './version.ts'

interface AnswerOptions {
  /** A tool parser, auto or none. */
  toolCallParser: string
  /** think, auto or none. */
  reasoningParser: string
  /** auto (the model's), vllm (none), or a folder or file. */
  generationConfig: string
  /** A template in place of the model's. */
  chatTemplate?: string
  /** Template variables, unless a request gives them. */
  chatTemplateKwargs?: Record<string, unknown>
}

type ModelParts = Pick<
  ServerParts,
  | 'root'
  | 'tokenizer'
  | 'vocabulary'
  | 'eosTokenIds'
  | 'version'
  | 'defaults'
  | 'chatTemplate'
  | 'chatTemplateKwargs'
  | 'toolParser'
  | 'reasoning'
> & { grammars: NonNullable<ServerParts['grammars']> }

/**
 * Makes the parts for a model; `close` frees them.
 * @throws UserError for unknown parsers, or a generation config that can't be read
 */
export async function modelParts(
  model: ModelFiles,
  tokenizer: Tokenizer,
  options: AnswerOptions,
): Promise<{ parts: ModelParts; close(): Promise<void> }> {
  const { toolCallParser, reasoningParser, chatTemplate, chatTemplateKwargs } = options
  if (![...TOOL_PARSERS, 'none', 'auto'].includes(toolCallParser))
    throw new UserError(`There is no --tool-call-parser ${toolCallParser}; choose ${TOOL_PARSERS.join(', ')}, none or auto.`)
  if (!['auto', 'none', 'think'].includes(reasoningParser))
    throw new UserError(`There is no --reasoning-parser ${reasoningParser}; choose think, none or auto.`)
  const thinks = templateThinks(chatTemplate ?? tokenizer.chatTemplate)
  const { vocabSize } = model.config
  // The tokenizer knows what its own template writes behind an answer.
  const end = chatTemplate === undefined ? null : endOfTurn(tokenizer, { chatTemplate, variables: chatTemplateKwargs })
  const eosTokenIds = [...new Set([...tokenizer.eosTokenIds, ...(end === null ? [] : [end])])]
  let grammars: Promise<Grammars> | undefined
  const parts: ModelParts = {
    root: model.ref,
    tokenizer,
    vocabulary: vocabSize,
    eosTokenIds,
    version: versionOf('dawn-rl') ?? 'unknown',
    defaults: await defaultsOf(options.generationConfig, model),
    chatTemplate,
    chatTemplateKwargs,
    toolParser: toolCallParser,
    reasoning: reasoningParser === 'think' || (reasoningParser === 'auto' && thinks),
    // Loaded by the first request that needs it.
    grammars: () =>
      (grammars ??= import('../inference/grammar/grammars.ts').then(({ createGrammars }) =>
        createGrammars(tokenizer, eosTokenIds, vocabSize),
      )),
  }
  return { parts, close: async () => (await grammars)?.close() }
}

/** The ranges of defaults; as in requests, but that a top_p of 0 is taken. */
const ranges = z.object({
  temperature: samplingFields.temperature,
  top_p: z.number().min(0).max(1).nullish(),
  top_k: samplingFields.top_k,
  min_p: samplingFields.min_p,
  repetition_penalty: samplingFields.repetition_penalty,
  max_new_tokens: z.int().min(1).nullish(),
})

/**
 * The sampling defaults of generation_config.json.
 * @throws UserError for a file that can't be read, or a value out of range: each request would be refused for a field that it does not have
 */
async function defaultsOf(where: string, model: ModelFiles): Promise<SamplingDefaults> {
  if (where === 'vllm') return {}
  const isModels = where === 'auto'
  const path = isModels || where.endsWith('.json') ? where : join(where, 'generation_config.json')
  const raw = isModels ? (model.rawGenerationConfig ?? {}) : await readJson(path)
  const numbers = Object.fromEntries(Object.entries(raw).filter(([, value]) => typeof value === 'number'))
  const { data, error } = ranges.safeParse(numbers)
  if (error) {
    const [issue] = error.issues
    const field = issue.path.map(String).join('.')
    const file = isModels ? `generation_config.json of ${model.name}` : path
    throw new UserError(
      `${file}: ${field} is ${String(numbers[field])}: ${issue.message}. Correct it, or serve with --generation-config vllm, which leaves these defaults out.`,
    )
  }
  const { max_new_tokens: max_tokens, ...others } = data
  return Object.fromEntries(Object.entries({ ...others, max_tokens }).filter(([, value]) => typeof value === 'number'))
}
