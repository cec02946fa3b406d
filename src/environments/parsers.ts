/** Parsers find the answer in an assistant's text, so that reward functions need not. Names as in verifiers. */

/** Gives the text as it is, trimmed, or what `extract` makes of it. */
export class Parser {
  readonly #extract: (text: string) => string
  constructor(extract: (text: string) => string = (text) => text) {
    this.#extract = extract
  }
  /** The part of `text` to judge; '' where there is none. */
  parse(text: string): string {
    return this.#extract(text).trim()
  }
  /** 1 where the text has the form that the parser expects, 0 where it has nothing of it. */
  format(_text: string): number {
    return 1
  }
}

/**
 * Reads what follows `</think>`. A text that never closed its thought has no answer ('') unless `required` is false. The opening tag
 * may be missing, because some chat templates put it into the prompt.
 */
export class ThinkParser extends Parser {
  readonly #required: boolean
  constructor(options: { extract?: (text: string) => string; required?: boolean } = {}) {
    super(options.extract)
    this.#required = options.required ?? true
  }
  override parse(text: string): string {
    const end = text.lastIndexOf('</think>')
    if (end < 0) return this.#required ? '' : super.parse(text)
    return super.parse(text.slice(end + '</think>'.length))
  }
  /** 1 for one thought, at the start, closed once, with an answer after it; else 0. */
  override format(text: string): number {
    const parts = text.split('</think>')
    if (parts.length === 1) return !this.#required && !text.includes('<think>') && text.trim() !== '' ? 1 : 0
    const opened = text.split('<think>').length - 1
    const openedRight = opened === 0 || (opened === 1 && text.trimStart().startsWith('<think>'))
    return parts.length === 2 && openedRight && parts[1].trim() !== '' ? 1 : 0
  }
}

/** Reads `<field>...</field>` tags. `new XMLParser(['reasoning', 'answer'])`; `parse` gives the answer field. */
export class XMLParser extends Parser {
  readonly fieldNames: readonly string[]
  readonly answerField: string
  /** `answerField`: 'answer' where the fields have one, else the last field. Throws for names that are no tag names. */
  constructor(fieldNames: readonly string[], options: { answerField?: string; extract?: (text: string) => string } = {}) {
    super(options.extract)
    for (const name of fieldNames) {
      if (!/^[A-Za-z_][\w-]*$/u.test(name)) throw new Error(`XMLParser: "${name}" is no tag name`)
    }
    this.fieldNames = fieldNames
    this.answerField = options.answerField ?? (fieldNames.includes('answer') ? 'answer' : (fieldNames.at(-1) ?? ''))
    if (!fieldNames.includes(this.answerField)) {
      throw new Error(`XMLParser: the answer field "${this.answerField}" is not one of its fields (${fieldNames.join(', ')})`)
    }
  }
  /** The last closed occurrence of each field, trimmed; null for a field that the text lacks. */
  fields(text: string): Record<string, string | null> {
    return Object.fromEntries(this.fieldNames.map((name) => [name, this.#occurrences(text, name).at(-1) ?? null]))
  }
  override parse(text: string): string {
    return super.parse(this.fields(text)[this.answerField] ?? '')
  }
  /** Half for the share of fields that occur exactly once, half for a text that is nothing but the fields in their order. */
  override format(text: string): number {
    const once = this.fieldNames.filter((name) => this.#occurrences(text, name).length === 1).length
    let rest = text.trim()
    for (const name of this.fieldNames) {
      const end = rest.indexOf(`</${name}>`)
      if (!rest.startsWith(`<${name}>`) || end < 0) return (0.5 * once) / this.fieldNames.length
      rest = rest.slice(end + name.length + 3).trim()
    }
    return (0.5 * once) / this.fieldNames.length + (rest === '' ? 0.5 : 0)
  }
  /** The text that `parse` would read back, for supervised examples. */
  render(fields: Record<string, string>): string {
    return this.fieldNames
      .filter((name) => name in fields)
      .map((name) => `<${name}>\n${fields[name]}\n</${name}>`)
      .join('\n')
  }
  #occurrences(text: string, name: string): string[] {
    // Split by the tags rather than match across them: a text full of opening tags stays linear to read.
    return text
      .split(`</${name}>`)
      .slice(0, -1)
      .flatMap((piece) => {
        const start = piece.lastIndexOf(`<${name}>`)
        return start < 0 ? [] : [piece.slice(start + name.length + 2).trim()]
      })
  }
}
