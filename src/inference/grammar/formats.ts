/** Formats: read from a request's body, and written as EBNF. */
import { UserError } from '../../common/errors.ts'
import { regexGrammar } from './regex.ts'
import { Rules, literal, oneOf } from './rules.ts'
import { isObject } from './schema-read.ts'
import { schemaGrammar } from './schema.ts'
import type { GrammarFormat } from './types.ts'

const MOST_CHOICES = 10_000
const KINDS = ['json', 'regex', 'choice', 'grammar', 'json_object'] as const

/** The format that a body asks for, and the field that asks. */
export interface AskedFormat {
  format: GrammarFormat
  field: string
}

/**
 * Reads `response_format` (OpenAI's: text, json_object, json_schema) and `structured_outputs` (vLLM's: one of json, regex, choice, grammar,
 * json_object). Null where the answer is free text.
 * @throws UserError that names the field
 */
export function askedFormat(body: { response_format?: unknown; structured_outputs?: unknown }): AskedFormat | null {
  const response = body.response_format ?? null
  const structured = body.structured_outputs ?? null
  const first = response === null ? null : ofResponse(response)
  const second = structured === null ? null : ofStructured(structured)
  if (first && second) throw new UserError('response_format and structured_outputs are both set; set one of them.')
  return first ?? second
}

function ofResponse(value: unknown): AskedFormat | null {
  const field = 'response_format'
  if (!isObject(value)) throw new UserError(`${field} is an object with "type".`)
  if (value.type === 'text') return null
  if (value.type === 'json_object') return { field, format: { type: 'json_object' } }
  if (value.type !== 'json_schema')
    throw new UserError(`${field}.type is ${JSON.stringify(value.type)}; it is one of text, json_object, json_schema.`)
  const inner = value.json_schema
  if (!isObject(inner) || (inner.schema ?? inner.json_schema) === undefined)
    throw new UserError(`${field}.json_schema is an object with "name" and "schema".`)
  return { field, format: { type: 'json_schema', schema: inner.schema ?? inner.json_schema } }
}

function ofStructured(value: unknown): AskedFormat | null {
  const field = 'structured_outputs'
  if (!isObject(value)) throw new UserError(`${field} is an object with one of ${KINDS.join(', ')}.`)
  const set = KINDS.filter((kind) => value[kind] !== undefined && value[kind] !== null && value[kind] !== false)
  const other = Object.keys(value).find(
    (name) => !(KINDS as readonly string[]).includes(name) && value[name] && name === 'structural_tag',
  )
  if (set.length !== 1 || other)
    throw new UserError(
      `${field} has one of ${KINDS.join(', ')}; it has ${[...set, other].filter(Boolean).join(', ') || 'none'}.`,
    )
  const kind = set[0]
  const given = value[kind]
  if (kind === 'json_object') return { field, format: { type: 'json_object' } }
  if (kind === 'json')
    return { field, format: { type: 'json_schema', schema: typeof given === 'string' ? parsed(given, field) : given } }
  if (kind === 'choice') {
    if (!Array.isArray(given) || given.some((choice) => typeof choice !== 'string'))
      throw new UserError(`${field}.choice is a list of texts.`)
    return { field, format: { type: 'choice', choices: given as string[] } }
  }
  if (typeof given !== 'string') throw new UserError(`${field}.${kind} is a text.`)
  return { field, format: kind === 'regex' ? { type: 'regex', pattern: given } : { type: 'grammar', grammar: given } }
}

function parsed(text: string, field: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    throw new UserError(`${field}.json is neither a JSON schema nor the text of one.`)
  }
}

/** The format as an EBNF grammar with the rule `root`. @throws UserError for one that cannot be written so */
export function formatGrammar(format: GrammarFormat): string {
  if (format.type === 'json_object') return schemaGrammar({ type: 'object' })
  if (format.type === 'json_schema') return schemaGrammar(format.schema)
  if (format.type === 'grammar') {
    if (format.grammar.length > 200_000) throw new UserError('The grammar is longer than 200000 characters.')
    return format.grammar
  }
  const rules = new Rules()
  if (format.type === 'regex') return rules.text(rules.add(regexGrammar(format.pattern)))
  const choices = [...new Set(format.choices)].filter((choice) => choice.length > 0)
  if (choices.length === 0 || choices.length > MOST_CHOICES)
    throw new UserError(`A choice has 1 to ${MOST_CHOICES} texts that are not empty; it has ${choices.length}.`)
  return rules.text(rules.add(oneOf(choices.map(literal))))
}
