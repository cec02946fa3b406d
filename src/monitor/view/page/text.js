/** Shows text of models, which may hold any character, and searches in text. */

/**
 * Makes invisible characters visible: a line end gets an arrow before it, control characters become their pictures, direction marks and joiners
 * that join nothing their numbers.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(
    /[\p{Cc}\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]|[\u200c\u200d](?![\p{L}\p{M}\p{Extended_Pictographic}])/gu,
    (char) => {
      if (char === '\n') return '\u21b5\n'
      const code = char.charCodeAt(0)
      if (code < 32) return String.fromCharCode(0x2400 + code)
      return code === 127 ? '\u2421' : `\u27e8${code.toString(16)}\u27e9`
    },
  )
}

/** Whether a line has all words of a text, whatever the case. @param {string} text @returns {(line: string) => boolean} */
export function hasWords(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean)
  return (line) => words.every((word) => line.toLowerCase().includes(word))
}
