/**
 * Tools: functions that the model may call. A tool declares its arguments as a zod object (or as a JSON schema, for a tool of an MCP server). The
 * chat template shows the schema to the model, and calls are checked against it. An error in a call is counted, and goes to the model as the tool's
 * result. The rollout fails only if the program behind a tool is gone (ToolGoneError) or `stopsAt` says so.
 */
import { z } from 'zod'
import { messageOf } from '../common/errors.ts'
import type { Message, ToolCall, ToolDefinition } from '../common/types.ts'
import { withLimit } from './limit.ts'
import type { TurnState } from './multi-turn.ts'

/** What a tool gets besides its arguments. */
export interface ToolContext {
  /** State of the rollout that makes the call. */
  state: TurnState & Record<string, unknown>
  /** Fires at the tool's time limit, and when the rollout ends. */
  signal: AbortSignal
}

/** A function that the model may call. */
export interface Tool {
  name: string
  description: string
  /** A zod object, or a JSON schema that the server checks itself. */
  parameters: z.ZodObject | JsonSchema
  /** Returns the result. A string goes to the model as it is, anything else as JSON. */
  run(args: Record<string, unknown>, context: ToolContext): unknown
  /** Time limit of a call. Default 30. */
  timeoutSeconds?: number
}

export interface JsonSchema {
  type: 'object'
  properties?: Record<string, unknown>
  [key: string]: unknown
}

/** The program or server behind a tool is gone. This fails the rollout: otherwise the model would be trained with tools that do not work. */
export class ToolGoneError extends Error {}

/** Makes a tool whose `run` gets arguments typed by the schema: `tool({ name, description, parameters: z.object({...}), run })`. */
export function tool<Shape extends z.ZodRawShape>(options: {
  name: string
  description: string
  parameters: z.ZodObject<Shape>
  run: (args: z.output<z.ZodObject<Shape>>, context: ToolContext) => unknown
  timeoutSeconds?: number
}): Tool {
  return options as unknown as Tool
}

/** The definition of a tool for the model, without the arguments named in `hidden`. Throws for a name or schema that cannot be shown. */
export function definitionOf(one: Tool, hidden: readonly string[] = []): ToolDefinition {
  const { name, description } = one
  if (typeof name !== 'string') throw new Error('a tool has no name; write tool({ name, description, parameters, run })')
  if (!/^[\w-]{1,64}$/u.test(name)) throw new Error(`tool "${name}": a name must have 1 to 64 letters, digits, - and _`)
  if (typeof one.run !== 'function') throw new Error(`tool "${name}": run must be a function, which makes the result`)
  const { $schema: _, ...schema } = isZod(one.parameters) ? jsonSchemaOf(name, one.parameters) : { ...one.parameters }
  // Without a type check, parameters may be anything: missing, { thing: z.string() }, z.string().
  if (schema.type !== 'object')
    throw new Error(`tool "${name}": parameters must be a z.object({...}), or a JSON schema with type: 'object'`)
  const properties = { ...(schema.properties as Record<string, unknown> | undefined) }
  for (const key of hidden) {
    if (!(key in properties)) throw new Error(`tool "${name}" has no argument "${key}" to hide`)
    delete properties[key]
  }
  const required = ((schema.required ?? []) as string[]).filter((key) => !hidden.includes(key))
  const parameters: Record<string, unknown> = { ...schema, properties, required }
  if (required.length === 0) delete parameters.required
  return { type: 'function', function: { name, description, parameters } }
}

function jsonSchemaOf(name: string, parameters: z.ZodObject) {
  try {
    return z.toJSONSchema(parameters, { io: 'input' })
  } catch (error) {
    throw new Error(
      `tool "${name}": its parameters cannot be written as a JSON schema for the model (${messageOf(error)}); use types that JSON has`,
    )
  }
}

const isZod = (schema: Tool['parameters']): schema is z.ZodObject => !!schema && 'safeParse' in schema

export interface ToolboxOptions {
  tools: readonly Tool[]
  /** The text that the model gets for an error. Default: `Error: <message>`. */
  formatError?: (error: Error) => string
  /** Selects errors that fail the rollout. Default: none. */
  stopsAt?: (error: Error) => boolean
  /** Maximum number of characters of a result that the model sees. Default 8000. */
  maxResultChars?: number
  /** Maximum number of calls in one answer. Further calls are refused. Default 16. */
  maxCalls?: number
  /** Arguments hidden from the model, by tool. */
  hidden?: Record<string, readonly string[]>
  /** Fills in hidden arguments, before all arguments are checked. */
  updateArgs?: (name: string, args: Record<string, unknown>, state: ToolContext['state']) => object | Promise<object>
}

/** A set of tools. Runs the calls of an answer concurrently. */
export class Toolbox {
  readonly definitions: readonly ToolDefinition[]
  readonly #tools: Map<string, Tool>
  readonly #options: ToolboxOptions

  /** Throws if two tools have the same name. */
  constructor(options: ToolboxOptions) {
    this.#options = options
    this.#tools = new Map(options.tools.map((one) => [one.name, one]))
    const twice = options.tools.find((one) => this.#tools.get(one.name) !== one)
    if (twice) throw new Error(`two tools are named "${twice.name}"; give one of them another name`)
    for (const name of Object.keys(options.hidden ?? {})) {
      if (!this.#tools.has(name)) throw new Error(`there is no tool "${name}" with arguments to hide`)
    }
    this.definitions = options.tools.map((one) => definitionOf(one, options.hidden?.[one.name]))
  }

  /** Names of the metrics that `answer` counts. */
  get counts(): string[] {
    return ['total_tool_calls', 'tool_errors', ...[...this.#tools.keys()].map((name) => `${name}_calls`)]
  }

  /**
   * Runs the calls of an answer. Returns the results as messages, one per call, in order. Throws ToolGoneError, errors that `stopsAt` selects, and
   * any error after the rollout was aborted.
   */
  async answer(calls: readonly ToolCall[], state: ToolContext['state']): Promise<Message[]> {
    return await Promise.all(
      calls.map(async (call, i): Promise<Message> => {
        const { name } = call.function
        count(state, 'total_tool_calls')
        if (this.#tools.has(name)) count(state, `${name}_calls`)
        const content = await this.#run(call, i, state).catch((thrown: unknown) => {
          const error = thrown instanceof Error ? thrown : new Error(messageOf(thrown))
          if (error instanceof ToolGoneError || this.#options.stopsAt?.(error) || state.signal.aborted) throw error
          count(state, 'tool_errors')
          return this.#options.formatError?.(error) ?? `Error: ${error.message}`
        })
        return { role: 'tool', tool_call_id: call.id, name, content: this.#cut(content) }
      }),
    )
  }

  async #run({ function: { name, arguments: given } }: ToolCall, index: number, state: ToolContext['state']): Promise<string> {
    const { maxCalls = 16, hidden, updateArgs } = this.#options
    if (index >= maxCalls) throw new Error(`at most ${maxCalls} calls at once`)
    const one = this.#tools.get(name)
    if (!one) throw new Error(`there is no tool "${name}"; there are ${[...this.#tools.keys()].join(', ')}`)
    let args = argumentsOf(name, given)
    // Values that the model made up for hidden arguments are dropped.
    for (const key of hidden?.[name] ?? []) delete args[key]
    if (updateArgs) args = (await updateArgs(name, args, state)) as Record<string, unknown>
    if (isZod(one.parameters)) {
      const checked = one.parameters.safeParse(args)
      if (!checked.success) throw new Error(`the arguments of ${name} are wrong: ${issuesOf(checked.error)}`)
      args = checked.data
    }
    const limits = { what: `the tool ${name}`, seconds: one.timeoutSeconds ?? 30, signal: state.signal }
    const result: unknown = await withLimit(limits, (signal) => one.run(args, { state, signal }))
    return typeof result === 'string' ? result : (JSON.stringify(result) ?? 'done')
  }

  #cut(text: string): string {
    const most = this.#options.maxResultChars ?? 8000
    if (text.length <= most) return text
    // A surrogate pair (such as an emoji) must not be cut in half.
    const shown = text.slice(0, most).replace(/[\ud800-\udbff]$/, '')
    return `${shown}\n... (${text.length - shown.length} more characters)`
  }
}

function argumentsOf(name: string, given: string): Record<string, unknown> {
  let value: unknown
  try {
    value = given.trim() === '' ? {} : JSON.parse(given)
  } catch (error) {
    throw new Error(`the arguments of ${name} are not JSON: ${messageOf(error)}`)
  }
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    throw new Error(`the arguments of ${name} must be a JSON object`)
  return value as Record<string, unknown>
}

const issuesOf = (error: z.ZodError): string =>
  error.issues.map(({ path, message }) => `${path.length > 0 ? `${path.join('.')}: ` : ''}${message}`).join('; ')

function count(state: TurnState, name: string): void {
  state.counts[name] = (state.counts[name] ?? 0) + 1
}
