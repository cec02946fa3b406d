/** Parsers for the tool calls that a model writes, by name, and which parser fits a chat template. */
import { UserError, nearest } from '../../../common/errors.ts'
import type { AnswerDelta, AnswerStream, ToolParser } from '../types.ts'
import { CallFinder } from './finder.ts'
import type { FinderRules } from './finder.ts'
import { DeltaWriter, parseWhole } from './stream.ts'

/**
 * hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes, Qwen 2.5, Qwen3 and SmolLM3 write it.
 * llama3_json: {"name": ..., "parameters": {...}} at the beginning of a line, several separated by ;.
 * json: the same with either key, and lists of calls.
 */
export const TOOL_PARSERS = ['hermes', 'llama3_json', 'json'] as const
type ToolParserName = (typeof TOOL_PARSERS)[number]

interface ToolParserOptions {
  /** Names of the tools that may be called. Parsers without tags treat other JSON as content. */
  names?: Iterable<string>
}

/**
 * The parser with this name.
 * @throws UserError for an unknown name
 */
export function toolParser(name: string, options: ToolParserOptions = {}): ToolParser {
  const known = TOOL_PARSERS.find((parser) => parser === name)
  if (!known) {
    const meant = nearest(name, TOOL_PARSERS)
    throw new UserError(
      `There is no tool parser "${name}"; choose one of ${TOOL_PARSERS.join(', ')}${meant ? `. Did you mean ${meant}?` : '.'}`,
    )
  }
  const rules = rulesOf(known, options.names === undefined ? undefined : new Set(options.names))
  const marks = [rules.tags?.open, rules.tags?.close, rules.prefix].filter((word) => word !== undefined)
  const stream = () => new CallFinder(rules)
  return { name: known, marks, stream, parse: (text) => parseWhole(stream(), text) }
}

function rulesOf(name: ToolParserName, names: ReadonlySet<string> | undefined): FinderRules {
  if (name === 'hermes') return { tags: { open: '<tool_call>', close: '</tool_call>' }, bare: true }
  if (name === 'llama3_json') return { prefix: '<|python_tag|>', separators: ';', names, bare: false }
  return { list: true, separators: ';,', names, bare: false }
}

/** The parser for the format that a chat template teaches; json if the template does not mention tools. */
export function toolParserFor(chatTemplate: string | null): ToolParserName {
  if (chatTemplate?.includes('<tool_call>')) return 'hermes'
  if (chatTemplate && (chatTemplate.includes('<|python_tag|>') || chatTemplate.includes('<|start_header_id|>')))
    return 'llama3_json'
  return 'json'
}

/** A parser that takes the whole text as the arguments of one call, for an answer that was constrained to them. */
export function namedCallParser(name: string): ToolParser {
  const stream = () => new NamedCall(name)
  return { name: 'named', marks: [], stream, parse: (text) => parseWhole(stream(), text) }
}

class NamedCall implements AnswerStream {
  readonly #name: string
  readonly #out = new DeltaWriter()

  constructor(name: string) {
    this.#name = name
  }

  push(text: string): AnswerDelta {
    if (text === '') return {}
    if (this.#out.count === 0) this.#out.begin(this.#name)
    this.#out.arguments(text)
    return this.#out.take()
  }

  flush(): AnswerDelta {
    return this.#out.take()
  }
}
