/** `chat_template_kwargs`: variables for the chat template, of a config or of a data set's row. */
import { UserError } from './errors.ts'

/** Variables that every template gets anyway, with each prompt's own values. */
const OWN_VARIABLES = ['messages', 'tools', 'add_generation_prompt', 'continue_final_message', 'chat_template']

/** What is wrong with variables for a chat template; undefined where nothing is. */
export function variableProblem(variables: Record<string, unknown>): string | undefined {
  const own = OWN_VARIABLES.find((name) => Object.hasOwn(variables, name))
  if (own) return `chat_template_kwargs.${own} is set for every prompt anyway. Remove it.`
  const isTruth = ([, one]: [string, unknown]) => typeof one === 'string' && /^(true|false)$/iu.test(one)
  const [name, text] = Object.entries(variables).find(isTruth) ?? []
  return (
    name &&
    `chat_template_kwargs.${name} is ${JSON.stringify(text)}, a text, and no text is false. Write ${String(text).toLowerCase()}.`
  )
}

/**
 * A row's column `chat_template_kwargs`, as TRL has it; its variables override those of the config.
 * @param where names the row in errors
 * @throws UserError where it is not an object, or holds what a config may not hold either
 */
export function variablesOf(value: unknown, where: string): { variables?: Record<string, unknown> } {
  if (value === undefined || value === null) return {}
  if (typeof value !== 'object' || Array.isArray(value))
    throw new UserError(
      `${where}: its chat_template_kwargs must be an object, as {"enable_thinking": false}, found ${JSON.stringify(value)}.`,
    )
  // Parquet writes null where a row lacks a field that another has.
  const variables = Object.fromEntries(Object.entries(value).filter(([, one]) => one !== null))
  const wrong = variableProblem(variables)
  if (wrong) throw new UserError(`${where}: ${wrong}`)
  return Object.keys(variables).length > 0 ? { variables } : {}
}
