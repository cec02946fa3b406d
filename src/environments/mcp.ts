/** Tools of MCP servers, over stdio or HTTP. The MCP library is optional, and is loaded only if a config or environment names a server. */
import { messageOf, UserError } from '../common/errors.ts'
import { MOST_MS } from '../common/timers.ts'
import { withLimit } from './limit.ts'
import { load } from './packages.ts'
import { type JsonSchema, type Tool, ToolGoneError } from './tools.ts'

const LIBRARY = '@modelcontextprotocol/client'

/** A program that speaks MCP on stdin and stdout, or the URL of a server (Streamable HTTP). */
export type McpServer = (
  | { command: string; args?: readonly string[]; env?: Record<string, string>; cwd?: string }
  | { url: string; headers?: Record<string, string> }
) & {
  /** Which of the server's tools to offer. Default: all. */
  tools?: readonly string[]
  /** Time limit of a call in seconds. Default 30. Connecting may take three times as long. */
  timeoutSeconds?: number
}

export interface McpConnection {
  tools: Tool[]
  close(): Promise<void>
}

/**
 * Connects to each server and lists its tools. All rollouts share the connections. Throws UserError that names a server which cannot be reached, does
 * not answer, or lacks a requested tool; servers connected so far are closed first.
 */
export async function connectMcp(servers: readonly McpServer[]): Promise<McpConnection[]> {
  const open: McpConnection[] = []
  try {
    for (const server of servers) open.push(await connect(server))
    return open
  } catch (error) {
    await closeMcp(open)
    throw error
  }
}

/** Closes the connections. Errors of closing are ignored. */
export const closeMcp = (open: readonly McpConnection[]) => Promise.allSettled(open.map((connection) => connection.close()))

interface Opened {
  client: Caller & { close(): Promise<void> }
  tools: { name: string; description?: string; inputSchema: object }[]
  /** The connection has ended, or a call could not be sent. */
  gone: boolean
}

/** Connects to a server and wraps its tools. If the connection is lost, the next call reconnects. */
async function connect(server: McpServer): Promise<McpConnection> {
  let opening = open(server)
  let closed = false
  const { tools } = await opening
  const current = async (): Promise<Opened> => {
    const seen = opening
    const last = await seen.catch(() => undefined)
    if (closed) throw new ToolGoneError(`the MCP server ${labelOf(server)} is closed`)
    if (last && !last.gone) return last
    // One call reconnects on behalf of all that are waiting.
    if (opening === seen) opening = open(server)
    return await opening.catch((error: unknown) => {
      throw new ToolGoneError(messageOf(error))
    })
  }
  const seconds = server.timeoutSeconds ?? 30
  const call: Call = async (name, args, signal) => {
    const opened = await current()
    try {
      // withLimit, which aborts the signal, says which tool took too long. The library's own limit would be a minute.
      const timeout = Math.min((seconds + 1) * 1000, MOST_MS)
      return await opened.client.callTool({ name, arguments: args }, { signal, timeout })
    } catch (error) {
      if (signal.aborted || !(opened.gone ||= isUncarried(error))) throw error
      throw new ToolGoneError(`the MCP server ${labelOf(server)} went away in a call of ${name}: ${messageOf(error)}`)
    }
  }
  return {
    tools: tools.map((one) => toolOf(one, call, seconds)),
    async close() {
      closed = true
      await (await opening.catch(() => undefined))?.client.close()
    },
  }
}

const labelOf = (server: McpServer) => ('url' in server ? server.url : [server.command, ...(server.args ?? [])].join(' '))

/** Whether an error means that the server did not answer. Errors that the server itself returns, such as for wrong arguments, go to the model. */
function isUncarried(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown }
  // fetch throws a TypeError if no server is listening.
  return error instanceof TypeError || /^(?:NOT_CONNECTED|CONNECTION_CLOSED|SEND_FAILED|CLIENT_HTTP)/u.test(String(code))
}

async function open(server: McpServer): Promise<Opened> {
  const seconds = server.timeoutSeconds ?? 30
  const { Client, StreamableHTTPClientTransport } = await load(LIBRARY, () => import('@modelcontextprotocol/client'))
  const client = new Client({ name: 'dawn-rl', version: '1' })
  // The end of what a program has written to stderr: why it ended stands there.
  let said = ''
  try {
    return await withLimit({ what: 'connecting', seconds: 3 * seconds }, async (signal) => {
      if ('url' in server) {
        const transport = new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: server.headers } })
        await client.connect(transport, { signal })
      } else {
        const { getDefaultEnvironment, StdioClientTransport } = await load(
          LIBRARY,
          () => import('@modelcontextprotocol/client/stdio'),
        )
        const { command, args, cwd } = server
        const env = { ...getDefaultEnvironment(), ...server.env }
        const transport = new StdioClientTransport({ command, args: [...(args ?? [])], env, cwd, stderr: 'pipe' })
        transport.stderr?.on('data', (bytes: Buffer) => (said = (said + bytes.toString()).slice(-2000)))
        await client.connect(transport, { signal })
      }
      const { tools } = await client.listTools(undefined, { signal })
      const missing = server.tools?.filter((name) => !tools.some((one) => one.name === name)) ?? []
      if (missing.length > 0)
        throw new Error(`it has no tool ${missing.join(', ')} (it has ${tools.map((t) => t.name).join(', ')})`)
      const opened: Opened = { client, tools: tools.filter(({ name }) => server.tools?.includes(name) ?? true), gone: false }
      client.onclose = () => (opened.gone = true)
      return opened
    })
  } catch (error) {
    await client.close().catch(() => {})
    const last = said.trim().split('\n').at(-1)
    const why = last ? `${messageOf(error)}; the last line on its stderr: ${last}` : `${messageOf(error)}.`
    throw new UserError(`The MCP server ${labelOf(server)} cannot be used: ${why}`)
  }
}

interface McpPart {
  type: string
  text?: string
  resource?: { text?: string }
  uri?: string
}

interface McpResult {
  content: unknown
  isError?: unknown
  structuredContent?: unknown
}

interface Caller {
  callTool(
    params: { name: string; arguments: Record<string, unknown> },
    options: { signal: AbortSignal; timeout: number },
  ): Promise<McpResult>
}

type Call = (name: string, args: Record<string, unknown>, signal: AbortSignal) => Promise<McpResult>

function toolOf({ name, description = '', inputSchema }: Opened['tools'][number], call: Call, timeoutSeconds: number): Tool {
  return {
    name,
    description,
    parameters: inputSchema as JsonSchema,
    timeoutSeconds,
    async run(args, { signal }) {
      const result = await call(name, args, signal)
      const parts = (Array.isArray(result.content) ? result.content : []) as McpPart[]
      // A file comes as a resource that contains its text, or as a link.
      const texts = parts.map((part) => part.text ?? part.resource?.text ?? part.uri ?? `[${part.type}]`)
      const text = texts.length > 0 ? texts.join('\n') : (JSON.stringify(result.structuredContent) ?? '')
      if (result.isError) throw new Error(text)
      return text
    },
  }
}
