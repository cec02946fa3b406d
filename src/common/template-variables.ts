/** The column `chat_template_kwargs` of a row, as TRL has it: what its chat template is handed, over what the config says. */
import { UserError } from './errors.ts'

/** @throws UserError where it is no table */
export function variablesOf(value: unknown, where: string): { variables?: Record<string, unknown> } {
  if (value === undefined || value === null) return {}
  if (typeof value !== 'object' || Array.isArray(value))
    throw new UserError(
      `${where}: its chat_template_kwargs must be an object, as {"enable_thinking": false}, found ${JSON.stringify(value)}.`,
    )
  // Parquet writes null where a row lacks a field that another has.
  const given = Object.entries(value).filter(([, one]) => one !== null)
  return given.length > 0 ? { variables: Object.fromEntries(given) } : {}
}
