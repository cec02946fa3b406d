/** Which tokens have their text for good, where all of them together end in U+FFFD: that may be the first bytes of a character, or what it says. */

/** Tokens of one byte that may follow the first one of a character. */
const mostFollowing = 3

/**
 * How many of `ids` have a text that no further token changes, and that text; undefined where there are none beyond the first `given`.
 * Behind them are as many as finish any character, and the two parts have together the text of all: the border lies in no character.
 * @param text of all of them
 */
export function settledIds(
  ids: readonly number[],
  given: number,
  text: string,
  decode: (ids: readonly number[]) => string,
): { count: number; text: string } | undefined {
  if (ids.length - given <= mostFollowing) return undefined
  let count = ids.length
  for (let rest = 0; rest < mostFollowing; count--) {
    if (count <= given + 1) return undefined
    // One without text, as a special token that is left out, finishes nothing.
    if (decode([ids[count - 1]]) !== '') rest++
  }
  const settled = decode(ids.slice(0, count))
  return settled + decode(ids.slice(count)) === text ? { count, text: settled } : undefined
}
