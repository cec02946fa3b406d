/** Environments in which the policy may call tools, until an answer calls none. Names as in verifiers. */
import type { Message } from '../common/types.ts'
import { closeMcp, connectMcp, type McpConnection, type McpServer } from './mcp.ts'
import type { KeysOf } from './known-options.ts'
import { multiTurnKeys, type MultiTurnOptions, type State, TurnsEnv } from './multi-turn.ts'
import { readTasks, type WithRows } from './task-env.ts'
import { Toolbox, type ToolboxOptions, type ToolContext } from './tools.ts'

type Shared<Own extends object> = Omit<MultiTurnOptions<Own>, 'envResponse' | 'toolDefinitions'>

export interface ToolEnvOptions<Own extends object = Record<string, unknown>>
  extends Shared<Own>, Omit<ToolboxOptions, 'tools' | 'hidden' | 'updateArgs'> {
  /** Default: only the tools of `mcp`. */
  tools?: ToolboxOptions['tools']
  /** MCP servers whose tools are offered in addition to `tools`. */
  mcp?: readonly McpServer[]
  /** The environment's reply to an answer that calls no tool. Default: such an answer ends the rollout. */
  noToolsCalled?: (state: State<Own>) => string | Message[]
}

const { envResponse: _, toolDefinitions: __, ...sharedKeys } = multiTurnKeys
const toolKeys: KeysOf<ToolEnvOptions> = {
  ...sharedKeys,
  tools: true,
  mcp: true,
  noToolsCalled: true,
  formatError: true,
  stopsAt: true,
  maxResultChars: true,
  maxCalls: true,
}

class ToolsEnv<Own extends object> extends TurnsEnv<Own> {
  readonly #servers: readonly McpConnection[]

  constructor(
    options: WithRows<ToolEnvOptions<Own>> & Pick<ToolboxOptions, 'hidden' | 'updateArgs'>,
    servers: readonly McpConnection[] = [],
  ) {
    const toolbox = new Toolbox({ ...options, tools: [...(options.tools ?? []), ...servers.flatMap((server) => server.tools)] })
    const { noToolsCalled } = options
    super({
      ...options,
      toolDefinitions: toolbox.definitions,
      counts: [...(options.counts ?? []), ...toolbox.counts],
      stop: {
        ...(!noToolsCalled && { no_tools_called: (state: State<Own>) => callsOf(state).length === 0 }),
        ...options.stop,
      },
      envResponse: async (_, state) => {
        const calls = callsOf(state)
        return calls.length === 0 ? noToolsCalled!(state) : await toolbox.answer(calls, state as unknown as ToolContext['state'])
      },
    })
    this.#servers = servers
  }

  async close(): Promise<void> {
    await closeMcp(this.#servers)
  }
}

/** Makes an environment with the tools of MCP servers. On failure the servers are closed, as their processes would keep running. */
async function withServers<Env>(
  { mcp = [] }: { mcp?: readonly McpServer[] },
  make: (open: McpConnection[]) => Env,
): Promise<Env> {
  const open = await connectMcp(mcp)
  try {
    return make(open)
  } catch (error) {
    await closeMcp(open)
    throw error
  }
}

/**
 * An environment with tools. The calls of each answer run concurrently, and their results are the next messages. An answer without a call ends the
 * rollout (`no_tools_called`). Metrics: total_tool_calls, tool_errors, and `<tool>_calls` for each tool.
 */
export class ToolEnv<Own extends object = Record<string, unknown>> extends ToolsEnv<Own> {
  /** Reads the datasets and lists the tools of the MCP servers. Throws UserError for unusable data and unusable servers. */
  static async create<Own extends object = Record<string, unknown>>(options: ToolEnvOptions<Own>): Promise<ToolEnv<Own>> {
    const read = await readTasks(options, toolKeys)
    return await withServers(options, (open) => new ToolEnv(read, open))
  }
}

export interface StatefulToolEnvOptions<Own extends object = Record<string, unknown>> extends ToolEnvOptions<Own> {
  /** Arguments hidden from the model, by tool. */
  hidden: Record<string, readonly string[]>
  /** Fills in the hidden arguments of each call, from the rollout's state (`setupState`). */
  updateToolArgs: (
    name: string,
    args: Record<string, unknown>,
    state: State<Own>,
  ) => Record<string, unknown> | Promise<Record<string, unknown>>
}

/** An environment whose tools work on state that belongs to the rollout: a file, a session, a game. */
export class StatefulToolEnv<Own extends object = Record<string, unknown>> extends ToolsEnv<Own> {
  static async create<Own extends object = Record<string, unknown>>(
    options: StatefulToolEnvOptions<Own>,
  ): Promise<StatefulToolEnv<Own>> {
    const updateArgs: ToolboxOptions['updateArgs'] = (name, args, state) =>
      options.updateToolArgs(name, args, state as unknown as State<Own>)
    const read = await readTasks(options, { ...toolKeys, hidden: true, updateToolArgs: true })
    return await withServers(options, (open) => new StatefulToolEnv({ ...read, updateArgs }, open))
  }
}

const callsOf = (state: { completion: readonly Message[] }) => state.completion.at(-1)?.tool_calls ?? []
