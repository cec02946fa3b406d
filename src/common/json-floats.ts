/** Whole numbers that are floats to Python, in JSON that a chat template may write: the schemas of tools say `"default": 1.0`, and models were trained on that. */

/** For each object or list, the keys of such numbers. */
const floats = new WeakMap<object, Set<string>>()

/** Whether a whole number in an object or list that was read here is a float to Python. */
export const isFloat = (holder: object, key: string | number): boolean => floats.get(holder)?.has(String(key)) ?? false

/** Bodies with more values are read without this, as it takes some 5 us a value and no real tools are so large. */
const MOST_VALUES = 20_000

/** JSON that may have tools. Numbers are JavaScript's, for all that calculate with them: which are floats is kept beside the object that has them. */
export function jsonWithTools(text: string): unknown {
  const plain: unknown = JSON.parse(text)
  const { tools } = Object(plain) as { tools?: unknown }
  if (!Array.isArray(tools) || !/\d(?:\.0|e)/iu.test(text) || valuesLeft(plain, MOST_VALUES) < 0) return plain
  return JSON.parse(text, function (this: object, key, value: unknown, { source = '' }: { source?: string } = {}) {
    if (Number.isInteger(value) && /[.e]/iu.test(source)) floats.set(this, (floats.get(this) ?? new Set()).add(key))
    return value
  })
}

/** Counts a JSON value's parts down from `most`; below 0 where there are more. */
function valuesLeft(value: unknown, most: number): number {
  let left = most - 1
  if (typeof value === 'object' && value !== null)
    for (const inner of Object.values(value)) if (left >= 0) left = valuesLeft(inner, left)
  return left
}
