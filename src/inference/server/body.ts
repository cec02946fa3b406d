/** Request bodies: read whole within limits of bytes and time, parsed as JSON, checked against a schema. Unknown fields are named in the log. */
import type { Context } from 'hono'
import type * as z from 'zod'
import { jsonWithTools } from '../../common/json-floats.ts'
import { badRequest, HttpError } from './errors.ts'

interface BodyLimits {
  maxBytes: number
  /** How long the body may take to arrive. */
  ms: number
}

/** For answers sent before the whole body arrived: the connection cannot be reused, since the rest of the body is still in it. */
const closing = { connection: 'close' }

/**
 * The body's bytes.
 * @throws HttpError 413 for more than maxBytes, 408 for a body that arrives too slowly, 400 for one that breaks off
 */
async function readBytes(request: Request, { maxBytes, ms }: BodyLimits): Promise<Uint8Array> {
  const tooLarge = () =>
    new HttpError(413, `The body has more than ${maxBytes} bytes, the most that this server accepts.`, { headers: closing })
  if (Number(request.headers.get('content-length') ?? 0) > maxBytes) throw tooLarge()
  if (!request.body) return new Uint8Array()
  const reader = request.body.getReader()
  const pieces: Uint8Array[] = []
  let size = 0
  const { promise: late, reject } = Promise.withResolvers<never>()
  late.catch(() => {})
  const error = new HttpError(408, `The body was not complete after ${ms / 1000} s.`, { headers: closing })
  const timer = setTimeout(() => reject(error), ms)
  try {
    while (true) {
      const { done, value } = await Promise.race([reader.read(), late])
      if (done) break
      size += value.byteLength
      if (size > maxBytes) throw tooLarge()
      pieces.push(value)
    }
  } catch (error) {
    reader.cancel().catch(() => {})
    if (error instanceof HttpError) throw error
    throw new HttpError(400, 'The body ended early.', { headers: closing })
  } finally {
    clearTimeout(timer)
  }
  return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces)
}

/** Maximum nesting. Schemas, templates and grammars recurse into their input, and the stack is limited. */
const MOST_LEVELS = 200
/** Maximum fields in all objects together. An object with a million fields blocks the process for a minute. */
const MOST_FIELDS = 250_000
/** Maximum objects and lists. Five million lists of one number each take half a minute. */
const MOST_LISTS = 250_000

/**
 * Checks the size of JSON by a quick scan, without parsing it.
 * @throws HttpError for too many levels, fields or lists
 */
export function checkSize(json: Uint8Array, what: string, field?: string): void {
  const refuse = (most: string) => badRequest(`${what} has more than ${most}, the most that this server accepts.`, field)
  let depth = 0
  let fields = 0
  let lists = 0
  let inString = false
  for (let i = 0; i < json.length; i++) {
    const sign = json[i]
    if (inString) {
      if (sign === 0x5c) i++
      else if (sign === 0x22) inString = false
    } else if (sign === 0x22) inString = true
    else if (sign === 0x7b || sign === 0x5b) {
      if (++depth > MOST_LEVELS) throw refuse(`${MOST_LEVELS} levels of nested objects and lists`)
      if (++lists > MOST_LISTS) throw refuse(`${MOST_LISTS} objects and lists`)
    } else if (sign === 0x7d || sign === 0x5d) depth--
    else if (sign === 0x3a && ++fields > MOST_FIELDS) throw refuse(`${MOST_FIELDS} fields`)
  }
}

/**
 * The body as JSON.
 * @throws HttpError for bad JSON, anything but an object, and bad UTF-8
 */
async function readJson(context: Context, limits: BodyLimits): Promise<Record<string, unknown>> {
  const type = context.req.header('content-type')?.split(';')[0].trim().toLowerCase()
  if (type !== 'application/json' && !type?.endsWith('+json')) {
    throw new HttpError(400, `The content-type is ${type ?? 'missing'}; it must be application/json.`, { headers: closing })
  }
  const encoding = context.req.header('content-encoding')?.trim().toLowerCase()
  if (encoding && encoding !== 'identity') {
    throw new HttpError(400, `The content-encoding ${encoding.slice(0, 40)} is not supported; send the body without one.`, {
      headers: closing,
    })
  }
  const bytes = await readBytes(context.req.raw, limits)
  let text: string
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    throw badRequest('The body is not UTF-8.')
  }
  checkSize(bytes, 'The body')
  let value: unknown
  try {
    value = jsonWithTools(text)
  } catch (error) {
    throw badRequest(`The body is not JSON: ${(error as Error).message}`)
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw badRequest('The body must be a JSON object.')
  return value as Record<string, unknown>
}

/** Names of fields in a body that its schema dropped, in nested objects and lists too. Null counts as not given. */
function unknownFields(body: unknown, taken: unknown, prefix = '', found = new Set<string>()): Set<string> {
  // A value that the schema takes as it is has no unknown fields.
  if (body === taken || !isObject(body) || !isObject(taken)) return found
  if (Array.isArray(body) && Array.isArray(taken)) {
    for (let i = 0; i < body.length; i++) if (isObject(body[i])) unknownFields(body[i], taken[i], prefix, found)
    return found
  }
  for (const [key, value] of Object.entries(body)) {
    if (Object.hasOwn(taken, key)) unknownFields(value, taken[key], `${prefix}${key}.`, found)
    else if (value !== null) found.add(prefix + key)
  }
  return found
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null

/** Reads bodies and checks them against schemas. */
export class BodyReader {
  readonly #limits: BodyLimits
  readonly #warn: (message: string) => void
  /** Fields that were logged already, so that a client that always sends one does not fill the log. */
  readonly #named = new Set<string>()

  constructor(limits: BodyLimits, warn: (message: string) => void) {
    this.#limits = limits
    this.#warn = warn
  }

  /** @throws HttpError that names the field and what is wrong with it */
  async read<S extends z.ZodObject>(context: Context, schema: S): Promise<z.infer<S>> {
    const body = await readJson(context, this.#limits)
    const parsed = schema.safeParse(body)
    if (!parsed.success) {
      const issue = deepest(parsed.error.issues[0])
      const path = issue.path.map(String).join('.')
      throw badRequest(`${path || 'body'}: ${issue.message}.`, path || undefined)
    }
    for (const field of unknownFields(body, parsed.data)) {
      if (this.#named.has(field) || this.#named.size >= 1000) continue
      this.#named.add(field)
      this.#warn(`${context.req.path}: the field ${field.slice(0, 100)} is unknown and ignored`)
    }
    return parsed.data
  }
}

interface Issue {
  code: string
  path: PropertyKey[]
  message: string
}

/** The problem of a field that may have several forms: that of the form that fits best, or the field's own message if several fit equally well. */
function deepest(issue: z.core.$ZodIssue): Issue {
  if (issue.code !== 'invalid_union' || issue.errors.length === 0) return issue
  const inner = issue.errors
    .map((issues) => issues[0])
    .filter((inner) => inner !== undefined && inner.path.length > 0)
    .map((inner) => deepest({ ...inner, path: [...issue.path, ...inner.path] } as z.core.$ZodIssue))
  const depth = Math.max(...inner.map(({ path }) => path.length))
  const nearest = inner.filter(({ path }) => path.length === depth)
  // A form of the right type fits better than one of another type.
  return nearest.find(({ code }) => code !== 'invalid_type') ?? (nearest.length === 1 ? nearest[0] : issue)
}
