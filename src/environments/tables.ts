/**
 * Reads rows from files: JSON Lines, JSON, Parquet. The meaning of the columns is defined in datasets.ts. JSON Lines are split at the byte 0x0A only.
 * node:readline would also split at U+2028 and U+2029, which JSON allows inside strings, and would buffer lines of any length.
 */
import { createReadStream } from 'node:fs'
import { readFile, stat } from 'node:fs/promises'
import { extname } from 'node:path'
import type { SchemaElement, SchemaTree } from 'hyparquet'
import { messageOf, UserError } from '../common/errors.ts'
import { jsonWithTools } from '../common/json-floats.ts'
import { textOfBytes } from '../common/texts.ts'
import { shellWord } from '../monitor/format.ts'

/** A row with its place for error messages: 'data.jsonl:7', 'data.parquet row 7'. */
export interface TableRow {
  where: string
  columns: Record<string, unknown>
}

export interface TableOptions {
  /** Longest JSON line in bytes. Default 16 MiB. */
  maxLineBytes?: number
}

/** The file name extensions that `readTable` supports. */
export const tableEndings = ['.jsonl', '.ndjson', '.json', '.parquet'] as const

/** Reads all rows of a file; its extension gives the format. Throws UserError, with file and place, if it is missing, unreadable or broken. */
export async function readTable(path: string, options: TableOptions = {}): Promise<TableRow[]> {
  const ending = extname(path).toLowerCase()
  const info = await stat(path).catch((error: NodeJS.ErrnoException) => {
    throw new UserError(
      `dataset ${path}: ${error.code === 'ENOENT' ? 'there is no such file' : messageOf(error)}. Check the path.`,
    )
  })
  if (info.isDirectory()) throw new UserError(`dataset ${path} is a folder. Name one file in it (${tableEndings.join(', ')}).`)
  const { maxLineBytes = 16 * 2 ** 20 } = options
  if (ending === '.jsonl' || ending === '.ndjson') return await readJsonLines(path, maxLineBytes)
  if (ending === '.json') return await readJson(path, maxLineBytes)
  if (ending === '.parquet') return await readParquet(path)
  throw new UserError(
    `dataset ${path}: cannot read ${ending === '' ? 'a file without an extension' : `"${ending}"`}. ${mendOf(path) ?? `Use one of ${tableEndings.join(', ')}`}.`,
  )
}

/** Says how to convert a file of another format, if that is known. */
export function mendOf(path: string): string | undefined {
  const ending = extname(path).toLowerCase()
  if (/^\.(?:gz|zst|zip|bz2|xz|7z|tar|tgz)$/u.test(ending)) return 'Unpack it first'
  if (ending === '.arrow') return 'Convert it with to_parquet(), or push it to the hub'
  if (ending !== '.csv' && ending !== '.tsv') return undefined
  const how = ending === '.tsv' ? ", delimiter='\\t'" : ''
  const read = `csv.DictReader(open(sys.argv[1], encoding='utf-8-sig', newline='')${how})`
  const [from, to] = [path, `${path.slice(0, -ending.length)}.jsonl`].map((word) => shellWord(word))
  // The name that python.org's installer uses on Windows. The script writes the file itself, as `>` in PowerShell 5 would write UTF-16.
  const python = process.platform === 'win32' ? 'python' : 'python3'
  const write = `open(sys.argv[2], 'w').writelines(json.dumps(row) + '\\n' for row in ${read})`
  return `Convert it to JSON lines with ${python} -c "import csv, json, sys; ${write}" ${from} ${to} and name the new file`
}

async function readJsonLines(path: string, maxLineBytes: number): Promise<TableRow[]> {
  const rows: TableRow[] = []
  let line = 0
  for await (const bytes of lines(path, maxLineBytes)) {
    line++
    const where = `${path}:${line}`
    const text = textOf(bytes, where).trim()
    if (text !== '') rows.push({ where, columns: asColumns(parseJson(text, where), where) })
  }
  return rows
}

/** The lines of a file as bytes, without line ends. */
async function* lines(path: string, maxLineBytes: number): AsyncGenerator<Uint8Array> {
  let parts: Buffer[] = []
  let length = 0
  let count = 0
  const take = (part: Buffer) => {
    length += part.length
    if (length > maxLineBytes) {
      throw new UserError(
        `${path}:${count + 1} is longer than ${maxLineBytes} bytes. One JSON object per line is expected; is this a .json file?`,
      )
    }
    parts.push(part)
  }
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 18 }) as AsyncIterable<Buffer>) {
    let from = 0
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, from)) {
      take(chunk.subarray(from, end))
      yield Buffer.concat(parts)
      ;[parts, length, count, from] = [[], 0, count + 1, end + 1]
    }
    if (from < chunk.length) take(chunk.subarray(from))
  }
  if (length > 0) yield Buffer.concat(parts)
}

async function readJson(path: string, maxLineBytes: number): Promise<TableRow[]> {
  const bytes = await readFile(path).catch((error: unknown) => {
    throw unread(path, error)
  })
  const text = textOf(bytes, path)
  let value: unknown
  try {
    value = exactJson(text)
  } catch (error) {
    // Many files named .json contain JSON Lines.
    if (/^\s*\{/u.test(text)) return await readJsonLines(path, maxLineBytes)
    throw notJson(path, error)
  }
  if (!Array.isArray(value))
    throw new UserError(
      `${path}: expected an array of objects, one per task. If it has one object per line, name the file .jsonl.`,
    )
  return value.map((item, i) => {
    const where = `${path} row ${i}`
    return { where, columns: asColumns(item, where) }
  })
}

async function readParquet(path: string): Promise<TableRow[]> {
  // Loaded on demand, as most runs make their data in code.
  const [{ asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects, parquetSchema }, { compressors }] = await Promise.all([
    import('hyparquet'),
    import('hyparquet-compressors'),
  ])
  let objects: Record<string, unknown>[]
  try {
    const file = await asyncBufferFromFile(path)
    const metadata = await parquetMetadataAsync(file)
    const schema = parquetSchema(metadata)
    const scales = rawDecimals(schema)
    // Bytes that are text are marked as such now.
    objects = await parquetReadObjects({ file, metadata, compressors, utf8: false })
    if (scales.size > 0) objects = objects.map((row) => withDecimals(row, schema, scales) as Record<string, unknown>)
  } catch (error) {
    throw new UserError(`${path}: cannot be read as a parquet file (${messageOf(error)}). Is it truncated?`)
  }
  return objects.map((columns, i) => {
    const where = `${path} row ${i}`
    return { where, columns: plain(columns, where) as Record<string, unknown> }
  })
}

/**
 * Lets the library read decimals as whole numbers or bytes: it multiplies with 0.1, which makes 0.7 0.7000000000000001. Keys of maps stay, as they
 * are names. @returns the scale of each decimal
 */
function rawDecimals(schema: SchemaTree): Map<SchemaElement, number> {
  const scales = new Map<SchemaElement, number>()
  const visit = ({ element, children }: SchemaTree, isKey = false): void => {
    const { logical_type: logical, converted_type: converted, type } = element
    if (logical?.type === 'VARIANT') return
    const isMap = converted === 'MAP'
    for (const child of children)
      for (const [i, one] of (isMap ? child.children : [child]).entries()) visit(one, isMap && i === 0)
    if (children.length > 0) return
    if (!isKey && (converted === 'DECIMAL' || logical?.type === 'DECIMAL')) {
      scales.set(element, element.scale ?? (logical?.type === 'DECIMAL' ? logical.scale : 0))
      element.converted_type = element.logical_type = undefined
    } else if (type === 'BYTE_ARRAY' && (converted === undefined || converted === 'ENUM')) element.converted_type = 'UTF8'
  }
  visit(schema)
  return scales
}

/** A value with its decimals (`rawDecimals`) as numbers or text. The library makes lists and maps of the groups that say so, and objects of others. */
function withDecimals(value: unknown, { element, children }: SchemaTree, scales: ReadonlyMap<SchemaElement, number>): unknown {
  const scale = scales.get(element)
  if (Array.isArray(value)) {
    // The element of a list is one or two groups below it.
    const [child] = element.converted_type === 'LIST' ? children : []
    const item = child?.children.length === 1 ? child.children[0] : (child ?? { element, children })
    return value.map((one) => withDecimals(one, item, scales))
  }
  if (scale !== undefined) return decimal(value, scale)
  if (children.length === 0 || value === null || typeof value !== 'object') return value
  const valueOfMap = element.converted_type === 'MAP' && children.length === 1 ? children[0].children[1] : undefined
  const entries = Object.entries(value).map(([key, one]) => {
    const child = valueOfMap ?? children.find((each) => each.element.name === key)
    return [key, child ? withDecimals(one, child, scales) : one]
  })
  return Object.fromEntries(entries)
}

/** The value of a decimal: a number, or text if it has more digits than a number holds. `stored`: the digits as a whole number, or its bytes. */
function decimal(stored: unknown, scale: number): unknown {
  const isBytes = stored instanceof Uint8Array
  if (!isBytes && typeof stored !== 'number' && typeof stored !== 'bigint') return stored
  const whole = isBytes ? BigInt.asIntN(8 * stored.length, BigInt(`0x0${Buffer.from(stored).toString('hex')}`)) : BigInt(stored)
  const digits = String(whole < 0n ? -whole : whole).padStart(scale + 1, '0')
  const fraction = digits.slice(digits.length - scale).replace(/0+$/u, '')
  const text = `${whole < 0n ? '-' : ''}${digits.slice(0, digits.length - scale)}${fraction && `.${fraction}`}`
  const isExact = fraction === '' ? Number.isSafeInteger(Number(text)) : text.replace(/^[-0.]+|\./gu, '').length <= 15
  return isExact ? Number(text) : text
}

/** Lists of structs with a field for each parameter of a tool. */
const OF_TOOLS = new Set(['tools', 'tool_calls'])

/**
 * Turns int64 into a number (or text beyond 2^53, where numbers are inexact) and dates into ISO text, also inside lists and structs. A list or struct
 * that is null is null (the library has undefined there).
 * @param ofTools inside tools or tool calls. All structs of a column have the same fields, so that each tool has a null for every parameter of the
 *   others; a template would write these as its own. They are left out.
 */
function plain(value: unknown, where: string, ofTools = false): unknown {
  if (value === undefined || value === null) return null
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : String(value)
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime()))
      throw new UserError(`${where} is a date beyond the year 275760. Mend it, or leave that column out of the file.`)
    return value.toISOString()
  }
  if (Array.isArray(value)) return value.map((item) => plain(item, where, ofTools))
  if (typeof value !== 'object' || ArrayBuffer.isView(value)) return value
  const fields = Object.entries(value).map(([key, item]) => [key, plain(item, `${where}: ${key}`, ofTools || OF_TOOLS.has(key))])
  return Object.fromEntries(ofTools ? fields.filter(([, item]) => item !== null) : fields)
}

function textOf(bytes: Uint8Array, where: string): string {
  try {
    return textOfBytes(bytes, where)
  } catch (error) {
    throw error instanceof UserError ? error : unread(where, error)
  }
}

/** Says why bytes cannot become a string: Node limits strings to half a gigabyte, and files that are read at once to two. */
function unread(where: string, error: unknown): UserError {
  const { code } = error as NodeJS.ErrnoException
  const isLarge = code === 'ERR_FS_FILE_TOO_LARGE' || code === 'ERR_STRING_TOO_LONG'
  return new UserError(
    `${where} ${isLarge ? 'is too large to be read at once. Write one object per line, and name the file .jsonl.' : `cannot be read: ${messageOf(error)}.`}`,
  )
}

/** Parses JSON. Integers beyond 2^53 become text, as from Parquet, because numbers would be inexact. */
export function exactJson(text: string): unknown {
  const exact = (_: string, value: unknown, { source = '' }: { source?: string } = {}) =>
    typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/u.test(source) ? source : value
  return /\d{16}/u.test(text) ? JSON.parse(text, exact) : jsonWithTools(text)
}

function parseJson(text: string, where: string): unknown {
  try {
    return exactJson(text)
  } catch (error) {
    throw notJson(where, error)
  }
}

const notJson = (where: string, error: unknown) => new UserError(`${where}: not valid JSON (${messageOf(error)}).`)

function asColumns(value: unknown, where: string): Record<string, unknown> {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    throw new UserError(
      `${where}: expected an object like {"question": "...", "answer": "..."}, found ${JSON.stringify(value).slice(0, 40)}.`,
    )
  }
  return value as Record<string, unknown>
}
