/** Small text functions for rewards. */

/** Words, separated by whitespace. */
export function words(text: string): string[] {
  return text.split(/\s+/u).filter((word) => word !== '')
}

/** Letters and digits only, lower case, accents kept: `"Don't stop!"` gives `don't stop`. */
function plainWords(text: string): string[] {
  return (
    text
      .toLowerCase()
      .normalize('NFC')
      .replaceAll('\u2019', "'")
      .match(/[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{N}]+)*/gu) ?? []
  )
}

/** Whether the words of `phrase` stand in `text` one after another, whatever case and punctuation: "Paris." has "paris", "comparison" has not. */
export function containsWords(text: string, phrase: string): boolean {
  const needle = plainWords(phrase)
  const hay = plainWords(text)
  if (needle.length === 0) return false
  return hay.some((_, i) => needle.every((word, j) => hay[i + j] === word))
}

/** Length of the longest common subsequence of two strings, in code points. Time |a| x |b|, memory |b|. */
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

/** 2 LCS(a, b) / (|a| + |b|): 1 for equal strings, 0 for nothing in common; both missing and extra characters lower it. 1 for two empty ones. */
export function lcsRatio(a: string, b: string): number {
  const total = Array.from(a).length + Array.from(b).length
  return total === 0 ? 1 : (2 * lcsLength(a, b)) / total
}

/**
 * The last number in a text, or null: "3 + 4 = 7." gives 7, "1,024" gives 1024. A minus counts as a sign only where no number,
 * bracket or letter stands before it: "it is -5" gives -5, "12-5" and "12 -5" give 5.
 */
export function lastNumber(text: string): number | null {
  const match = [...text.matchAll(/\d+(?:,\d{3})*(?:\.\d+)?/gu)].at(-1)
  if (!match) return null
  const value = Number(match[0].replaceAll(',', ''))
  const sign = text[match.index - 1]
  if (sign !== '-' && sign !== '\u2212') return value
  const before = text.slice(0, match.index - 1)
  const isSign = /\s$/u.test(before) ? !/[\d)]$/u.test(before.trimEnd()) : !/[\p{L}\d)]$/u.test(before)
  return isSign ? -value : value
}
