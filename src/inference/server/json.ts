/**
 * JSON in which a Map becomes an object with its keys in insertion order. JavaScript objects move keys that look like integers to the front, but
 * clients of vLLM take the first entry of a map by token id as the actual token (prime-rl's scoring of prompts does).
 */
import { randomUUID } from 'node:crypto'

/** JSON of a value that may contain Maps. */
export function jsonText(value: unknown): string {
  const written: string[] = []
  // A marker that no text contains by chance.
  const mark = `map ${randomUUID()} `
  const text = JSON.stringify(value, (_, inner: unknown) =>
    inner instanceof Map ? mark + (written.push(mapText(inner)) - 1) : inner,
  )
  if (written.length === 0) return text
  return text.replaceAll(new RegExp(`"${mark}(\\d+)"`, 'g'), (_, i: string) => written[Number(i)])
}

const mapText = (map: ReadonlyMap<unknown, unknown>): string =>
  `{${[...map].map(([key, value]) => `${JSON.stringify(String(key))}:${jsonText(value)}`).join(',')}}`
