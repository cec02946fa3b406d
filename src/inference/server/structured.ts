/** Turns response_format and structured_outputs into constraints on sampling. */
import type { GrammarConstraint, GrammarFormat } from '../grammar/types.ts'
import { checkSize } from './body.ts'
import { badRequest, unsupported } from './errors.ts'
import type { ServerContext } from './parts.ts'
import type { ResponseFormat, StructuredOutputs } from './schemas/common.ts'

/**
 * The constraint that a request asks for.
 * @throws HttpError for several constraints at once, or an unknown one
 */
function formatOf(
  format: ResponseFormat | null | undefined,
  outputs: StructuredOutputs | null | undefined,
): { format: GrammarFormat; field: string } | undefined {
  const asked: { format: GrammarFormat; field: string }[] = []
  const field = 'structured_outputs'
  if (outputs?.json !== undefined && outputs.json !== null)
    asked.push({ format: { type: 'json_schema', schema: schemaOf(outputs.json) }, field })
  if (outputs?.json_object === true) asked.push({ format: { type: 'json_object' }, field })
  if (typeof outputs?.regex === 'string') asked.push({ format: { type: 'regex', pattern: outputs.regex }, field })
  if (outputs?.choice) asked.push({ format: { type: 'choice', choices: outputs.choice }, field })
  if (typeof outputs?.grammar === 'string') asked.push({ format: { type: 'grammar', grammar: outputs.grammar }, field })
  if (outputs && asked.length !== 1)
    throw badRequest(`${field}: it must have one of json, json_object, regex, choice, grammar.`, field)
  if (format?.type === 'json_object') asked.push({ format: { type: 'json_object' }, field: 'response_format' })
  if (format?.type === 'json_schema')
    asked.push({ format: { type: 'json_schema', schema: format.json_schema.schema }, field: 'response_format' })
  if (asked.length > 1) throw badRequest(`${field}: response_format sets a constraint as well. Send only one of them.`, field)
  return asked[0]
}

function schemaOf(json: string | Record<string, unknown>): unknown {
  if (typeof json !== 'string') return json
  checkSize(Buffer.from(json), 'structured_outputs.json: the schema', 'structured_outputs')
  try {
    return JSON.parse(json)
  } catch {
    throw badRequest('structured_outputs.json: it is not valid JSON.', 'structured_outputs')
  }
}

/**
 * Returns a function that makes the constraint of each completion; undefined if the request asks for none.
 * @param more.own the constraint from tool_choice
 * @param more.afterToken the token after which the constraint begins
 * @throws HttpError for several constraints at once, or an unknown one
 */
export function constraintOf(
  server: ServerContext,
  body: { response_format?: ResponseFormat | null; structured_outputs?: StructuredOutputs | null },
  more: { own?: { format: GrammarFormat; field: string }; afterToken?: number } = {},
): (() => Promise<GrammarConstraint>) | undefined {
  const { own, afterToken } = more
  const asked = formatOf(body.response_format, body.structured_outputs)
  if (asked && own) throw badRequest(`${own.field}: ${asked.field} sets a constraint as well. Send only one of them.`, own.field)
  const wanted = own ?? asked
  if (!wanted) return undefined
  const { grammars } = server.parts
  if (!grammars) throw unsupported(wanted.field, 'this server was started without grammars')
  return async () => await (await grammars()).constraint(wanted.format, { field: wanted.field, afterToken })
}
