/**
 * Encodes chat messages turn by turn. Earlier turns are not rendered again: their tokens stay as they were sampled, and only what the chat template
 * writes between two answers is added.
 *
 * To find that text, the conversation is rendered with a mark in place of the last answer. The text after the mark closes the assistant's turn,
 * contains the new messages, and opens the next answer. An answer that ended by itself already has its end token; a truncated one is closed as the
 * template does it.
 */
import type { ChatCompletion, Message, ToolCall, ToolDefinition } from '../common/types.ts'

interface RenderOptions {
  addGenerationPrompt?: boolean
  tools?: readonly ToolDefinition[]
  variables?: Variables
}

/** The parts of a tokenizer that are used here; that of src/model has them. */
export interface ChatTokenizer {
  readonly eosTokenIds: readonly number[]
  renderChat(messages: readonly Message[], options?: RenderOptions): string
  encode(text: string, options?: { addSpecialTokens?: boolean }): number[]
  decode(ids: ArrayLike<number>): string
}

/** A prompt as text and as ids. */
export interface EncodedPrompt {
  ids: number[]
  text: string
  /** Whether encoding stopped early because there were too many ids already. */
  cut?: boolean
}

type Tools = readonly ToolDefinition[] | undefined
type Variables = Record<string, unknown>

const MARK = 'the-last-answer-5c1f0e'
/** Characters for each allowed token. Longer texts are encoded in growing pieces from the start until they are known to be too long. */
const LETTERS = 16

export class ChatTemplate {
  readonly #tokenizer: ChatTokenizer
  readonly #variables: Variables
  #showsTools: boolean | undefined
  #callsShown: boolean | undefined

  /** `variables`: more template variables, such as Qwen3's `enable_thinking` (chat_template_kwargs in a config). */
  constructor(tokenizer: ChatTokenizer, variables: Variables = {}) {
    this.#tokenizer = tokenizer
    this.#variables = variables
  }

  /** Returns a template with additional variables. */
  with(variables?: Variables): ChatTemplate {
    if (!variables) return this
    return new ChatTemplate(this.#tokenizer, { ...this.#variables, ...variables })
  }

  /** Whether the template writes tools into the prompt. If not, the system message describes them. */
  get showsTools(): boolean {
    if (this.#showsTools !== undefined) return this.#showsTools
    const name = 'probe_7c1'
    const parameters = { type: 'object', properties: {} }
    const tools: ToolDefinition[] = [{ type: 'function', function: { name, description: name, parameters } }]
    const user: Message = { role: 'user', content: 'x' }
    return (this.#showsTools = this.#contains(name, [user], tools))
  }

  /** Whether the template writes an answer's tool calls. Some templates do so without writing tools. */
  get #showsCalls(): boolean {
    if (this.#callsShown !== undefined) return this.#callsShown
    const name = 'probe_7c1'
    const call: ToolCall = { id: 'probe7c1x', type: 'function', function: { name, arguments: '{}' } }
    const answer: Message = { role: 'assistant', content: '', tool_calls: [call] }
    return (this.#callsShown = this.#contains(name, [{ role: 'user', content: 'x' }, answer]))
  }

  #contains(name: string, messages: readonly Message[], tools?: Tools): boolean {
    return attempt(() => this.#written(messages, tools && { tools }).includes(name)) ?? false
  }

  /** The text of a whole conversation, up to the start of the next answer. @throws the template's error */
  text(messages: readonly Message[], tools?: Tools): string {
    return this.render(messages, tools, true)
  }

  /** The text of ids, including special tokens. */
  textOf(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids)
  }

  /** `text` and its ids; if there are far more than `most` ids, only the first ones. */
  prompt(messages: readonly Message[], tools?: Tools, most = Infinity): EncodedPrompt {
    const text = this.text(messages, tools)
    return { text, ...this.#encode(text, most) }
  }

  /** Encodes only the beginning of a text that is too long: encoding 40 MB would block the process for a minute, only to be refused. */
  #encode(text: string, most: number): { ids: number[]; cut?: boolean } {
    for (let end = LETTERS * most; end < text.length; end *= 4) {
      const ids = this.#tokenizer.encode(text.slice(0, end), { addSpecialTokens: false })
      // Tokens near the cut may be wrong.
      if (ids.length > 2 * most) return { ids, cut: true }
    }
    return { ids: this.#tokenizer.encode(text, { addSpecialTokens: false }) }
  }

  /**
   * Encodes a conversation that continues `previous`; the ids begin with its tokens. `text` covers only the new tokens; `most` is as in `prompt`.
   * @returns null if the last answer cannot be found in the rendered text
   * @throws Error if `messages` contain no answer
   */
  next(messages: readonly Message[], previous: ChatCompletion, tools?: Tools, most = Infinity): EncodedPrompt | null {
    const at = answerAt(messages, previous)
    if (at < 0) throw new Error('the messages have no answer that they could go on after')
    const rendered = this.#afterMark(messages, at, tools)
    if (rendered === null) return null
    const { tokenizer, last } = { tokenizer: this.#tokenizer, last: previous.ids.at(-1) }
    const own = last !== undefined && tokenizer.eosTokenIds.includes(last) ? tokenizer.decode([last]) : ''
    const ended = own !== '' && rendered.trimStart().startsWith(own)
    const text = ended ? rendered.slice(rendered.indexOf(own) + own.length) : rendered
    const { ids, cut } = this.#encodeAfter(text, ended ? own : '', most)
    return { text, ids: [...previous.promptIds, ...previous.ids, ...ids], cut }
  }

  /** Encodes text that follows a special token. (Some tokenizers treat the beginning of a text differently.) */
  #encodeAfter(text: string, anchor: string, most: number): { ids: number[]; cut?: boolean } {
    const { eosTokenIds } = this.#tokenizer
    const before = anchor || (eosTokenIds.length > 0 ? this.#tokenizer.decode([eosTokenIds[0]]) : '')
    const { ids, cut } = this.#encode(before + text, most)
    return before !== '' && eosTokenIds.includes(ids[0]) ? { ids: ids.slice(1), cut } : this.#encode(text, most)
  }

  #afterMark(messages: readonly Message[], at: number, tools: Tools): string | null {
    const marked = (answer: Message) => [...messages.slice(0, at), answer, ...messages.slice(at + 1)]
    const bare: Message = { role: 'assistant', content: MARK }
    const text = attempt(() => this.render(marked(bare), tools, true))
    if (text !== null && text !== undefined) return behind(text, MARK)
    // A template may refuse a tool's result without the call before it.
    const calling = { ...bare, tool_calls: messages[at].tool_calls }
    const whole = this.render(marked(calling), tools, true)
    const closed = this.render([...messages.slice(0, at), calling], tools, false)
    const ends = this.#tokenizer.eosTokenIds.map((id) => closed.lastIndexOf(this.#tokenizer.decode([id])))
    const end = Math.max(...ends)
    return end > closed.indexOf(MARK) && whole.startsWith(closed) ? whole.slice(end) : null
  }

  /** Renders a conversation, with tools in the template's format or described as text. `addGenerationPrompt` opens the next answer. */
  render(messages: readonly Message[], tools: Tools, addGenerationPrompt: boolean): string {
    const wanted = tools !== undefined && tools.length > 0
    const called = messages.some(({ role, tool_calls }) => role === 'tool' || tool_calls?.length)
    // If tools are described as text, calls are written as that text says.
    const shown = !this.showsTools && (wanted || (called && !this.#showsCalls))
    const given = shown ? withToolsAsText(messages, tools ?? []) : messages
    const told = wanted && !shown ? { tools } : {}
    return this.#written(given, { addGenerationPrompt, ...told })
  }

  #written(messages: readonly Message[], options?: RenderOptions): string {
    return this.#tokenizer.renderChat(messages, { ...options, variables: this.#variables })
  }
}

/** The index of a completion's answer among messages. */
function answerAt(messages: readonly Message[], previous: ChatCompletion): number {
  const same = previous.message ? messages.lastIndexOf(previous.message) : -1
  return same >= 0 ? same : messages.findLastIndex((message) => message.role === 'assistant')
}

function behind(text: string, mark: string): string | null {
  const parts = text.split(mark)
  return parts.length === 2 ? parts[1] : null
}

function attempt<T>(work: () => T): T | undefined {
  try {
    return work()
  } catch {
    return undefined
  }
}

/** Writes tools, calls and results as text in the tags of Hermes models, for templates without tools. */
function withToolsAsText(messages: readonly Message[], tools: readonly ToolDefinition[]): Message[] {
  const plain: Message[] = []
  for (const message of messages) {
    const before = plain.at(-1)
    if (message.role === 'tool') {
      const result = `<tool_response>\n${message.content}\n</tool_response>`
      // Results of calls from one answer go into one message.
      const joins = before?.role === 'user' && before.content.endsWith('</tool_response>')
      if (joins) plain.splice(-1, 1, { role: 'user', content: `${before.content}\n${result}` })
      else plain.push({ role: 'user', content: result })
    } else if (message.tool_calls) {
      const calls = message.tool_calls.map(callText)
      plain.push({ role: 'assistant', content: [message.content, ...calls].filter((part) => part !== '').join('\n') })
    } else plain.push(message)
  }
  if (tools.length === 0) return plain
  const list = tools.map((tool) => JSON.stringify(tool.function)).join('\n')
  const how =
    `These functions can be called:\n<tools>\n${list}\n</tools>\nTo call one, answer in this form, and its result comes back in ` +
    `<tool_response> tags:\n${callText({ function: { name: tools[0].function.name, arguments: exampleOf(tools[0]) } })}`
  const [first, ...rest] = plain
  return first?.role === 'system'
    ? [{ role: 'system', content: `${first.content}\n\n${how}` }, ...rest]
    : [{ role: 'system', content: how }, ...plain]
}

/** Example arguments of a call, with dots as values. */
function exampleOf({ function: { parameters } }: ToolDefinition): string {
  const names = Object.keys((parameters.properties ?? {}) as object)
  return JSON.stringify(Object.fromEntries(names.map((name) => [name, '...'])))
}

const callText = ({ function: { name, arguments: given } }: Pick<ToolCall, 'function'>): string =>
  `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${given}}\n</tool_call>`
