/** Small text functions for reward functions. */

/** The words of a text, separated by whitespace. */
export function words(text: string): string[] {
  return text.split(/\s+/u).filter((word) => word !== '')
}

/** The words of a text in lower case, without punctuation but with accents: `"Don't stop!"` gives `don't` and `stop`. */
function plainWords(text: string): string[] {
  return (
    text
      .toLowerCase()
      .normalize('NFC')
      .replaceAll('\u2019', "'")
      .match(/[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{N}]+)*/gu) ?? []
  )
}

/**
 * Whether the words of `phrase` occur in `text` one after another. Case and punctuation do not matter: "Paris." contains "paris", "comparison" does
 * not.
 */
export function containsWords(text: string, phrase: string): boolean {
  const needle = plainWords(phrase)
  const hay = plainWords(text)
  if (needle.length === 0) return false
  return hay.some((_, i) => needle.every((word, j) => hay[i + j] === word))
}

/** Length of the longest common subsequence of two strings, in code points. O(|a| |b|) time, O(|b|) memory. */
export function lcsLength(a: string, b: string): number {
  const x = Array.from(a)
  const y = Array.from(b)
  const row = new Uint32Array(y.length + 1)
  for (const char of x) {
    let diagonal = 0
    for (let j = 1; j <= y.length; j++) {
      const above = row[j]
      row[j] = char === y[j - 1] ? diagonal + 1 : Math.max(above, row[j - 1])
      diagonal = above
    }
  }
  return row[y.length]
}

/**
 * Similarity 2 LCS(a, b) / (|a| + |b|): 1 for equal strings (also two empty ones), 0 for nothing in common. Missing and extra characters both lower
 * it.
 */
export function lcsRatio(a: string, b: string): number {
  const total = Array.from(a).length + Array.from(b).length
  return total === 0 ? 1 : (2 * lcsLength(a, b)) / total
}

/**
 * The last number in a text, or null: "3 + 4 = 7." gives 7, "1,024" gives 1024, ".5" gives 0.5. A minus is a sign only if it does not follow a
 * number, bracket or letter: "it is -5" gives -5, "12-5" and "12 -5" give 5.
 */
export function lastNumber(text: string): number | null {
  const match = [...text.matchAll(/\d+(?:,\d{3})*(?:\.\d+)?|(?<=^|[\s($€£=+\u2212-])\.\d+/gu)].at(-1)
  if (!match) return null
  const value = Number(match[0].replaceAll(',', ''))
  const sign = text[match.index - 1]
  if (sign !== '-' && sign !== '\u2212') return value
  const before = text.slice(0, match.index - 1)
  const isSign = /\s$/u.test(before) ? !/[\d)]$/u.test(before.trimEnd()) : !/[\p{L}\d)]$/u.test(before)
  return isSign ? -value : value
}
