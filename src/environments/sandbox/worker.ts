/**
 * The child process of the sandbox. Each run gets a fresh QuickJS: a WebAssembly instance with its own memory, which cannot grow beyond the limit.
 * The code has the language and `console` and nothing else: no module loader, files, network, timers or host objects. QuickJS checks the deadline
 * every few thousand steps. Where it cannot (one huge BigInt product, a regular expression), the pool kills this process.
 */
import {
  newQuickJSWASMModuleFromVariant,
  newVariant,
  type QuickJSContext,
  type QuickJSHandle,
  RELEASE_SYNC,
} from 'quickjs-emscripten'
import type { SandboxCall, SandboxCause, SandboxJob, SandboxResult } from './protocol.ts'
import { serve } from './serve.ts'

/** The part of WebAssembly that is used here, as Node's types lack it. */
interface WasmMemory {
  readonly buffer: ArrayBuffer
}
declare const WebAssembly: { Memory: new (pages: { initial: number; maximum: number }) => WasmMemory }

/**
 * Runs before the code. It keeps its own references to the built-in functions it needs, so that code which overwrites them cannot change how results
 * are read. The seed makes Math.random, and therefore rewards, reproducible. `Function` and `eval` remain, as their code has no more access.
 */
const prelude = `(write, seed) => {
  const { parse, stringify } = JSON, text = String, apply = Reflect.apply
  const show = (x) => {
    if (typeof x === 'string') return x
    try { return (typeof x === 'object' && stringify(x)) || text(x) } catch { return '[unprintable]' }
  }
  const log = (...parts) => {
    let line = ''
    for (let i = 0; i < parts.length; i++) line += (i ? ' ' : '') + show(parts[i])
    // As JSON, since a string that leaves QuickJS ends at its first NUL.
    write(stringify(line))
  }
  globalThis.console = { log, info: log, warn: log, error: log, debug: log }
  let state = seed >>> 0
  Math.random = () => {
    state = (state * 1664525 + 1013904223) >>> 0
    return state / 4294967296
  }
  return { pack: (x) => stringify(x), unpack: (json) => parse(json), call: (f, args) => apply(f, undefined, args) }
}`

class Stopped extends Error {
  readonly why: SandboxCause
  constructor(why: SandboxCause, message: string) {
    super(message)
    this.why = why
  }
}

/** Processor time of this thread. While a software adapter keeps every core busy, a wall-clock limit would cut off code that is fast enough. */
function processorSeconds(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1e6
}

/** Runs a job. Never throws because of what the code does. */
async function run(job: SandboxJob): Promise<SandboxResult> {
  const result: SandboxResult = { stdout: '', value: undefined, calls: [], error: null, cause: null }
  try {
    // Sizes are in pages of 64 KiB; QuickJS needs 256 of them to start. This limit holds independently of QuickJS's own accounting.
    const memory = new WebAssembly.Memory({ initial: 256, maximum: job.memoryMb * 16 })
    const quickjs = await newQuickJSWASMModuleFromVariant(newVariant(RELEASE_SYNC, { wasmMemory: memory }))
    const runtime = quickjs.newRuntime({ memoryLimitBytes: job.memoryMb * 2 ** 20, maxStackSizeBytes: 256 * 1024 })
    const context = runtime.newContext()
    // Nothing is disposed: QuickJS would abort after a hostile run, and the whole instance is discarded anyway.
    play(job, context, memory, result)
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    if (error instanceof Stopped) [result.error, result.cause] = [message, error.why]
    else if (/out of memory|OOM|memory access out of bounds|Cannot enlarge/iu.test(message))
      [result.error, result.cause] = memoryWords(job)
    else if (/call stack/iu.test(message)) [result.error, result.cause] = ['it nested too deep for the stack', 'stack']
    else [result.error, result.cause] = [`the sandbox broke: ${message.slice(0, 200)}`, 'crash']
  }
  return result
}

const memoryWords = (job: SandboxJob): [string, SandboxCause] => [`it needed more memory than its ${job.memoryMb} MiB`, 'memory']

function play(job: SandboxJob, context: QuickJSContext, memory: WasmMemory, result: SandboxResult): void {
  const deadline = processorSeconds() + job.seconds
  let over: Stopped | null = null
  const check = () => {
    if (processorSeconds() > deadline) over ??= new Stopped('time', `it took longer than its limit of ${job.seconds} s`)
    return over !== null
  }
  context.runtime.setInterruptHandler(check)

  /** Returns the value of an outcome. Throws Stopped if a limit was hit or the code threw. */
  const take = (outcome: { value: QuickJSHandle; error?: undefined } | { error: QuickJSHandle }): QuickJSHandle => {
    if (!('error' in outcome) || outcome.error === undefined) return (outcome as { value: QuickJSHandle }).value
    if (over) throw over
    const words = describe(context, outcome.error)
    if (over) throw over // a limit hit in a getter of the error
    // If there is no memory left for an error object, QuickJS throws null or nothing.
    const isFull = /^it threw (?:null)?$/u.test(words) && memory.buffer.byteLength > 0.75 * job.memoryMb * 2 ** 20
    if (isFull || /out of memory/u.test(words)) throw new Stopped('memory', memoryWords(job)[0])
    if (/stack overflow|Maximum call stack/u.test(words)) throw new Stopped('stack', 'it nested too deep for the stack')
    throw new Stopped('code', words)
  }

  let written = 0
  const write = context.newFunction('write', (line) => {
    const text = JSON.parse(context.getString(line)) as string
    const room = job.outputBytes - written
    written += text.length + 1
    if (room > 0) result.stdout += `${text.slice(0, room)}\n`
    if (written <= job.outputBytes) return
    over ??= new Stopped('output', `it wrote more than its limit of ${job.outputBytes} characters`)
    // Otherwise a loop that writes long lines would run for seconds before QuickJS checks the deadline again.
    throw over
  })
  const tools = take(
    context.callFunction(take(context.evalCode(prelude, 'prelude.js')), context.undefined, write, context.newNumber(job.seed)),
  )
  const pack = context.getProp(tools, 'pack')
  const invoke = context.getProp(tools, 'call')
  const unpack = context.getProp(tools, 'unpack')
  const parse = (value: unknown) => {
    const json = context.newString(JSON.stringify(value ?? null))
    return take(context.callFunction(unpack, context.undefined, json))
  }
  for (const [name, value] of Object.entries(job.globals)) context.setProp(context.global, name, parse(value))

  const value = settle(context, take(context.evalCode(job.code, 'code.js', { type: 'global' })), take, check)
  const read = (handle: QuickJSHandle): unknown => {
    const packed = take(context.callFunction(pack, context.undefined, handle))
    if (over) throw over
    if (context.typeof(packed) !== 'string') return undefined
    const text = context.getString(packed)
    if (text.length > job.outputBytes) throw new Stopped('output', `its value is longer than ${job.outputBytes} characters`)
    return JSON.parse(text)
  }
  if (job.calls.length === 0) result.value = read(value)
  for (const args of job.calls) {
    let call: SandboxCall
    try {
      const made = take(context.callFunction(invoke, context.undefined, value, parse(args)))
      call = { value: read(settle(context, made, take, check)), error: null }
    } catch (error) {
      if (!(error instanceof Stopped) || error.why !== 'code') throw error
      call = { value: undefined, error: error.message }
    }
    if (over) throw over
    result.calls.push(call)
  }
  if (over) throw over
}

/** Runs pending promise jobs. Returns the value that a promise settled to, and any other value unchanged. */
function settle(
  context: QuickJSContext,
  handle: QuickJSHandle,
  take: (outcome: { value: QuickJSHandle } | { error: QuickJSHandle }) => QuickJSHandle,
  check: () => boolean,
): QuickJSHandle {
  // One job at a time, as the interrupt handler never runs in an endless chain of short jobs.
  while (context.runtime.hasPendingJob()) {
    const done = context.runtime.executePendingJobs(1)
    if (done.error) take({ error: done.error })
    if (check()) take({ error: context.undefined })
  }
  if (context.typeof(handle) !== 'object') return handle
  const state = context.getPromiseState(handle)
  if (state.type === 'fulfilled') return state.value
  if (state.type === 'rejected') return take({ error: state.error })
  throw new Stopped('code', 'its promise never settles: there are no timers and nothing to wait for')
}

/** Formats an exception's name, message and line. Only getters of the exception can run the sandboxed code here. */
function describe(context: QuickJSContext, error: QuickJSHandle): string {
  if (context.typeof(error) !== 'object' || context.sameValue(error, context.null))
    return `it threw ${String(context.dump(error)).slice(0, 200)}`
  const part = (name: string) => {
    const handle = context.getProp(error, name)
    return context.typeof(handle) === 'string' ? context.getString(handle).slice(0, 300) : ''
  }
  const line = /code\.js:(\d+)/u.exec(part('stack'))?.[1]
  return `${part('name') || 'it threw an object'}: ${part('message')}${line ? ` (line ${line})` : ''}`
}

serve({ run })
