/** Finds the tokens whose text is final where the text ends in U+FFFD: that may be an unfinished character, or a U+FFFD that the model wrote. */

/** Most one-byte tokens after the first byte of a character. */
const mostFollowing = 3

/**
 * How many of `ids` have a text that no further token changes, and that text; undefined where there are none beyond the first `given`.
 * Enough tokens follow these to finish any character, and both parts decoded apart give the text of all: so the border splits no character.
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
    // A token without text (a special token that is skipped) finishes no character.
    if (decode([ids[count - 1]]) !== '') rest++
  }
  const settled = decode(ids.slice(0, count))
  return settled + decode(ids.slice(count)) === text ? { count, text: settled } : undefined
}
