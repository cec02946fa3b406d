/** Tools: what the model is told of them, what its calls come to, and what goes wrong. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test } from 'vitest'
import { z } from 'zod'
import type { ChatCompletion, Message, ToolCall } from '../../src/common/types.ts'
import { runRollout } from '../../src/environments/rollout.ts'
import { Rubric } from '../../src/environments/rubric.ts'
import { StatefulToolEnv, ToolEnv, type ToolEnvOptions } from '../../src/environments/tool-env.ts'
import { definitionOf, type Tool, tool } from '../../src/environments/tools.ts'
import type { Environment } from '../../src/environments/types.ts'
import { completionOf, sampling, ScriptedClient } from './scripted.ts'

const add = tool({
  name: 'add',
  description: 'Adds.',
  parameters: z.object({ a: z.number().describe('One.'), b: z.number().default(1) }),
  run: ({ a, b }) => a + b,
})
const odd = (run: () => unknown, timeoutSeconds?: number) =>
  tool({ name: 'odd', description: 'Odd.', parameters: z.object({}), run, timeoutSeconds })

const common = {
  id: 'tools',
  rubric: new Rubric({ one: () => 1 }),
  dataset: [{ question: 'How much is 1 + 2?' }],
  evalSize: 0,
}
const make = (options: Partial<ToolEnvOptions> = {}) => ToolEnv.create({ ...common, tools: [add], ...options })

/** A turn that calls tools: name and arguments, as the model wrote them. */
function calling(...calls: [string, string][]): ChatCompletion {
  const tool_calls = calls.map(([name, given], i): ToolCall => ({
    id: `c${i}`,
    type: 'function',
    function: { name, arguments: given },
  }))
  return { ...completionOf('call'), message: { role: 'assistant', content: '', tool_calls } }
}

async function play(env: Environment, ...turns: (string | ChatCompletion)[]) {
  const client = new ScriptedClient((messages) => {
    const said = turns[messages.filter((m) => m.role === 'assistant').length]
    return typeof said === 'string' ? completionOf(said) : said
  })
  return await runRollout(env, env.dataset[0], { client, sampling, group: 'g', index: 0 })
}

const results = (messages: Message[]) =>
  messages.filter((m) => m.role === 'tool').map((m) => `${m.name} ${m.tool_call_id}: ${m.content}`)

test('the model is told names, descriptions and a JSON schema', () => {
  expect(definitionOf(add)).toEqual({
    type: 'function',
    function: {
      name: 'add',
      description: 'Adds.',
      parameters: {
        type: 'object',
        properties: { a: { type: 'number', description: 'One.' }, b: { type: 'number', default: 1 } },
        required: ['a'],
      },
    },
  })
  expect(() => definitionOf({ ...add, name: 'two words' })).toThrow('a name must have 1 to 64 letters')
  expect(() => definitionOf({ ...add, parameters: z.object({ day: z.date() }) })).toThrow(
    'tool "add": its parameters cannot be written as a JSON schema for the model (Date cannot be represented in JSON Schema)',
  )
})

test('what is no tool is refused before anything is played', async () => {
  const refused = (one: object | (() => unknown), message: string) =>
    expect(make({ tools: [one as Tool] })).rejects.toThrow(message)
  const { name, description } = add
  await refused(function lookUp() {}, 'tool "lookUp": run must be a function')
  await refused({ ...add, parameters: { a: z.number() } }, 'tool "add": parameters must be a z.object({...})')
  await refused({ ...add, parameters: z.string() }, 'tool "add": parameters must be')
  await refused({ name, description, parameters: z.object({}) }, 'tool "add": run must be a function')
  await refused({ type: 'function', function: { name, description } }, 'a tool has no name')
})

test('calls run side by side, results come in the order of the calls, an answer without a call ends it', async () => {
  const rollout = await play(await make(), calling(['add', '{"a": 1, "b": 2}'], ['add', '{"a": 5}']), '3')
  expect(rollout).toMatchObject({ error: null, reward: 1, stopCondition: 'no_tools_called' })
  expect(results(rollout.completion)).toEqual(['add c0: 3', 'add c1: 6'])
  expect(rollout.metrics).toEqual({ one: 1, total_tool_calls: 2, tool_errors: 0, add_calls: 2 })
  expect((await play(await make(), 'No need.')).metrics).toMatchObject({ total_tool_calls: 0, tool_errors: 0, add_calls: 0 })
})

describe('what goes wrong goes back as words, and is counted', () => {
  test.each<[string, ChatCompletion, RegExp, Partial<ToolEnvOptions>]>([
    ['arguments that are no JSON', calling(['add', '{"a": 1']), /^add c0: Error: the arguments of add are not JSON: /, {}],
    ['arguments that are no object', calling(['add', '[1]']), /must be a JSON object/, {}],
    ['arguments of another type', calling(['add', '{"a": "one"}']), /the arguments of add are wrong: a: .*number/, {}],
    ['a tool that there is not', calling(['sub', '{}']), /there is no tool "sub"; there are add/, {}],
    ['a tool that throws', calling(['odd', '{}']), /^odd c0: Error: broken$/, { tools: [odd(() => { throw new Error('broken') })] }],
    ['a tool that hangs', calling(['odd', '{}']), /the tool odd took longer than its limit of 0.02 s/, { tools: [odd(() => new Promise(() => {}), 0.02)] }],
    ['words of its own', calling(['add', 'x']), /^add c0: oops$/, { formatError: () => 'oops' }],
  ])('%s', async (_, turn, words, options) => {
    const rollout = await play(await make(options), turn, 'I give up.')
    expect(rollout).toMatchObject({ error: null, metrics: { total_tool_calls: 1, tool_errors: 1 } })
    // A name that the model made up is no metric.
    expect(rollout.metrics).not.toHaveProperty('sub_calls')
    expect(results(rollout.completion)[0]).toMatch(words)
  }) // prettier-ignore
  test('a hundred calls at once, and a result without end', async () => {
    const many = calling(...Array.from({ length: 100 }, (): [string, string] => ['add', '{"a": 1}']))
    const rollout = await play(await make({ maxCalls: 3 }), many, 'done')
    expect(rollout.metrics).toMatchObject({ total_tool_calls: 100, tool_errors: 97 })
    expect(results(rollout.completion)[99]).toContain('at most 3 calls at once')
    const long = await play(
      await make({ tools: [odd(() => 'x'.repeat(1e6))], maxResultChars: 10 }),
      calling(['odd', '{}']),
      'done',
    )
    expect(results(long.completion)).toEqual(['odd c0: xxxxxxxxxx\n... (999990 more characters)'])
    const whole = await make({ tools: [odd(() => 'x'.repeat(10))], maxResultChars: 10 })
    expect(results((await play(whole, calling(['odd', '{}']), 'done')).completion)).toEqual(['odd c0: xxxxxxxxxx'])
    const pairs = await make({ tools: [odd(() => '😀'.repeat(9))], maxResultChars: 5 })
    expect(results((await play(pairs, calling(['odd', '{}']), 'done')).completion)).toEqual([
      'odd c0: 😀😀\n... (14 more characters)',
    ])
  })
  test('calls without end are bounded by max_turns', async () => {
    const turns = Array.from({ length: 20 }, () => calling(['add', '{"a": 1}']))
    expect(await play(await make(), ...turns)).toMatchObject({ stopCondition: 'max_turns_reached', metrics: { add_calls: 9 } })
  })
  test('errors that are named fail the rollout', async () => {
    const env = await make({ tools: [odd(() => { throw new TypeError('mine') })], stopsAt: (error) => error instanceof TypeError }) // prettier-ignore
    expect(await play(env, calling(['odd', '{}']), 'x')).toMatchObject({
      reward: null,
      error: expect.stringContaining('the environment threw: mine (tools.test.ts:') as string,
    })
  })
  test('a call that fails the rollout stops the other calls before cleanup', async () => {
    const seen: string[] = []
    const slow = tool({
      name: 'slow',
      description: 'Slow.',
      parameters: z.object({}),
      run: (_, { signal }) =>
        new Promise(() => signal.addEventListener('abort', () => seen.push('slow was stopped'), { once: true })),
    })
    const fails = odd(() => { throw new TypeError('mine') }) // prettier-ignore
    const env = await make({
      tools: [slow, fails],
      stopsAt: (error) => error instanceof TypeError,
      cleanup: () => void seen.push('cleanup'),
    })
    expect((await play(env, calling(['slow', '{}'], ['odd', '{}']))).error).toContain('mine')
    expect(seen).toEqual(['slow was stopped', 'cleanup'])
  })
})

test('arguments that the model does not see come from the state of the rollout', async () => {
  const note = tool({
    name: 'note',
    description: 'Writes a line.',
    parameters: z.object({ line: z.string(), book: z.string().describe('Which.') }),
    run: ({ line, book }, { state }) => ((state.pages as string[]).push(`${book}: ${line}`), 'written'),
  })
  const env = await StatefulToolEnv.create<{ book: string; pages: string[] }>({
    ...common,
    tools: [note],
    hidden: { note: ['book'] },
    setupState: (row) => ({ book: `book ${row.exampleId}`, pages: [] }),
    // What the model makes up for it is not among them.
    updateToolArgs: (_, args, state) => ({ book: state.book, ...args }),
    rubric: new Rubric({ pages: ({ state }) => (state.pages as string[]).filter((page) => page === 'book 0: hello').length }),
  })
  expect(env.tools[0].function.parameters).toEqual({
    type: 'object',
    properties: { line: { type: 'string' } },
    required: ['line'],
  })
  const first = await play(env, calling(['note', '{"line": "hello", "book": "another"}']), 'done')
  expect(first).toMatchObject({ reward: 1, metrics: { note_calls: 1, tool_errors: 0 } })
  expect((await play(env, 'done')).reward).toBe(0)
  await expect(StatefulToolEnv.create({ ...common, tools: [note], hidden: { note: ['no'] }, updateToolArgs: (_, a) => a })).rejects.toThrow('no argument "no"') // prettier-ignore
})

describe('tools of MCP servers', () => {
  const file = join(import.meta.dirname, 'fixtures/mcp-server.mjs')
  const stdio = { command: process.execPath, args: [file] }
  const turn = calling(['add', '{"a": 2, "b": 3}'], ['fails', '{}'], ['hangs', '{}'], ['add', '{"a": "x"}'], ['silent', '{}'])
  const check = async (env: ToolEnv) => {
    onTestFinished(() => env.close())
    expect(env.tools.map((one) => one.function.name)).toEqual(['add', 'fails', 'silent', 'hangs', 'dies'])
    expect(env.tools[0].function).toMatchObject({ description: 'a + b', parameters: { required: ['a', 'b'] } })
    const rollout = await play(env, turn, 'done')
    expect(rollout).toMatchObject({ error: null, metrics: { total_tool_calls: 5, tool_errors: 3 } })
    const said = results(rollout.completion)
    // Files as resources too: their text, or where they are.
    expect(said.slice(0, 2)).toEqual(['add c0: 5', 'fails c1: Error: no luck\na log\n[resource]\nfile:///more'])
    expect(said[2]).toContain('took longer than its limit of 3 s')
    expect(said[3]).toMatch(/^add c3: Error: .*number/s)
    expect(said[4]).toBe('silent c4: ')
  }
  test('over stdio', async () => await check(await ToolEnv.create({ ...common, mcp: [{ ...stdio, timeoutSeconds: 3 }] })))
  test('without a limit', async () => {
    const env = await ToolEnv.create({ ...common, mcp: [{ ...stdio, timeoutSeconds: Infinity }] })
    onTestFinished(() => env.close())
    expect(results((await play(env, calling(['add', '{"a": 2, "b": 3}']), 'done')).completion)).toEqual(['add c0: 5'])
  })
  test('over HTTP', async () => {
    const server = spawn(process.execPath, [file, 'http'], { stdio: ['ignore', 'pipe', 'inherit'] })
    onTestFinished(() => void server.kill())
    const [port] = (await once(server.stdout, 'data')) as [Buffer]
    await check(await make({ tools: [], mcp: [{ url: `http://127.0.0.1:${String(port).trim()}/mcp`, timeoutSeconds: 3 }] }))
  })
  test('a server that dies fails the rollout that called it, and is started again by the next one', async () => {
    const env = await ToolEnv.create({ ...common, mcp: [stdio] })
    onTestFinished(() => env.close())
    const add = calling(['add', '{"a": 2, "b": 3}'])
    const dead = await play(env, calling(['dies', '{}']), 'done')
    expect(dead).toMatchObject({ reward: null, error: expect.stringMatching(/^the MCP server .* went away in a call of dies/) })
    const both = await Promise.all([play(env, add, 'done'), play(env, add, 'done')])
    for (const { error, completion } of both) expect([error, results(completion)]).toEqual([null, ['add c0: 5']])
  })
  test('a server that is away over HTTP fails the rollout: no tool has said so', async () => {
    const server = spawn(process.execPath, [file, 'http'], { stdio: ['ignore', 'pipe', 'inherit'] })
    const [port] = (await once(server.stdout, 'data')) as [Buffer]
    const url = `http://127.0.0.1:${String(port).trim()}/mcp`
    const env = await ToolEnv.create({ ...common, mcp: [{ url }] })
    onTestFinished(() => env.close())
    server.kill('SIGKILL')
    await once(server, 'exit')
    const add = calling(['add', '{"a": 2, "b": 3}'])
    expect((await play(env, add, 'done')).error).toMatch(/went away in a call of add: fetch failed/)
    expect((await play(env, add, 'done')).error).toMatch(/The MCP server .* cannot be used/)
  })
  test('a server that is not there, or lacks a tool, is one sentence', async () => {
    await expect(make({ mcp: [{ command: 'no-such-program' }] })).rejects.toThrow(
      /^The MCP server no-such-program cannot be used: .*(?:ENOENT|Connection closed)/,
    )
    await expect(make({ mcp: [{ ...stdio, tools: ['mul'] }] })).rejects.toThrow(
      'it has no tool mul (it has add, fails, silent, hangs, dies)',
    )
    const dies = {
      command: process.execPath,
      args: ['-e', 'console.error("reading keys\\nAPI_KEY is missing"); process.exit(1)'],
    }
    await expect(make({ mcp: [dies] })).rejects.toThrow(/cannot be used: .*; the last line on its stderr: API_KEY is missing$/s)
  })
  test('of a server whose tool has the name of another one nothing is left running', async () => {
    const running = () => process.getActiveResourcesInfo().filter((name) => name === 'ProcessWrap').length
    // Those of the tests before may be about to end.
    await expect.poll(running, { timeout: 10_000 }).toBe(0)
    const mcp = [{ ...stdio, tools: ['add'] }]
    await expect(make({ mcp })).rejects.toThrow('two tools are named "add"')
    await expect(StatefulToolEnv.create({ ...common, mcp, hidden: { none: [] }, updateToolArgs: (_, a) => a })).rejects.toThrow(
      'there is no tool "none"',
    )
    await expect.poll(running, { timeout: 10_000 }).toBe(0)
  })
})
