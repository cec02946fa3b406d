/** A run's config.toml: its text, its flat keys, and where runs differ. */
import { parse } from 'smol-toml'
import type { CompareAnswer, FlatValue } from './types.ts'

export interface RunConfigText {
  text: string
  flat: Record<string, FlatValue>
  model: string | null
  envs: string[]
  maxSteps: number | null
}

const none: RunConfigText = { text: '', flat: {}, model: null, envs: [], maxSteps: null }

/** A file that is not valid TOML (incomplete, edited by hand) has a text and no keys. */
export function readConfig(text: string | null): RunConfigText {
  if (text === null) return none
  let table: Record<string, unknown>
  try {
    table = parse(text)
  } catch {
    return { ...none, text }
  }
  const flat = Object.fromEntries(flatten(table, ''))
  const envs = Object.entries(flat).flatMap(([key, value]) =>
    /^env\.(?:\d+\.)?(?:name|id)$/.test(key) ? [[key, value] as const] : [],
  )
  const byPlace = Map.groupBy(envs, ([key]) => key.replace(/\.\w+$/, ''))
  const model = flat['model.name'] ?? flat.model
  const steps = flat['trainer.args.max_steps'] ?? flat.max_steps
  return {
    text,
    flat,
    model: typeof model === 'string' ? model : null,
    envs: [...byPlace.values()].map((entries) => String((entries.find(([key]) => key.endsWith('.name')) ?? entries[0])[1])),
    maxSteps: typeof steps === 'number' ? steps : null,
  }
}

/** Tables become dotted keys, lists of tables numbered ones; a list of values is its JSON. */
function flatten(value: unknown, path: string): [string, FlatValue][] {
  if (Array.isArray(value)) {
    if (value.length > 0 && value.every((item) => typeof item === 'object' && item !== null && !Array.isArray(item)))
      return value.flatMap((item, i) => flatten(item, `${path}.${i}`))
    return [[path, JSON.stringify(value)]]
  }
  if (value instanceof Date) return [[path, value.toISOString()]]
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value)
    if (entries.length === 0 && path !== '') return [[path, '{}']]
    return entries.flatMap(([key, item]) => flatten(item, path === '' ? key : `${path}.${key}`))
  }
  if (typeof value === 'bigint') return [[path, Number(value)]]
  return [[path, typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean' ? value : null]]
}

/** The keys at which configurations differ, in the order of the first that has them. */
export function compareConfigs(runs: readonly string[], flats: readonly Record<string, FlatValue>[]): CompareAnswer {
  const keys = [...new Set(flats.flatMap((flat) => Object.keys(flat)))]
  const rows = keys.map((key) => ({ key, values: flats.map((flat) => (Object.hasOwn(flat, key) ? flat[key] : null)) }))
  return { runs: [...runs], keys: rows.filter(({ values }) => values.some((value) => value !== values[0])) }
}
