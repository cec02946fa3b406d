/** Converts the formats of constrained answers to EBNF. */
import { UserError } from '../../common/errors.ts'
import { regexGrammar } from './regex.ts'
import { Rules, literal, oneOf } from './rules.ts'
import { schemaGrammar } from './schema.ts'
import type { GrammarFormat } from './types.ts'

const MOST_CHOICES = 10_000
const MOST_TEXT = 500_000

/**
 * The format as an EBNF grammar with the rule `root`.
 * @throws UserError for a format that cannot be written as EBNF
 */
export function formatGrammar(format: GrammarFormat): string {
  if (format.type === 'json_object') return schemaGrammar({ type: 'object' })
  if (format.type === 'json_schema') return schemaGrammar(format.schema, format.loose)
  if (format.type === 'grammar') {
    if (format.grammar.length > 200_000) throw new UserError('The grammar is longer than 200000 characters.')
    return format.grammar
  }
  const rules = new Rules()
  if (format.type === 'regex') return rules.text(rules.add(regexGrammar(format.pattern)))
  const choices = [...new Set(format.choices)]
  if (choices.length === 0 || choices.length > MOST_CHOICES)
    throw new UserError(`A choice must have 1 to ${MOST_CHOICES} texts; this one has ${choices.length}.`)
  const length = choices.reduce((sum, text) => sum + text.length, 0)
  if (length > MOST_TEXT)
    throw new UserError(`The texts of a choice may have at most ${MOST_TEXT} characters in total; these have ${length}.`)
  return rules.text(rules.add(oneOf(choices.map(literal))))
}
