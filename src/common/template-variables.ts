/** `chat_template_kwargs`: variables for the chat template, from a config or a row of a dataset. */
import { UserError } from './errors.ts'

/** Variables that every template gets anyway, with values of the prompt. */
const OWN_VARIABLES = ['messages', 'tools', 'add_generation_prompt', 'continue_final_message', 'chat_template']

/** Says what is wrong with variables for a chat template. Undefined if nothing is. */
export function variableProblem(variables: Record<string, unknown>): string | undefined {
  const own = OWN_VARIABLES.find((name) => Object.hasOwn(variables, name))
  if (own) return `chat_template_kwargs.${own} is set for every prompt anyway. Remove it.`
  const isTruth = ([, one]: [string, unknown]) => typeof one === 'string' && /^(true|false)$/iu.test(one)
  const [name, text] = Object.entries(variables).find(isTruth) ?? []
  return (
    name &&
    `chat_template_kwargs.${name} is ${JSON.stringify(text)}, a string, and templates take every string that is not empty as true. Write ${String(text).toLowerCase()}.`
  )
}

/**
 * Reads a row's column `chat_template_kwargs`, named as in TRL. Its variables override those of the config.
 * @param where names the row in errors
 * @throws UserError if it is not an object, or contains what a config may not contain either
 */
export function variablesOf(value: unknown, where: string): { variables?: Record<string, unknown> } {
  if (value === undefined || value === null) return {}
  if (typeof value !== 'object' || Array.isArray(value))
    throw new UserError(
      `${where}: its chat_template_kwargs must be an object, such as {"enable_thinking": false}, found ${JSON.stringify(value)}.`,
    )
  // Parquet writes null if a row lacks a field that another row has.
  const variables = Object.fromEntries(Object.entries(value).filter(([, one]) => one !== null))
  const wrong = variableProblem(variables)
  if (wrong) throw new UserError(`${where}: ${wrong}`)
  return Object.keys(variables).length > 0 ? { variables } : {}
}
