/** Asking a server what the conformance suite asks, and what of its answers is compared: not ids, times and words of errors. */
import type { Exchange } from './requests.ts'

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
type Fields = { [key: string]: Json }

/** An answer, as it is kept and compared. */
export interface Answer {
  status: number
  type: string
  /** Of a stream: all its events as one, and what they look like. */
  body: Json
}

/** Folders that the requests name. */
export interface Folders {
  adapters: string
  weights: string
}

/** Sends all requests in order, and gives their answers by name. */
export async function askAll(url: string, exchanges: readonly Exchange[], folders: Folders): Promise<Record<string, Answer>> {
  const answers: Record<string, Answer> = {}
  let pending: Promise<void> | undefined
  for (const exchange of exchanges) {
    const asked = ask(url, exchange, folders).then((answer) => void (answers[exchange.name] = answer))
    if (exchange.background) {
      pending = asked
      // It has to arrive before the next one does.
      await new Promise((resolve) => setTimeout(resolve, 300))
      continue
    }
    await asked
    await pending
    pending = undefined
  }
  return Object.fromEntries(exchanges.map(({ name }) => [name, answers[name]]))
}

async function ask(url: string, { method, path, body, type = 'application/json' }: Exchange, folders: Folders): Promise<Answer> {
  const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body)
  // Inside of a JSON string.
  const escaped = (folder: string) => JSON.stringify(folder).slice(1, -1)
  const sent = text?.replaceAll('{adapters}', escaped(folders.adapters)).replaceAll('{weights}', escaped(folders.weights))
  const response = await fetch(url + path, {
    method: method ?? (sent === undefined ? 'GET' : 'POST'),
    ...(sent === undefined ? {} : { body: sent, headers: { 'content-type': type } }),
  })
  const mime = response.headers.get('content-type')?.split(';')[0] ?? ''
  const came = await response.text()
  if (mime === 'text/event-stream') return { status: response.status, type: mime, body: streamOf(came) }
  let json: Json = came
  if (mime === 'application/json') json = JSON.parse(came) as Json
  return { status: response.status, type: came === '' ? '' : mime, body: plain(json) }
}

/** Without what differs from request to request. A null is a field that is not there: no client tells them apart. */
function plain(value: Json, key = ''): Json {
  if (Array.isArray(value)) return value.map((one) => plain(one))
  if (typeof value === 'object' && value !== null) {
    const kept = Object.entries(value).filter(([, below]) => below !== null)
    return Object.fromEntries(kept.map(([name, below]) => [name, plain(below, name)]))
  }
  if (typeof value === 'number') return key === 'created' ? 0 : Number(value.toPrecision(7))
  if (typeof value !== 'string') return value
  if (key === 'id' || key === 'request_id') return value.replace(/[0-9a-f]{8}[-0-9a-f]*$/, '*')
  return ['message', 'root', 'owned_by', 'system_fingerprint'].includes(key) || /^\d+\.\d+\./.test(value) ? '*' : value
}

/** How many tokens an event brings, and whether the first is the last too, is a matter of how busy the machine is. */
const pieces = ['text', 'delta', 'logprobs', 'token_ids']
const ends = ['finish_reason', 'stop_reason']

/** A stream as one answer, the looks of its first, its ending and its last event, and whether usage comes with each. */
function streamOf(text: string): Json {
  const lines = text.split('\n\n').filter((line) => line !== '')
  const events = lines.filter((line) => line !== 'data: [DONE]').map((line) => JSON.parse(line.replace(/^data: /, '')) as Fields)
  const whole: Fields = {}
  for (const event of events) merge(whole, plain(event) as Fields)
  const choices = (event: Fields) => (event.choices ?? []) as Fields[]
  const told = events.filter((event) => event.usage !== null && event.usage !== undefined).length
  const looks = (event: Fields | undefined, without: readonly string[]): Json => {
    if (event === undefined) return 'none'
    const kept = choices(event).map((choice) =>
      Object.fromEntries(Object.entries(choice).filter(([key]) => !without.includes(key))),
    )
    return lookOf(plain({ ...event, choices: kept }))
  }
  return {
    whole,
    first: looks(events[0], ends),
    ending: looks(
      events.find((event) => choices(event).some(({ finish_reason }) => typeof finish_reason === 'string')),
      pieces,
    ),
    last: looks(events.at(-1), pieces),
    usage: told === events.length ? 'with each event' : told === 1 ? 'once' : told === 0 ? 'never' : 'with some events',
    done: lines.at(-1) === 'data: [DONE]',
  }
}

const joinedTexts = new Set(['text', 'content', 'reasoning', 'arguments'])

/** Names and types, and no values. An empty piece of text is one that is not there: vLLM sends it or not, by its flags. */
function lookOf(value: Json): Json {
  if (Array.isArray(value)) return value.length === 0 ? [] : [lookOf(value[0])]
  if (typeof value !== 'object' || value === null) return typeof value
  const kept = Object.entries(value).filter(([key, below]) => below !== '' || !joinedTexts.has(key))
  return Object.fromEntries(kept.map(([key, below]) => [key, /^\d+$/.test(key) ? 'number' : lookOf(below)]))
}

/** Adds an event to those before it: choices and calls by their index, lists one after another, pieces of text too. */
function merge(into: Fields, event: Fields): void {
  for (const [key, value] of Object.entries(event)) {
    const before = into[key]
    if (key === 'choices' || key === 'tool_calls') {
      const known = (into[key] ??= []) as Fields[]
      for (const one of value as Fields[]) merge((known[one.index as number] ??= {}), one)
    } else if (Array.isArray(before) && Array.isArray(value) && key !== 'prompt_token_ids') into[key] = [...before, ...value]
    else if (isFields(value)) merge((into[key] = isFields(before) ? before : {}), value)
    else if (typeof before === 'string' && typeof value === 'string' && joinedTexts.has(key)) into[key] = before + value
    else into[key] = structuredClone(value)
  }
}

const isFields = (value: Json | undefined): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** Where two answers differ. */
export interface Difference {
  name: string
  /** As `body.choices[].logprobs`: places in lists are left out. */
  path: string
  /** undefined: it is not there. */
  here: Json | undefined
  there: Json | undefined
}

/** @param bound of log-probabilities; other numbers are the same */
export function differences(name: string, here: Answer, there: Answer, bound: number): Difference[] {
  const found = new Map<string, Difference>()
  const add = (path: string, a: Json | undefined, b: Json | undefined) => {
    if (!found.has(path)) found.set(path, { name, path, here: a, there: b })
  }
  const walk = (path: string, a: Json | undefined, b: Json | undefined): void => {
    if (Array.isArray(a) && Array.isArray(b)) {
      if (a.length !== b.length) add(`${path}.length`, a.length, b.length)
      else a.forEach((one, i) => walk(`${path}[]`, one, b[i]))
    } else if (isFields(a) && isFields(b)) {
      for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) walk(`${path}.${key}`, a[key], b[key])
    } else if (typeof a === 'number' && typeof b === 'number' && /logprob/.test(path)) {
      if (!(Math.abs(a - b) <= bound)) add(path, a, b)
    } else if (a !== b) add(path, a, b)
  }
  walk('status', here.status, there.status)
  walk('type', here.type, there.type)
  walk('body', here.body, there.body)
  return [...found.values()]
}
