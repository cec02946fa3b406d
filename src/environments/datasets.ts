/**
 * Makes tasks out of rows. Columns: `prompt` (text or messages) or `question` (text), `answer`, `info` (an object, possibly as JSON text),
 * `example_id`, `chat_template_kwargs` (an object). All other columns go into `info`, where reward functions find them.
 */
import { stat } from 'node:fs/promises'
import { inspect } from 'node:util'
import { messageOf, UserError } from '../common/errors.ts'
import { hashSeed, Random } from '../common/random.ts'
import { variablesOf } from '../common/template-variables.ts'
import { toolCallsOf } from '../common/tool-calls.ts'
import type { Message, ToolCall } from '../common/types.ts'
import { isHubId, type SplitOptions, splitOfFolder, splitOfHub } from './datasets-hub.ts'
import { exactJson, readTable, type TableRow } from './tables.ts'
import type { Row } from './types.ts'

/** A row as users write it in code. */
export interface RowInput {
  prompt?: string | Message[]
  question?: string
  answer?: string | number | boolean | null
  info?: Record<string, unknown> | string | null
  example_id?: number
  chat_template_kwargs?: Record<string, unknown> | null
  [column: string]: unknown
}

/** A file, a folder of files (a snapshot of a hub dataset), or a Hugging Face id, with its split, subset and revision. */
export interface StoredDataset extends SplitOptions {
  /** `./tasks.jsonl`, `./gsm8k`, `openai/gsm8k`. */
  path: string
  /** Columns that have other names: `{ question: 'problem', answer: 'solution' }`. */
  columns?: Partial<Record<'prompt' | 'question' | 'answer' | 'info' | 'example_id', string>>
}

/** Where tasks come from: a file, a folder, a hub id, rows, or a function (possibly a generator) that makes rows from a seed. */
export type DatasetSource =
  | string
  | StoredDataset
  | readonly RowInput[]
  | ((seed: number) => Iterable<RowInput> | AsyncIterable<RowInput>)

export interface DatasetOptions {
  /** Passed to the source if it is a function. */
  seed?: number
  /** System prompt, added to each prompt that has no system message. */
  systemPrompt?: string
  /** What error messages call rows that come from code. Default 'dataset'. */
  name?: string
}

/** Maximum number of rows that code may make: an endless generator would fill the memory. */
const MOST_MADE = 2_000_000

/** Reads the tasks of a source, in order. Throws UserError, with place and columns, for a row that is not a task, and for a source without rows. */
export async function loadRows(source: DatasetSource, options: DatasetOptions = {}): Promise<Row[]> {
  const stored = typeof source === 'string' ? { path: source } : isStored(source) ? source : null
  const name = stored?.path ?? options.name ?? 'dataset'
  const rows: Row[] = []
  const places = new Map<number, string>()
  const add = ({ where, columns }: TableRow) => {
    const row = toRow(columns, where, rows.length, options.systemPrompt)
    const before = places.get(row.exampleId)
    // Answers are grouped by example_id: two tasks with the same id would count as one task with twice as many answers.
    if (before !== undefined)
      throw new UserError(
        `${where}: example_id ${row.exampleId} is used by ${before} already. Give each row an id of its own, or leave the column out to number the rows.`,
      )
    places.set(row.exampleId, where)
    rows.push(row)
  }
  if (stored) {
    for (const file of await filesOf(stored)) {
      for (const { where, columns } of await readTable(file)) add({ where, columns: renamed(columns, where, stored.columns) })
    }
  } else {
    const items = typeof source === 'function' ? source(options.seed ?? 0) : (source as readonly RowInput[])
    if (!isIterable(items))
      throw new UserError(
        `${name} must be rows in an array or from a generator, or the name of a file, found ${items instanceof Promise ? "a promise; write 'await' in front of what makes the rows" : short(items)}.`,
      )
    for await (const columns of items) {
      if (columns === null || typeof columns !== 'object')
        throw new UserError(`${name} row ${rows.length} must be an object such as { prompt, answer }, found ${short(columns)}.`)
      if (rows.length === MOST_MADE)
        throw new UserError(
          `${name} yields more than ${MOST_MADE} rows. Is it an endless generator? Let it stop after as many rows as you want to train on, or name a file.`,
        )
      add({ where: `${name} row ${rows.length}`, columns: { ...columns } })
      mustBeJson(rows.at(-1)!, `${name} row ${rows.length - 1}`)
    }
  }
  if (rows.length === 0) throw new UserError(`${name} has no rows.`)
  return rows
}

/** Refuses rows that cannot be written as JSON. Every rollout is logged with its row, so the run would fail in its first step. */
function mustBeJson({ info }: Row, where: string): void {
  try {
    JSON.stringify(info)
  } catch (error) {
    const [why] = messageOf(error).split('\n')
    throw new UserError(
      `${where}: its info cannot be written as JSON (${why}). Keep text, numbers, lists and plain objects there.`,
    )
  }
}

const isIterable = (items: unknown): boolean =>
  items !== null && typeof items === 'object' && (Symbol.iterator in items || Symbol.asyncIterator in items)

const isStored = (source: DatasetSource): source is StoredDataset => typeof source === 'object' && 'path' in source

async function filesOf(stored: StoredDataset): Promise<string[]> {
  const { path, split, subset, revision } = stored
  if (isHubId(path)) return await splitOfHub(path, stored)
  const isFolder = await stat(path).then(
    (info) => info.isDirectory(),
    () => false, // readTable reports a missing file
  )
  if (isFolder) return await splitOfFolder(path, stored)
  const idle = Object.entries({ split, subset, revision }).find(([, value]) => value !== undefined)
  if (idle)
    throw new UserError(
      `dataset ${path} is one file, so ${idle[0]} does not apply to it. Leave that out, or name a folder or a hub id.`,
    )
  return [path]
}

/** Renames columns. If `names.question` is given, that column is used even if there is a `prompt`. Throws UserError for a missing column. */
function renamed(columns: Record<string, unknown>, where: string, names: StoredDataset['columns'] = {}): Record<string, unknown> {
  const taken = Object.entries(names)
  const result = { ...columns }
  if (names.question !== undefined) delete result.prompt
  // All values are read before any is written, as a column's new name may be the old name of another column.
  for (const [, theirs] of taken) delete result[theirs]
  for (const [ours, theirs] of taken) {
    if (!(theirs in columns)) {
      throw new UserError(
        `${where} has no column "${theirs}" to use as ${ours} (columns found: ${Object.keys(columns).join(', ')}).`,
      )
    }
    result[ours] = columns[theirs]
  }
  return result
}

const known = new Set(['prompt', 'question', 'answer', 'info', 'example_id', 'chat_template_kwargs'])

function toRow(columns: Record<string, unknown>, where: string, index: number, systemPrompt?: string): Row {
  const extra = Object.fromEntries(Object.entries(columns).filter(([key]) => !known.has(key)))
  const exampleId = columns.example_id ?? index
  if (typeof exampleId !== 'number' || !Number.isInteger(exampleId) || exampleId < 0) {
    throw new UserError(
      `${where}: example_id is ${short(exampleId)}. It must be a whole number of 0 or more; leave it out to number the rows.`,
    )
  }
  let prompt = toMessages(columns, where)
  if (systemPrompt !== undefined && !prompt.some((message) => message.role === 'system')) {
    prompt = [{ role: 'system', content: systemPrompt }, ...prompt]
  }
  const info = { ...extra, ...toInfo(columns.info, where) }
  return { exampleId, prompt, answer: toAnswer(columns.answer, where), info, ...variablesOf(columns.chat_template_kwargs, where) }
}

function toMessages(columns: Record<string, unknown>, where: string): Message[] {
  const value = columns.prompt ?? columns.question
  if (value === undefined || value === null) {
    const isThere = ['question', 'prompt'].find((name) => name in columns)
    if (isThere) throw new UserError(`${where}: its ${isThere} is empty.`)
    const found = Object.keys(columns).join(', ') || 'none'
    throw new UserError(
      `${where} has neither a prompt nor a question (columns found: ${found}). Rename the column that holds the task, or, if the rows come from a file, name it under columns of the dataset.`,
    )
  }
  const column = columns.prompt === undefined || columns.prompt === null ? 'question' : 'prompt'
  if (typeof value === 'string') {
    if (value.trim() === '') throw new UserError(`${where}: its ${column} is empty.`)
    return [{ role: 'user', content: value }]
  }
  if (column === 'question' || !Array.isArray(value) || value.length === 0) {
    throw new UserError(
      `${where}: its ${column} must be text${column === 'prompt' ? ' or a list of messages' : ''}, found ${short(value)}.`,
    )
  }
  const messages = value.map((message: Partial<Message> | null, i): Message => {
    const { role, tool_call_id, name } = message ?? {}
    const calls = message?.tool_calls?.length
      ? { tool_calls: toCalls(message.tool_calls, `${where}: message ${i} of its prompt`) }
      : {}
    // A message that only calls tools has no text. Most files have null there, as for every missing field.
    const content = message?.content ?? (calls.tool_calls ? '' : undefined)
    if (!['system', 'user', 'assistant', 'tool'].includes(role ?? '') || typeof content !== 'string') {
      throw new UserError(
        `${where}: message ${i} of its prompt must be {role: system|user|assistant|tool, content: text}, found ${short(message)}.`,
      )
    }
    return { role: role!, content, ...calls, ...(tool_call_id && { tool_call_id }), ...(name && { name }) }
  })
  if (messages.every(({ content, tool_calls }) => content.trim() === '' && !tool_calls))
    throw new UserError(`${where}: its ${column} is empty.`)
  return messages
}

/** Reads the tool calls of an earlier assistant message. */
const toCalls = (calls: unknown, where: string): ToolCall[] =>
  toolCallsOf(
    calls,
    () => new UserError(`${where} must have tool_calls as a list of {function: {name, arguments}}, found ${short(calls)}.`),
  )

function toAnswer(value: unknown, where: string): string {
  if (value === undefined || value === null) return ''
  if (typeof value === 'string') return value
  if ((typeof value === 'number' && Number.isFinite(value)) || typeof value === 'boolean') return String(value)
  throw new UserError(`${where}: its answer must be text or a number, found ${short(value)}. Put objects into info.`)
}

function toInfo(value: unknown, where: string): Record<string, unknown> {
  if (value === undefined || value === null || value === '') return {}
  let object: unknown = value
  if (typeof value === 'string') {
    try {
      object = exactJson(value)
    } catch (error) {
      throw new UserError(`${where}: its info is text but not JSON (${messageOf(error)}).`)
    }
  }
  if (object === null || typeof object !== 'object' || Array.isArray(object)) {
    throw new UserError(`${where}: its info must be an object, found ${short(object)}.`)
  }
  return object as Record<string, unknown>
}

/** Formats a value as JSON, or as code if JSON cannot represent it (NaN, a BigInt, a cycle). */
function textOf(value: unknown): string {
  let json: string | undefined
  try {
    if (typeof value !== 'number') json = JSON.stringify(value) as string | undefined
  } catch {
    // Not JSON: `inspect` can show it.
  }
  return json ?? inspect(value, { depth: 1, breakLength: Infinity })
}

function short(value: unknown): string {
  const text = textOf(value)
  return text.length > 80 ? `${text.slice(0, 77)}...` : text
}

/** A key that is equal for rows with the same messages. */
const keyOf = (row: Row) => JSON.stringify(row.prompt.map((message) => [message.role, message.content]))

/**
 * Splits rows into a training and a held-out set. The split depends on the seed, and rows with the same prompt are always in the same set. Both sets
 * keep the order of the rows. `evalSize`: the number of held-out prompts, or their fraction if below 1. Each set gets at least one prompt. Throws
 * UserError if there are too few different prompts.
 */
export function splitRows(
  rows: readonly Row[],
  options: { seed: number; evalSize: number; name?: string },
): { train: Row[]; held: Row[] } {
  const { seed, evalSize, name = 'dataset' } = options
  if (evalSize === 0) return { train: [...rows], held: [] }
  const keyOfRow = rows.map(keyOf)
  const keys = [...new Set(keyOfRow)]
  const wanted = evalSize < 1 ? Math.max(1, Math.round(keys.length * evalSize)) : Math.floor(evalSize)
  if (!(evalSize > 0) || wanted >= keys.length) {
    throw new UserError(
      `${name}: cannot hold out ${evalSize} of ${keys.length} different prompts; some must remain to train on. Set evalSize lower, or to 0 to hold out none.`,
    )
  }
  const chosen = new Set(new Random(hashSeed(seed, 'held-out')).shuffle(keys).slice(0, wanted))
  const isHeld = keyOfRow.map((key) => chosen.has(key))
  return { train: rows.filter((_, i) => !isHeld[i]), held: rows.filter((_, i) => isHeld[i]) }
}
