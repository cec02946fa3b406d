/** Tools of MCP servers, over stdio or HTTP. The library is loaded when a server is named, and is optional. */
import { createRequire } from 'node:module'
import { messageOf, UserError } from '../common/errors.ts'
import { withLimit } from './limit.ts'
import type { JsonSchema, Tool } from './tools.ts'

/** A program that speaks MCP on stdin and stdout, or the URL of a server (Streamable HTTP). */
export type McpServer = (
  | { command: string; args?: readonly string[]; env?: Record<string, string>; cwd?: string }
  | { url: string; headers?: Record<string, string> }
) & {
  /** Only these of its tools. Default: all. */
  tools?: readonly string[]
  /** Of a call. Default 30; to connect: three times as much. */
  timeoutSeconds?: number
}

export interface McpConnection {
  tools: Tool[]
  close(): Promise<void>
}

/**
 * Connects to each server and asks for its tools; they are shared by all rollouts. Throws UserError naming the server that cannot be
 * reached, does not answer, or lacks a tool that was asked for; those already open are closed then.
 */
export async function connectMcp(servers: readonly McpServer[]): Promise<McpConnection[]> {
  const open: McpConnection[] = []
  try {
    for (const server of servers) open.push(await connect(server))
    return open
  } catch (error) {
    await Promise.allSettled(open.map((connection) => connection.close()))
    throw error
  }
}

async function connect(server: McpServer): Promise<McpConnection> {
  const label = 'url' in server ? server.url : [server.command, ...(server.args ?? [])].join(' ')
  const seconds = server.timeoutSeconds ?? 30
  const { Client, StreamableHTTPClientTransport } = await library(() => import('@modelcontextprotocol/client'))
  const client = new Client({ name: 'dawn-rl', version: '1' })
  try {
    return await withLimit({ what: 'connecting', seconds: 3 * seconds }, async (signal) => {
      if ('url' in server) {
        const transport = new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: server.headers } })
        await client.connect(transport, { signal })
      } else {
        const { getDefaultEnvironment, StdioClientTransport } = await library(() => import('@modelcontextprotocol/client/stdio'))
        const { command, args, cwd } = server
        const env = { ...getDefaultEnvironment(), ...server.env }
        await client.connect(new StdioClientTransport({ command, args: [...(args ?? [])], env, cwd, stderr: 'ignore' }), {
          signal,
        })
      }
      const { tools } = await client.listTools(undefined, { signal })
      const missing = server.tools?.filter((name) => !tools.some((one) => one.name === name)) ?? []
      if (missing.length > 0)
        throw new Error(`it has no tool ${missing.join(', ')} (it has ${tools.map((t) => t.name).join(', ')})`)
      const wanted = tools.filter(({ name }) => server.tools?.includes(name) ?? true)
      return { tools: wanted.map((one) => toolOf(one, client, seconds)), close: () => client.close() }
    })
  } catch (error) {
    await client.close().catch(() => {})
    throw new UserError(`The MCP server ${label} cannot be used: ${messageOf(error)}.`)
  }
}

interface McpPart {
  type: string
  text?: string
  resource?: { text?: string }
  uri?: string
}

interface Caller {
  callTool(
    params: { name: string; arguments: Record<string, unknown> },
    options: { signal: AbortSignal; timeout: number },
  ): Promise<{ content: unknown; isError?: unknown; structuredContent?: unknown }>
}

function toolOf(
  { name, description = '', inputSchema }: { name: string; description?: string; inputSchema: object },
  client: Caller,
  timeoutSeconds: number,
): Tool {
  return {
    name,
    description,
    parameters: inputSchema as JsonSchema,
    timeoutSeconds,
    async run(args, { signal }) {
      const result = await client.callTool({ name, arguments: args }, { signal, timeout: timeoutSeconds * 1000 })
      const parts = (Array.isArray(result.content) ? result.content : []) as McpPart[]
      // A file comes as a resource that holds its text, or as a link to it.
      const texts = parts.map((part) => part.text ?? part.resource?.text ?? part.uri ?? `[${part.type}]`)
      const text = texts.length > 0 ? texts.join('\n') : JSON.stringify(result.structuredContent ?? '')
      if (result.isError) throw new Error(text)
      return text
    },
  }
}

async function library<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load()
  } catch (error) {
    const there = isThere()
    if (there) throw error
    throw new UserError(
      'Tools of MCP servers need the npm package @modelcontextprotocol/client, which is not installed. Run: npm install @modelcontextprotocol/client',
    )
  }
}

function isThere(): boolean {
  try {
    createRequire(import.meta.url).resolve('@modelcontextprotocol/client')
    return true
  } catch {
    return false
  }
}
