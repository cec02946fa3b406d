/** How tool calls are found in a model's answers. */
import type { ChatTemplate, ToolCallParser } from '../environments/index.ts'
import { toolParser, toolParserFor } from '../inference/parsers/tools/index.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'

/**
 * The parser of this name. 'auto' is the parser of the form that the chat template renders or, if it renders no tools, of the form in which they are
 * described as text. A malformed call in tags counts as a call with its text as arguments, so that the tool can say what is wrong with them.
 */
export function toolCallParser(name: string, tokenizer: Tokenizer, template: ChatTemplate): ToolCallParser {
  const own = template.showsTools ? toolParserFor(tokenizer.toolTemplate) : 'hermes'
  const parser = name === 'auto' ? own : name
  return (text, tools) => {
    const parsed = toolParser(parser, { names: tools.map((tool) => tool.function.name) }).parse(text)
    const broken =
      parser === 'hermes' && parsed.tool_calls.length === 0 ? /<tool_call>([^]*?)(?:<\/tool_call>|$)/u.exec(text) : null
    if (!broken) return parsed
    const inside = broken[1].trim()
    const called = /"name"\s*:\s*"([\w-]{1,64})"/u.exec(inside)?.[1] ?? 'unnamed'
    const call = { id: 'call_0', type: 'function' as const, function: { name: called, arguments: inside } }
    return { content: text.slice(0, broken.index).trim(), tool_calls: [call] }
  }
}
