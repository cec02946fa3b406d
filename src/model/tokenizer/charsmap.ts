/**
 * SentencePiece's precompiled table of characters and their replacements, in base64: the length of a trie, its bytes,
 * then the replacement texts, each ended by a zero. The trie is a double array (darts-clone): a unit of 32 bits a node.
 */

const label = (unit: number) => unit & 0x800000ff
const hasValue = (unit: number) => ((unit >>> 8) & 1) === 1
const offset = (unit: number) => (unit >>> 10) << ((unit & 0x200) >>> 6)

/**
 * Returns a function that replaces by the table, as Python's tokenizers do: a grapheme of at most five bytes as a whole, else each of its characters.
 * @throws Error where the text is no such table
 */
export function charsmapOf(base64: string): (text: string) => string {
  const bytes = Buffer.from(base64, 'base64')
  const size = bytes.length < 4 ? Infinity : bytes.readUInt32LE(0)
  if (size + 4 > bytes.length || size % 4 !== 0) throw new Error('its precompiled_charsmap is incomplete')
  const trie = Uint32Array.from({ length: size / 4 }, (_, i) => bytes.readUInt32LE(4 + 4 * i))
  const texts = bytes.subarray(4 + size)
  /** The replacement of the shortest prefix of `part` in the table, which stands for all of `part`. */
  const written = (part: Uint8Array): string | undefined => {
    let at = offset(trie[0])
    for (const byte of part) {
      at ^= byte
      const unit = trie[at]
      if (unit === undefined || label(unit) !== byte) return undefined
      at ^= offset(unit)
      if (!hasValue(unit)) continue
      const start = trie[at] & 0x7fffffff
      return texts.toString('utf8', start, texts.indexOf(0, start))
    }
    return undefined
  }
  const graphemes = new Intl.Segmenter('en', { granularity: 'grapheme' })
  return (text) => {
    let out = ''
    for (const { segment } of graphemes.segment(text)) {
      const whole = Buffer.from(segment)
      const known = whole.length < 6 ? written(whole) : undefined
      out += known ?? Array.from(segment, (sign) => written(Buffer.from(sign)) ?? sign).join('')
    }
    return out
  }
}
