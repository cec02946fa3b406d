/** Determines what `tools` and `tool_choice` of a request mean for its prompt, grammar and parser. */
import { UserError } from '../../../common/errors.ts'
import type { ToolDefinition } from '../../../common/types.ts'
import type { GrammarFormat } from '../../grammar/types.ts'
import type { ToolParser } from '../types.ts'
import { namedCallParser, toolParser, toolParserFor } from './index.ts'

interface ToolRequest {
  tools?: unknown
  /** none, auto, required, or { type: 'function', function: { name } }. Default: auto with tools, none without. */
  tool_choice?: unknown
  /** Default true. */
  parallel_tool_calls?: unknown
}

/** What a request's tools mean for its answer. */
export interface ToolPlan {
  /** For the chat template; empty if there are none. */
  tools: ToolDefinition[]
  /** Finds the calls in the answer; null if the answer is plain text. */
  parser: ToolParser | null
  /** The format that the answer is constrained to; null if it is free. */
  format: GrammarFormat | null
  /** Maximum calls that are returned. */
  most: number
}

const MOST_TOOLS = 512

/**
 * @param parser a tool parser's name, or 'auto' to choose by the chat template
 * @throws UserError that names the field
 */
export function planTools(request: ToolRequest, parser: string, chatTemplate: string | null): ToolPlan {
  const tools = readTools(request.tools)
  const choice = request.tool_choice ?? (tools.length > 0 ? 'auto' : 'none')
  const most = request.parallel_tool_calls === false ? 1 : Infinity
  if (choice === 'none') return { tools, parser: null, format: null, most }
  if (tools.length === 0) throw new UserError(`tool_choice is ${JSON.stringify(choice)}, but there are no tools. Give "tools".`)
  const names = tools.map((tool) => tool.function.name)
  if (choice === 'auto') {
    const name = parser === 'auto' ? toolParserFor(chatTemplate) : parser
    return { tools, parser: toolParser(name, { names }), format: null, most }
  }
  // As in OpenAI's API and vLLM, a tool's schema may have parts that cannot be enforced: it may come from a library or an MCP server, where the
  // client cannot change it.
  const looseOf = (...of: ToolDefinition[]) => of.some(({ function: made }) => (made as { strict?: unknown }).strict !== true)
  if (choice === 'required') {
    // As in vLLM: a list of calls, whatever format the model was trained to write.
    const items = {
      anyOf: tools.map(({ function: { name } }) => ({
        type: 'object',
        properties: { name: { const: name }, parameters: { $ref: `#/$defs/${pointer(name)}` } },
        required: ['name', 'parameters'],
      })),
    }
    const $defs = Object.fromEntries(tools.map(({ function: { name, parameters } }) => [name, movedBelow(parameters, name)]))
    const schema = { type: 'array', items, minItems: 1, ...(most === 1 ? { maxItems: 1 } : {}), $defs }
    return {
      tools,
      parser: toolParser('json', { names }),
      format: { type: 'json_schema', schema, loose: looseOf(...tools) },
      most,
    }
  }
  const name = (choice as { function?: { name?: unknown } }).function?.name
  const tool = tools.find((one) => one.function.name === name)
  if (!tool)
    throw new UserError(
      `tool_choice is ${JSON.stringify(choice)}; it must be none, auto, required, or {"type": "function", "function": {"name": one of tools}}.`,
    )
  return {
    tools,
    parser: namedCallParser(tool.function.name),
    format: { type: 'json_schema', schema: asObject(tool.function.parameters), loose: looseOf(tool) },
    most,
  }
}

/**
 * The tools of a request in the form that templates take.
 * @throws UserError for anything but a list of functions
 */
export function readTools(value: unknown): ToolDefinition[] {
  if (value === undefined || value === null) return []
  if (!Array.isArray(value) || value.length > MOST_TOOLS)
    throw new UserError(`tools: it must be a list of up to ${MOST_TOOLS} functions.`)
  return value.map((tool: unknown, i) => {
    const made = (tool as { type?: unknown; function?: Record<string, unknown> } | null)?.function
    const parameters = made?.parameters ?? { type: 'object', properties: {} }
    if (typeof made?.name !== 'string' || !/^[\w.:-]{1,128}$/.test(made.name))
      throw new UserError(
        `tools[${i}]: it must be {"type": "function", "function": {"name", "description", "parameters"}}, with a name of letters, digits, _, -, . and :.`,
      )
    if (typeof parameters !== 'object' || Array.isArray(parameters))
      throw new UserError(`tools[${i}].function.parameters must be a JSON schema.`)
    return { type: 'function', function: { ...made, name: made.name, parameters: parameters as Record<string, unknown> } }
  })
}

/** Arguments are an object, whether their schema says so or not; without properties, the object is empty. */
function asObject(parameters: Record<string, unknown>): Record<string, unknown> {
  const plain = Object.keys(parameters).every((key) => key === 'type' || (key === 'properties' && isEmpty(parameters[key])))
  return { ...parameters, type: 'object', ...(plain ? { additionalProperties: false } : {}) }
}

const isEmpty = (value: unknown) => typeof value === 'object' && value !== null && Object.keys(value).length === 0

const pointer = (name: string) => name.replaceAll('~', '~0').replaceAll('/', '~1')

/** The schema with its local references moved below `#/$defs/NAME`. */
function movedBelow(parameters: Record<string, unknown>, name: string): unknown {
  const moved = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(moved)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(
      Object.entries(value).map(([key, inner]): [string, unknown] =>
        key === '$ref' && typeof inner === 'string' && inner.startsWith('#')
          ? [key, `#/$defs/${pointer(name)}${inner.slice(1)}`]
          : [key, moved(inner)],
      ),
    )
  }
  return moved(asObject(parameters))
}
