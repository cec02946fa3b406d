/**
 * JSON in which a Map is an object whose keys stay in their order. A JavaScript object puts keys that look like integers first, and sorted; clients of vLLM
 * take the first entry of a map by token id for the token that stands in the text (prime-rl's scoring of prompts does).
 */
import { randomUUID } from 'node:crypto'

export function jsonText(value: unknown): string {
  const written: string[] = []
  // No text has it by chance.
  const mark = `map ${randomUUID()} `
  const text = JSON.stringify(value, (_, inner: unknown) =>
    inner instanceof Map ? mark + (written.push(mapText(inner)) - 1) : inner,
  )
  if (written.length === 0) return text
  return text.replaceAll(new RegExp(`"${mark}(\\d+)"`, 'g'), (_, i: string) => written[Number(i)])
}

const mapText = (map: ReadonlyMap<unknown, unknown>): string =>
  `{${[...map].map(([key, value]) => `${JSON.stringify(String(key))}:${jsonText(value)}`).join(',')}}`
