/** How tool calls are found in a model's answers. */
import type { ChatTemplate, ToolCallParser } from '../environments/index.ts'
import { thoughtsLength } from '../inference/parsers/reasoning.ts'
import { toolParser, toolParserFor } from '../inference/parsers/tools/index.ts'
import type { ToolParser } from '../inference/parsers/types.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'

/**
 * The parser of this name. 'auto' is the parser of the form that the chat template renders or, if it renders no tools, of the form in which they are
 * described as text. A malformed call in tags counts as a call with its text as arguments, so that the tool can say what is wrong with them. Calls in
 * thoughts are drafts, unless the thoughts never end: the renderers of verifiers let a call end them then.
 */
export function toolCallParser(name: string, tokenizer: Tokenizer, template: ChatTemplate): ToolCallParser {
  const own = template.showsTools ? toolParserFor(tokenizer.toolTemplate) : 'hermes'
  const parser = name === 'auto' ? own : name
  return (text, tools, prompt) => {
    const names = tools.map((tool) => tool.function.name)
    const at = thoughtsLength(text, prompt)
    const { content, tool_calls } = withBroken(toolParser(parser, { names }), text.slice(at), MOST_BROKEN)
    return { content: at > 0 ? text.slice(0, at) + (content ?? '') : content, tool_calls }
  }
}

/** Further malformed calls of an answer stay text. A toolbox refuses more calls than this by default. */
const MOST_BROKEN = 16

/** The calls in a text, in order. `most`: how many malformed ones are looked for. The parser leaves these in the content. */
function withBroken(parser: ToolParser, text: string, most: number): ReturnType<ToolCallParser> {
  const parsed = parser.parse(text)
  const broken = parser.name === 'hermes' && most > 0 ? /<tool_call>([^]*?)(?:<\/tool_call>|$)/u.exec(parsed.content ?? '') : null
  const at = broken ? text.indexOf(broken[0]) : -1
  if (!broken || at < 0) return parsed
  const inside = broken[1].trim()
  const called = /"name"\s*:\s*"([\w-]{1,64})"/u.exec(inside)?.[1] ?? 'unnamed'
  const call = { id: 'call_0', type: 'function' as const, function: { name: called, arguments: inside } }
  const [before, after] = [parser.parse(text.slice(0, at)), withBroken(parser, text.slice(at + broken[0].length), most - 1)]
  const content = [before.content, after.content].map((part) => part?.trim()).filter((part) => part)
  return { content: content.join('\n'), tool_calls: [...before.tool_calls, call, ...after.tool_calls] }
}
