/**
 * Keeps track of integral numbers in JSON that are floats in Python, such as `"default": 1.0` in the schema of a tool. Chat templates print them as
 * floats, and models were trained on that.
 */

/** For each object or list, the keys of such numbers. */
const floats = new WeakMap<object, Set<string>>()

/** Whether a number in an object or list that was parsed here is integral but a float in Python. */
export const isFloat = (holder: object, key: string | number): boolean => floats.get(holder)?.has(String(key)) ?? false

/** JSON with more values is parsed without this: it takes about 5 us per value, and real tools are never so large. */
const MOST_VALUES = 20_000

/**
 * Parses JSON that may contain tools. Numbers become JavaScript numbers, so that all code can calculate with them. Which of them are floats is stored
 * beside the object that contains them.
 */
export function jsonWithTools(text: string): unknown {
  const plain: unknown = JSON.parse(text)
  return Array.isArray((Object(plain) as { tools?: unknown }).tools) ? withFloats(text, plain) : plain
}

/** Like `jsonWithTools`, of JSON that is the list of tools itself. @throws SyntaxError */
export const jsonOfTools = (text: string): unknown => withFloats(text, JSON.parse(text))

function withFloats(text: string, plain: unknown): unknown {
  if (!/\d(?:\.0|e)/iu.test(text) || valuesLeft(plain, MOST_VALUES) < 0) return plain
  return JSON.parse(text, function (this: object, key, value: unknown, { source = '' }: { source?: string } = {}) {
    if (Number.isInteger(value) && /[.e]/iu.test(source)) floats.set(this, (floats.get(this) ?? new Set()).add(key))
    return value
  })
}

/** Subtracts the number of values in a JSON value from `most`. Negative if there are more. */
function valuesLeft(value: unknown, most: number): number {
  let left = most - 1
  if (typeof value === 'object' && value !== null)
    for (const inner of Object.values(value)) if (left >= 0) left = valuesLeft(inner, left)
  return left
}
