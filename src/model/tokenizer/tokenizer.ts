/**
 * Text to token ids and back, and chat messages to a prompt. The only file that knows the tokenizer library.
 *  - The library is @huggingface/tokenizers with @huggingface/jinja (chat/library.ts), which transformers.js itself is made of: it needs none
 *    of that package's native code, so an installed dawn-rl does not depend on npm overrides.
 *  - Where the library reads a tokenizer.json otherwise than Python's tokenizers does, the file is rewritten in memory to a form that both
 *    read alike (form.ts), or a part of what the library made of it is changed (exact.ts).
 *  - Decoding never "cleans up" spaces: text must be what the tokens say.
 */
import { Tokenizer as LibraryTokenizer } from '@huggingface/tokenizers'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeFolder } from '../../common/folders.ts'
import { UserError, messageOf } from '../../common/errors.ts'
import type { Message, ToolDefinition } from '../../common/types.ts'
import { rendered, unfinished } from '../chat/messages.ts'
import { jsonText, kindOf, readJson, readText, writeWhole } from '../files/files.ts'
import { compileTemplate } from '../chat/jinja.ts'
import { settledIds } from './settled.ts'
import { bytesOfToken } from './token-bytes.ts'
import { correct, type Parts } from './exact.ts'
import { addedTokensDecoder, exactForm } from './form.ts'

type Json = Record<string, unknown>

interface ChatOptions {
  /** Ends the prompt where the assistant's answer begins. Default true, and false where `continueFinalMessage` is set. */
  addGenerationPrompt?: boolean
  /** The last message is the beginning of the answer: the prompt ends with its text, and not with what the template writes after it. */
  continueFinalMessage?: boolean
  /** The tools that the model may call, for templates that tell it of them. */
  tools?: readonly ToolDefinition[]
  /** Stands in for the model's own template. */
  chatTemplate?: string
  /** More variables for the template, as Qwen3's `enable_thinking`. */
  variables?: Record<string, unknown>
}

export interface Tokenizer {
  /** One more than the largest id that stands for text; a model may have more rows, as padding. */
  readonly vocabSize: number
  /** The tokens that end an answer: the model's end-of-sequence tokens, and `turnEnd`. */
  readonly eosTokenIds: readonly number[]
  /** The special token with which the chat template ends an answer, if it is none of the model's own ends; null if it is, or without one. */
  readonly turnEnd: number | null
  /** Whether messages can be rendered. */
  readonly hasChatTemplate: boolean
  /** The template as it was written, for those who must know what a model was taught to write; null without one. */
  readonly chatTemplate: string | null
  /** The template of prompts that tell of tools: the model's `tool_use` where it has one, as transformers takes it. */
  readonly toolTemplate: string | null
  /** Special tokens written in the text (`<|im_end|>`) become their ids. `addSpecialTokens` (default true): bos where the model wants one. */
  encode(text: string, options?: { addSpecialTokens?: boolean }): number[]
  /** Bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary nothing. `skipSpecialTokens` defaults to false. */
  decode(ids: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): string
  /** The prompt as text. Throws UserError without a chat template, or with the template's own complaint. */
  renderChat(messages: readonly Message[], options?: ChatOptions): string
  /** The prompt as ids: `renderChat`, encoded without adding special tokens to those that the template wrote. */
  encodeChat(messages: readonly Message[], options?: ChatOptions): number[]
  tokenToId(token: string): number | null
  /** The token as the vocabulary spells it (bytes in the byte-level alphabet); null for an id without one. */
  idToToken(id: number): string | null
  /** The bytes that the token stands for, which need not be whole characters; null for an id without a token. */
  tokenBytes(id: number): Uint8Array | null
  isSpecial(id: number): boolean
  /** Writes tokenizer.json, tokenizer_config.json and chat_template.jinja into a folder, for transformers and vLLM. */
  saveTo(dir: string): Promise<void>
}

/** What a tokenizer is made from; `files` are copied as they are by `saveTo`, else the parsed parts are written. */
export interface TokenizerParts {
  /** For errors: the folder or file. */
  label: string
  tokenizerJson: Json
  tokenizerConfig: Json
  chatTemplate: string | null
  /** Where it is another one. */
  toolTemplate?: string | null
  eosTokenIds: readonly number[]
  /** By their names in the folder `label`. */
  files?: string[]
}

/** Where transformers writes the templates that have names since templates are files. */
const NAMED_TEMPLATES = 'additional_chat_templates'
const TOOL_TEMPLATE = `${NAMED_TEMPLATES}/tool_use.jinja`
const SPECIAL_TOKENS = 'special_tokens_map.json'
const ADDED_TOKENS = 'added_tokens.json'
const COPIED = [
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
  SPECIAL_TOKENS,
  ADDED_TOKENS,
  'vocab.json',
  'merges.txt',
  // What llama.cpp's converter reads of a Phi-3 or a Gemma 3; nothing here does.
  'tokenizer.model',
]

/** An answer that no template has in its own text. */
const ANSWER = 'the-answer-5c1f0e'

/** What the chat template writes behind an answer to `earlier`; '' if it does not write the answer as it is. */
export function closingOf(
  tokenizer: Pick<Tokenizer, 'renderChat'>,
  earlier: readonly Message[],
  options: ChatOptions = {},
): string {
  const messages: Message[] = [...earlier, { role: 'assistant', content: ANSWER }]
  const parts = tokenizer.renderChat(messages, { ...options, addGenerationPrompt: false }).split(ANSWER)
  return parts.length > 1 ? parts.at(-1)! : ''
}

/** The special token that the chat template writes behind an answer; null without one. */
export function endOfTurn(
  tokenizer: Pick<Tokenizer, 'renderChat' | 'encode' | 'isSpecial'>,
  options: ChatOptions = {},
): number | null {
  let behind: string
  try {
    behind = closingOf(tokenizer, [{ role: 'user', content: 'x' }], options)
  } catch {
    return null // A template that cannot be read, or that takes no such messages, says so when it is used.
  }
  const [first] = tokenizer.encode(behind.trimStart(), { addSpecialTokens: false })
  return first !== undefined && tokenizer.isSpecial(first) ? first : null
}

/** Reads the tokenizer of a Hugging Face folder. Throws UserError where there is none, or none that can be read. */
export async function loadTokenizer(dir: string, eosTokenIds: readonly number[]): Promise<Tokenizer> {
  const jsonPath = join(dir, 'tokenizer.json')
  if ((await kindOf(jsonPath)) !== 'file') {
    throw new UserError(
      `${dir} has no tokenizer.json, so text cannot be turned into tokens. Put the model's tokenizer files there.`,
    )
  }
  const configPath = join(dir, 'tokenizer_config.json')
  const ownConfig = (await kindOf(configPath)) === 'file' ? await readJson(configPath) : {}
  // Before transformers 4.34, special tokens stood in a file of their own, which it reads beside a config of that time.
  const mapPath = join(dir, SPECIAL_TOKENS)
  const older = !('added_tokens_decoder' in ownConfig) && (await kindOf(mapPath)) === 'file'
  const tokenizerConfig = older ? { ...ownConfig, ...(await readJson(mapPath)) } : ownConfig
  const tokenizerJson = await readJson(jsonPath)
  const addedPath = join(dir, ADDED_TOKENS)
  if (!('added_tokens_decoder' in ownConfig) && (await kindOf(addedPath)) === 'file')
    tokenizerConfig.added_tokens_decoder = addedTokensDecoder(await readJson(addedPath), tokenizerJson, tokenizerConfig)
  const jinja = join(dir, 'chat_template.jinja')
  const legacy = join(dir, 'chat_template.json')
  let templates = tokenizerConfig.chat_template
  if ((await kindOf(jinja)) === 'file') templates = await readText(jinja)
  else if ((await kindOf(legacy)) === 'file') {
    const { chat_template: own } = await readJson(legacy)
    if (templateOf(own) !== null) templates = own
  }
  const files: string[] = []
  const named = (await readdir(join(dir, NAMED_TEMPLATES)).catch(() => [])).filter((name) => name.endsWith('.jinja'))
  for (const name of [...COPIED, ...named.map((name) => `${NAMED_TEMPLATES}/${name}`)])
    if ((await kindOf(join(dir, name))) === 'file') files.push(name)
  const chatTemplate = templateOf(templates)
  const toolTemplate = files.includes(TOOL_TEMPLATE)
    ? await readText(join(dir, TOOL_TEMPLATE))
    : templateOf(templates, 'tool_use')
  return makeTokenizer({ label: dir, tokenizerJson, tokenizerConfig, chatTemplate, toolTemplate, eosTokenIds, files })
}

/** A template is a string, or a list of named ones: `default`, and `tool_use` for prompts that tell of tools. */
function templateOf(value: unknown, name = 'default'): string | null {
  if (typeof value === 'string') return value
  if (!Array.isArray(value)) return null
  const named = (value as ({ name?: unknown; template?: unknown } | null)[]).find((entry) => entry?.name === name)
  return typeof named?.template === 'string' ? named.template : null
}

/** A tokenizer from parsed parts. Throws UserError for a tokenizer.json that the library cannot read. */
export function makeTokenizer(parts: TokenizerParts): Tokenizer {
  return new HuggingFaceTokenizer(parts)
}

class HuggingFaceTokenizer implements Tokenizer {
  readonly vocabSize: number
  readonly eosTokenIds: readonly number[]
  readonly turnEnd: number | null
  readonly hasChatTemplate: boolean
  readonly chatTemplate: string | null
  readonly toolTemplate: string | null
  #parts: TokenizerParts
  #library: LibraryTokenizer
  #special = new Set<number>()
  /** Tokens that were added to the vocabulary: they are spelled as they are. */
  #added = new Map<number, string>()
  #byteLevel: boolean
  /** The model's own templates made ready, by their text. */
  #templates = new Map<string, ReturnType<typeof compileTemplate>>()

  constructor(parts: TokenizerParts) {
    this.#parts = parts
    this.chatTemplate = parts.chatTemplate
    this.toolTemplate = parts.toolTemplate ?? parts.chatTemplate
    this.hasChatTemplate = parts.chatTemplate !== null
    this.#byteLevel = JSON.stringify(parts.tokenizerJson.decoder ?? null).includes('"ByteLevel"')
    try {
      // Other keys of tokenizer_config.json would change texts here, and do not in Python; the unknown token is that of tokenizer.json.
      const { unk_token } = (parts.tokenizerJson.model ?? {}) as Json
      const config = { eos_token: contentOf(parts.tokenizerConfig.eos_token), unk_token, clean_up_tokenization_spaces: false }
      this.#library = new LibraryTokenizer(exactForm(parts.tokenizerJson, parts.tokenizerConfig), config)
      correct(this.#library as unknown as Parts)
    } catch (error) {
      throw new UserError(`The tokenizer of ${parts.label} cannot be read: ${messageOf(error)}.`)
    }
    let largest = -1
    for (const id of this.#library.get_vocab().values()) largest = Math.max(largest, id)
    this.vocabSize = largest + 1
    for (const [id, token] of this.#library.get_added_tokens_decoder()) {
      this.#added.set(id, token.content)
      if (token.special) this.#special.add(id)
    }
    const end = endOfTurn(this)
    this.turnEnd = end === null || parts.eosTokenIds.includes(end) ? null : end
    this.eosTokenIds = this.turnEnd === null ? parts.eosTokenIds : [...parts.eosTokenIds, this.turnEnd]
  }

  encode(text: string, options: { addSpecialTokens?: boolean } = {}): number[] {
    return this.#library.encode(text, { add_special_tokens: options.addSpecialTokens ?? true }).ids
  }

  decode(ids: ArrayLike<number>, options: { skipSpecialTokens?: boolean } = {}): string {
    const kept: number[] = []
    for (let i = 0; i < ids.length; i++) {
      const id = ids[i]
      if (this.idToToken(id) === null || (options.skipSpecialTokens && this.#special.has(id))) continue
      kept.push(id)
    }
    return kept.length === 0 ? '' : this.#library.decode(kept, { clean_up_tokenization_spaces: false })
  }

  renderChat(messages: readonly Message[], options: ChatOptions = {}): string {
    const { label, tokenizerConfig } = this.#parts
    const given = options.chatTemplate !== undefined
    const tools = options.tools?.length ? options.tools : null
    const source = options.chatTemplate ?? (tools ? this.toolTemplate : this.chatTemplate)
    if (source === null)
      throw new UserError(`The tokenizer of ${label} has no chat template. Put a chat_template.jinja beside it.`)
    const goesOn = options.continueFinalMessage ?? false
    if (goesOn && options.addGenerationPrompt)
      throw new UserError(
        'continue_final_message and add_generation_prompt are both set; an answer is either started or continued.',
      )
    const variables: Json = { tools, documents: null, ...specialTokens(tokenizerConfig) }
    const whose = given ? 'The chat_template of the request' : `The chat template of ${label}`
    let template: ReturnType<typeof compileTemplate>
    try {
      template = given ? compileTemplate(source) : this.#compiled(source)
    } catch (error) {
      throw new UserError(`${whose} cannot be read: ${messageOf(error)}.`)
    }
    const prompt = options.addGenerationPrompt ?? !goesOn
    const written = (shown: readonly object[]) =>
      template({ ...variables, ...options.variables, messages: shown, add_generation_prompt: prompt })
    try {
      return goesOn ? unfinished(messages, written) : rendered(messages, written)
    } catch (error) {
      if (error instanceof UserError) throw error
      throw new UserError(`${whose} does not take these messages: ${messageOf(error)}.`)
    }
  }

  #compiled(source: string): ReturnType<typeof compileTemplate> {
    const known = this.#templates.get(source)
    if (known) return known
    const template = compileTemplate(source)
    this.#templates.set(source, template)
    return template
  }

  encodeChat(messages: readonly Message[], options: ChatOptions = {}): number[] {
    return this.encode(this.renderChat(messages, options), { addSpecialTokens: false })
  }

  tokenToId(token: string): number | null {
    return this.#library.token_to_id(token) ?? null
  }

  idToToken(id: number): string | null {
    return this.#library.id_to_token(id) ?? null
  }

  tokenBytes(id: number): Uint8Array | null {
    const token = this.idToToken(id)
    if (token === null) return null
    return bytesOfToken(token, this.#added.has(id) ? 'text' : this.#byteLevel ? 'byte-level' : 'pieces')
  }

  isSpecial(id: number): boolean {
    return this.#special.has(id)
  }

  async saveTo(dir: string): Promise<void> {
    const { label, files, tokenizerJson, tokenizerConfig, chatTemplate } = this.#parts
    makeFolder(dir)
    for (const file of files ?? []) await writeWhole(join(dir, file), [await readFile(join(label, file))])
    const written = new Set(files)
    if (!written.has('tokenizer.json')) await writeWhole(join(dir, 'tokenizer.json'), [JSON.stringify(tokenizerJson)])
    if (!written.has('tokenizer_config.json')) await writeWhole(join(dir, 'tokenizer_config.json'), [jsonText(tokenizerConfig)])
    // A list in tokenizer_config.json is all of them, and the file would stand before it.
    const named = tokenizerConfig.chat_template
    const listed = Array.isArray(named) && templateOf(named) === chatTemplate
    if (chatTemplate !== null && !listed && !written.has('chat_template.jinja'))
      await writeWhole(join(dir, 'chat_template.jinja'), [chatTemplate])
  }
}

/** The special tokens that have names, as templates know them: `bos_token`, and those that a model has beside the usual ones. */
function specialTokens(config: Json): Json {
  const named = Object.entries(config).filter(([name]) => name.endsWith('_token'))
  for (const more of [config.extra_special_tokens, config.model_specific_special_tokens])
    if (typeof more === 'object' && more !== null && !Array.isArray(more)) named.push(...Object.entries(more))
  const tokens = named.map(([name, value]) => [name, contentOf(value)] as const)
  return Object.fromEntries(tokens.filter(([, token]) => token !== null))
}

/** A special token of tokenizer_config.json: a string, or an object with `content`. */
function contentOf(value: unknown): string | null {
  if (typeof value === 'string') return value
  const content = (value as { content?: unknown } | null | undefined)?.content
  return typeof content === 'string' ? content : null
}

/** Turns a stream of ids into text, piece by piece. */
export interface StreamDecoder {
  /** The text that this id completes: '' while a character's bytes are still coming. */
  push(id: number): string
  /** What was held back: bytes that never became a character, as U+FFFD. */
  flush(): string
}

/**
 * Decodes ids one at a time; the pieces together are `tokenizer.decode` of all ids. Text is held back while it ends in U+FFFD, which is
 * how the first bytes of an unfinished character decode, but no more of it than such bytes can be. Each step decodes only the ids since the last piece and the
 * piece before it (decoders that treat the first token otherwise, as SentencePiece's, then still join right).
 */
export function decodeStream(tokenizer: Tokenizer, options: { skipSpecialTokens?: boolean } = {}): StreamDecoder {
  let ids: number[] = []
  /** Ids of `ids` whose text was given out. */
  let given = 0
  let givenText = ''
  const decode = (some: readonly number[]) => tokenizer.decode(some, options)
  const take = (text: string, count: number) => {
    const piece = text.slice(givenText.length)
    ids = ids.slice(given)
    given = count - given
    givenText = decode(ids.slice(0, given))
    return piece
  }
  return {
    push(id) {
      // Decoding leaves it out.
      if (tokenizer.idToToken(id) === null || (options.skipSpecialTokens && tokenizer.isSpecial(id))) return ''
      ids.push(id)
      const text = decode(ids)
      if (text.length <= givenText.length) return ''
      if (!text.endsWith('\ufffd')) return take(text, ids.length)
      const settled = settledIds(ids, given, text, decode)
      return settled ? take(settled.text, settled.count) : ''
    },
    flush: () => take(decode(ids), ids.length),
  }
}
