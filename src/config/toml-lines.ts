/**
 * Finds the line and column of each key in a TOML text. smol-toml gives positions only for syntax errors, so this small scanner goes through the text
 * a second time. It expects text that smol-toml has accepted: it finds keys, skips values, and checks nothing.
 */

/** 1-based. */
export interface Position {
  line: number
  column: number
}

/** A path as a single string. Parts may contain dots, so they are joined by a character that TOML forbids. */
export const pathKey = (path: readonly (string | number)[]): string => path.join('\u0000')

/**
 * Maps every table header, key, key of an inline table and array element to its position. Paths are those of the parsed object: two [[env]] give
 * env.0 and env.1. For a table, its first mention counts.
 */
export function tomlPositions(text: string): Map<string, Position> {
  const scanner = new Scanner(text)
  scanner.document()
  return scanner.positions
}

class Scanner {
  positions = new Map<string, Position>()
  #text: string
  #at = 0
  /** The line of the last key found, and the offsets of its beginning and end. */
  #line = 1
  #lineStart = 0
  #lineEnd: number
  /** Next index of each array of tables. */
  #tableCounts = new Map<string, number>()

  constructor(text: string) {
    this.#text = text
    this.#lineEnd = this.#nextLineEnd()
  }

  #nextLineEnd(): number {
    const end = this.#text.indexOf('\n', this.#lineStart)
    return end < 0 ? Infinity : end
  }

  document(): void {
    let table: string[] = []
    for (;;) {
      this.#skipBlank(true)
      if (this.#at >= this.#text.length) return
      if (this.#text[this.#at] !== '[') {
        this.#entry(table)
        continue
      }
      const start = this.#at
      const isArray = this.#text.startsWith('[[', this.#at)
      this.#at += isArray ? 2 : 1
      table = this.#throughArrays(this.#keyPath(), isArray)
      this.#at += isArray ? 2 : 1
      for (let n = 1; n <= table.length; n++) this.#note(table.slice(0, n), start)
    }
  }

  /** Adds the indices to a header's path: [env.args] after the second [[env]] is env.1.args. */
  #throughArrays(keys: string[], isArray: boolean): string[] {
    const path: string[] = []
    keys.forEach((key, i) => {
      path.push(key)
      const name = pathKey(path)
      const count = this.#tableCounts.get(name)
      if (isArray && i === keys.length - 1) {
        this.#tableCounts.set(name, (count ?? 0) + 1)
        path.push(String(count ?? 0))
      } else if (count !== undefined) path.push(String(count - 1))
    })
    return path
  }

  /** Scans `key.path = value` inside `table`. */
  #entry(table: string[]): void {
    const start = this.#at
    const path = [...table, ...this.#keyPath()]
    for (let n = table.length + 1; n <= path.length; n++) this.#note(path.slice(0, n), start)
    this.#at++ // the equals sign, where #keyPath stops
    this.#skipBlank(false)
    this.#value(path)
  }

  /** Scans a dotted key and the blanks after it. */
  #keyPath(): string[] {
    const keys: string[] = []
    for (;;) {
      this.#skipBlank(false)
      const quote = this.#text[this.#at]
      if (quote === '"' || quote === "'") {
        const raw = this.#string()
        keys.push(quote === '"' ? unescaped(raw) : raw.slice(1, -1))
      } else {
        const bare = /[A-Za-z0-9_-]*/y
        bare.lastIndex = this.#at
        const word = bare.exec(this.#text)?.[0] ?? ''
        this.#at += word.length
        keys.push(word)
      }
      this.#skipBlank(false)
      if (this.#text[this.#at] !== '.') return keys
      this.#at++
    }
  }

  #value(path: string[]): void {
    const first = this.#text[this.#at]
    if (first === '"' || first === "'") this.#string()
    else if (first === '[') this.#list(']', (index) => this.#element([...path, String(index)]))
    else if (first === '{') this.#list('}', () => this.#entry(path))
    else while (this.#at < this.#text.length && !',]}#\r\n'.includes(this.#text[this.#at])) this.#at++
  }

  #element(path: string[]): void {
    this.#note(path, this.#at)
    this.#value(path)
  }

  /** Scans an array or inline table: items between commas until `end`. */
  #list(end: string, item: (index: number) => void): void {
    this.#at++
    for (let index = 0; this.#at < this.#text.length;) {
      this.#skipBlank(true)
      if (this.#text[this.#at] === end) break
      if (this.#text[this.#at] === ',') this.#at++
      else item(index++)
    }
    this.#at++
  }

  /** Scans a string of any of the four kinds, and returns it with its quotes. */
  #string(): string {
    const start = this.#at
    const quote = this.#text[start]
    const long = this.#text.startsWith(quote.repeat(3), start)
    const end = long ? quote.repeat(3) : quote
    this.#at += end.length
    while (this.#at < this.#text.length && !this.#text.startsWith(end, this.#at))
      this.#at += quote === '"' && this.#text[this.#at] === '\\' ? 2 : 1
    this.#at += end.length
    // A multi-line string may have up to two quotes before its closing ones.
    if (long) while (this.#text[this.#at] === quote) this.#at++
    return this.#text.slice(start, this.#at)
  }

  #skipBlank(linesToo: boolean): void {
    while (this.#at < this.#text.length) {
      const c = this.#text[this.#at]
      if (c === ' ' || c === '\t' || (linesToo && (c === '\n' || c === '\r'))) this.#at++
      else if (linesToo && c === '#') while (this.#at < this.#text.length && this.#text[this.#at] !== '\n') this.#at++
      else return
    }
  }

  #note(path: string[], offset: number): void {
    const key = pathKey(path)
    if (this.positions.has(key)) return
    // Offsets only grow, so the text is searched for line ends once, however many keys it has.
    while (this.#lineEnd < offset) {
      this.#line++
      this.#lineStart = this.#lineEnd + 1
      this.#lineEnd = this.#nextLineEnd()
    }
    this.positions.set(key, { line: this.#line, column: offset - this.#lineStart + 1 })
  }
}

/** The text of a basic string. TOML has JSON's escapes and three more, and allows unescaped tabs. */
function unescaped(basic: string): string {
  const json = basic
    .replaceAll('\t', '\\t')
    .replace(
      /\\(?:U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(e)|[^])/g,
      (all: string, long?: string, short?: string, escape?: string) => {
        const code = long ?? short ?? (escape && '1b')
        return code === undefined ? all : JSON.stringify(String.fromCodePoint(parseInt(code, 16))).slice(1, -1)
      },
    )
  return JSON.parse(json) as string
}
