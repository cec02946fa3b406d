/** The parts of a server that `serve` and a training run with `serve = true` share: parsers, constraints, sampling defaults. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { messageOf, UserError } from '../common/errors.ts'
import { textOfBytes } from '../common/texts.ts'
import type { Grammars } from '../inference/grammar/types.ts'
import { templateThinks } from '../inference/parsers/reasoning.ts'
import { toolParser } from '../inference/parsers/tools/index.ts'
import type { SamplingDefaults, ServerParts } from '../inference/server/parts.ts'
import type { ModelFiles } from '../model/files/open.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
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
  if (!['auto', 'none'].includes(toolCallParser)) toolParser(toolCallParser)
  if (!['auto', 'none', 'think'].includes(reasoningParser))
    throw new UserError(`There is no --reasoning-parser ${reasoningParser}; choose think, none or auto.`)
  const thinks = templateThinks(chatTemplate ?? tokenizer.chatTemplate)
  const { vocabSize, eosTokenIds } = model.config
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

/** The sampling defaults of generation_config.json. */
async function defaultsOf(where: string, model: ModelFiles): Promise<SamplingDefaults> {
  if (where === 'vllm') return {}
  let raw = model.rawGenerationConfig ?? {}
  if (where !== 'auto') {
    const path = where.endsWith('.json') ? where : join(where, 'generation_config.json')
    try {
      raw = JSON.parse(textOfBytes(await readFile(path), path)) as Record<string, unknown>
    } catch (error) {
      if (error instanceof UserError) throw error
      throw new UserError(`--generation-config ${where}: ${path} can't be read: ${messageOf(error)}.`)
    }
  }
  const number = (key: string) => (typeof raw[key] === 'number' ? raw[key] : undefined)
  const found = {
    temperature: number('temperature'),
    top_p: number('top_p'),
    top_k: number('top_k'),
    min_p: number('min_p'),
    repetition_penalty: number('repetition_penalty'),
    max_tokens: number('max_new_tokens'),
  }
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined))
}
