/** The width of text in a terminal. */

/** East Asian wide and fullwidth characters, and pictures: two columns each. */
const WIDE =
  /^[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{16fe0}-\u{18cff}\u{1aff0}-\u{1b2ff}\u{20000}-\u{3fffd}]|^\p{Emoji_Presentation}/u
const NONE = /^[\p{M}\u200b-\u200f]/u
// oxlint-disable-next-line no-control-regex
const STYLE = /\x1b\[[\d;]*m/g

/** Text without colours. */
export const withoutStyle = (text: string): string => text.replace(STYLE, '')

const columnsOf = (char: string): number => (NONE.test(char) ? 0 : WIDE.test(char) ? 2 : 1)

/** The columns of a line; colour codes have none. */
export function textWidth(text: string): number {
  let width = 0
  for (const char of withoutStyle(text)) width += columnsOf(char)
  return width
}

/** Text without colours, in at most `width` columns; what is cut off is shown by an ellipsis. */
export function cut(text: string, width: number): string {
  if (textWidth(text) <= width) return text
  let [out, used] = ['', 0]
  for (const char of text) {
    const columns = columnsOf(char)
    if (used + columns > width - 1) break
    out += char
    used += columns
  }
  return `${out}…`
}

/** Text in pieces of at most `width` columns; at least one character each. */
export function chop(text: string, width: number): string[] {
  const pieces = ['']
  let used = 0
  for (const char of text) {
    const columns = columnsOf(char)
    if (used > 0 && used + columns > width) {
      pieces.push('')
      used = 0
    }
    pieces[pieces.length - 1] += char
    used += columns
  }
  return pieces
}
