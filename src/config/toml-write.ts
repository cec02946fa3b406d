/**
 * Writes a resolved config as TOML that reads back as the same config. smol-toml is not used because a float must stay a float (1.0, not 1, which
 * other TOML readers take for an integer) and keys must keep the order of the schema.
 */
import type { RunConfig } from './schema.ts'
import { rlSchema } from './schema.ts'
import { type SchemaNode, schemaTree } from './schema-tree.ts'
import { type SftConfig, sftSchema } from './sft-schema.ts'

/** The TOML text of a resolved config (RL or SFT). */
export function stringifyConfig(config: RunConfig | SftConfig): string {
  const tree = schemaTree('data' in config ? sftSchema : rlSchema)
  const lines: string[] = []
  writeTable(config as unknown as Record<string, unknown>, tree, [], lines, '')
  return `${lines.join('\n').trim()}\n`
}

/** Formats a value as TOML. `node` distinguishes floats from integers; without it a whole number is an integer. */
export function tomlValue(value: unknown, node?: SchemaNode): string {
  if (typeof value === 'number') return tomlNumber(value, node?.type === 'number')
  if (typeof value === 'string') return tomlString(value)
  if (typeof value === 'boolean' || typeof value === 'bigint') return String(value)
  if (value instanceof Date) return value.toISOString()
  if (Array.isArray(value)) return `[${value.map((item) => tomlValue(item, node?.items)).join(', ')}]`
  if (typeof value === 'object' && value !== null) {
    const entries = present(value as Record<string, unknown>)
    return entries.length
      ? `{ ${entries.map(([key, inner]) => `${tomlKey(key)} = ${tomlValue(inner, node?.keys?.[key])}`).join(', ')} }`
      : '{}'
  }
  throw new Error(`no TOML for ${String(value)}`)
}

function writeTable(table: Record<string, unknown>, node: SchemaNode, path: string[], lines: string[], header: string): void {
  const order = Object.keys(node.keys ?? {})
  const rank = (key: string) => (order.includes(key) ? order.indexOf(key) : order.length)
  const entries = present(table).toSorted(([a], [b]) => rank(a) - rank(b))
  const isSubTable = ([key]: [string, unknown]) => Boolean(node.keys?.[key]?.keys ?? node.keys?.[key]?.items?.keys)
  const plain = entries.filter((entry) => !isSubTable(entry))
  if (header && (plain.length || header.startsWith('[['))) lines.push('', header)
  for (const [key, value] of plain) lines.push(`${tomlKey(key)} = ${tomlValue(value, node.keys?.[key])}`)
  for (const [key, value] of entries.filter(isSubTable)) {
    const child = node.keys![key]
    const name = [...path, key].map(tomlKey).join('.')
    if (Array.isArray(value))
      for (const item of value) writeTable(item as Record<string, unknown>, child.items!, [...path, key], lines, `[[${name}]]`)
    else writeTable(value as Record<string, unknown>, child, [...path, key], lines, `[${name}]`)
  }
}

const present = (table: Record<string, unknown>) =>
  Object.entries(table).filter(([, value]) => value !== undefined && value !== null)

const tomlKey = (key: string) => (/^[A-Za-z0-9_-]+$/.test(key) ? key : tomlString(key))

function tomlNumber(value: number, float: boolean): string {
  if (Number.isNaN(value)) return 'nan'
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf'
  // 1e-5 rather than 0.00001
  const small = value !== 0 && Math.abs(value) < 1e-3
  const text = Object.is(value, -0) ? '-0' : small ? value.toExponential() : String(value)
  return /[.e]/.test(text) || (!float && Number.isSafeInteger(value)) ? text : `${text}.0`
}

/** Formats a basic string. JSON's escapes are valid TOML, which also requires the delete character to be escaped. */
const tomlString = (text: string) => JSON.stringify(text).replaceAll('\u007f', '\\u007f')
