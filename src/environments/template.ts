/**
 * Chat messages as tokens, turn by turn. A later turn never renders an earlier one anew: its tokens stay as they were sampled, and only
 * what the template writes between the two answers is added.
 *
 * How that text is found: the conversation is rendered with a mark in the place of the last answer; what follows the mark closes the
 * assistant's turn, holds the new messages and opens the next answer. An answer that ended by itself has its end token already; one
 * that was cut off is closed as the template closes it.
 */
import type { ChatCompletion, Message, ToolCall, ToolDefinition } from '../common/types.ts'

interface RenderOptions {
  addGenerationPrompt?: boolean
  tools?: readonly ToolDefinition[]
  variables?: Variables
}

/** What is needed of a tokenizer; the model room's has it. */
export interface ChatTokenizer {
  readonly eosTokenIds: readonly number[]
  renderChat(messages: readonly Message[], options?: RenderOptions): string
  encode(text: string, options?: { addSpecialTokens?: boolean }): number[]
  decode(ids: ArrayLike<number>): string
}

/** A prompt, as ids and as the text that they stand for. */
export interface EncodedPrompt {
  ids: number[]
  text: string
  /** There are more ids than these, which are too many already. */
  cut?: boolean
}

type Tools = readonly ToolDefinition[] | undefined
type Variables = Record<string, unknown>

const MARK = 'the-last-answer-5c1f0e'
/** Of a token: texts with more of them for each token that there is room for are encoded from their beginning. */
const LETTERS = 16

export class ChatTemplate {
  readonly #tokenizer: ChatTokenizer
  readonly #variables: Variables
  #showsTools: boolean | undefined
  #callsShown: boolean | undefined

  /** `variables`: more of them for the template, as Qwen3's `enable_thinking` (chat_template_kwargs of a config). */
  constructor(tokenizer: ChatTokenizer, variables: Variables = {}) {
    this.#tokenizer = tokenizer
    this.#variables = variables
  }

  /** The same, with further variables. */
  with(variables: Variables): ChatTemplate {
    return new ChatTemplate(this.#tokenizer, { ...this.#variables, ...variables })
  }

  /** Whether the template writes tools into the prompt. Where it does not, they are described in the system message. */
  get showsTools(): boolean {
    if (this.#showsTools !== undefined) return this.#showsTools
    const name = 'probe_7c1'
    const parameters = { type: 'object', properties: {} }
    const tools: ToolDefinition[] = [{ type: 'function', function: { name, description: name, parameters } }]
    const user: Message = { role: 'user', content: 'x' }
    return (this.#showsTools = this.#contains(name, [user], tools))
  }

  /** Whether the template writes an answer's calls, which some do that show no tools. */
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

  /** A whole conversation up to the opening of the next answer. Throws the template's complaint. */
  text(messages: readonly Message[], tools?: Tools): string {
    return this.render(messages, tools, true)
  }

  /** What ids say, special tokens included. */
  textOf(ids: readonly number[]): string {
    return this.#tokenizer.decode(ids)
  }

  /** `text`, and its ids; of far more than `most` not all. */
  prompt(messages: readonly Message[], tools?: Tools, most = Infinity): EncodedPrompt {
    const text = this.text(messages, tools)
    return { text, ...this.#encode(text, most) }
  }

  /** A message of 40 MB would take a minute, in which nothing else goes on, only to be refused: of such a text the beginning tells. */
  #encode(text: string, most: number): { ids: number[]; cut?: boolean } {
    for (let end = LETTERS * most; end < text.length; end *= 4) {
      const ids = this.#tokenizer.encode(text.slice(0, end), { addSpecialTokens: false })
      // Where it is cut its last tokens may be others.
      if (ids.length > 2 * most) return { ids, cut: true }
    }
    return { ids: this.#tokenizer.encode(text, { addSpecialTokens: false }) }
  }

  /**
   * A conversation that goes on after `previous`, whose tokens it begins with. `text`: of the new tokens alone; of far more than `most` not all.
   * null where the template gives the answer no place of its own.
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

  /** Encodes text that stands after a special token: some tokenizers treat the beginning of a text otherwise. */
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

  /** A conversation as text, the tools in the template's own form or as text; `addGenerationPrompt` opens the next answer. */
  render(messages: readonly Message[], tools: Tools, addGenerationPrompt: boolean): string {
    const wanted = tools !== undefined && tools.length > 0
    const called = messages.some(({ role, tool_calls }) => role === 'tool' || tool_calls?.length)
    // With tools that stand there as text, calls are written as it says.
    const shown = !this.showsTools && (wanted || (called && !this.#showsCalls))
    const given = shown ? withToolsAsText(messages, tools ?? []) : messages
    const told = wanted && !shown ? { tools } : {}
    return this.#written(given, { addGenerationPrompt, ...told })
  }

  #written(messages: readonly Message[], options?: RenderOptions): string {
    return this.#tokenizer.renderChat(messages, { ...options, variables: this.#variables })
  }
}

/** Where the answer of a completion stands among messages. */
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

/** Tools, calls and results as text, in the tags that Hermes' models are trained on, for templates that know nothing of tools. */
function withToolsAsText(messages: readonly Message[], tools: readonly ToolDefinition[]): Message[] {
  const plain: Message[] = []
  for (const message of messages) {
    const before = plain.at(-1)
    if (message.role === 'tool') {
      const result = `<tool_response>\n${message.content}\n</tool_response>`
      // The results of calls that were made side by side stand in one message.
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

/** Arguments of a call, with dots for what is to be filled in. */
function exampleOf({ function: { parameters } }: ToolDefinition): string {
  const names = Object.keys((parameters.properties ?? {}) as object)
  return JSON.stringify(Object.fromEntries(names.map((name) => [name, '...'])))
}

const callText = ({ function: { name, arguments: given } }: Pick<ToolCall, 'function'>): string =>
  `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${given}}\n</tool_call>`
