/** Parsers extract the answer from the assistant's text for reward functions. Names as in verifiers. */
import type { Message } from '../common/types.ts'
import type { RewardFunction } from './types.ts'

type Extract = (text: string) => string

/** Extracts the answer from a text: the whole text, or what `extract` returns for it, trimmed. */
export class Parser {
  readonly #extract: Extract
  constructor(extract: Extract = (text) => text) {
    this.#extract = extract
  }
  /** The part of `text` to judge, or '' if there is none. */
  parse(text: string): string {
    return this.#extract(text).trim()
  }
  /** Applies `parse` to a text, or to the last assistant message of a completion. Returns '' if there is no answer. */
  parseAnswer(completion: string | readonly Message[]): string {
    return this.parse(typeof completion === 'string' ? completion : (this.getAssistantMessages(completion).at(-1)?.content ?? ''))
  }
  getAssistantMessages(completion: readonly Message[]): Message[] {
    return completion.filter((message) => message.role === 'assistant')
  }
  /** How well `text` has the form that the parser expects, from 0 to 1. */
  format(_text: string): number {
    return 1
  }
  /** Makes a reward function: the mean of `format` over the assistant messages, or 0 if there are none. */
  getFormatRewardFunc(): RewardFunction {
    return ({ completion }) => {
      const scores = this.getAssistantMessages(completion).map((message) => this.format(message.content))
      return scores.length === 0 ? 0 : scores.reduce((sum, score) => sum + score, 0) / scores.length
    }
  }
}

/**
 * Reads what follows `</think>`. If the text never closes its thought, the answer is '', unless `required` is false. The opening tag may be missing,
 * as some chat templates put it into the prompt.
 */
export class ThinkParser extends Parser {
  readonly #required: boolean
  constructor(options: Extract | { extract?: Extract; required?: boolean } = {}) {
    super(typeof options === 'function' ? options : options.extract)
    this.#required = typeof options === 'function' ? true : (options.required ?? true)
  }
  override parse(text: string): string {
    const end = text.lastIndexOf('</think>')
    if (end < 0) return this.#required ? '' : super.parse(text)
    return super.parse(text.slice(end + '</think>'.length))
  }
  /** 1 if there is a single thought, at the start, closed once, with an answer after it; else 0. */
  override format(text: string): number {
    const parts = text.split('</think>')
    if (parts.length === 1) return !this.#required && !text.includes('<think>') && text.trim() !== '' ? 1 : 0
    const opened = text.split('<think>').length - 1
    const openedRight = opened === 0 || (opened === 1 && text.trimStart().startsWith('<think>'))
    return parts.length === 2 && openedRight && parts[1].trim() !== '' ? 1 : 0
  }
}

/** ThinkParser for models that do not always think: a text without `</think>` is taken as the answer. */
export class MaybeThinkParser extends ThinkParser {
  constructor(extract?: Extract) {
    super({ extract, required: false })
  }
}

/** A field's tag, or several tags with the same meaning, of which the first is the field's name. */
export type XMLField = string | readonly [string, ...string[]]

/**
 * Reads `<field>...</field>` tags. `parse` returns the answer field. In `['reasoning', ['code', 'answer']]`, `<answer>` is another name of `<code>`.
 *
 *     const parser = new XMLParser(['reasoning', 'answer'])
 *     new Rubric({ correct, form: { reward: parser.getFormatRewardFunc(), weight: 0.2 } }, { parser })
 */
export class XMLParser extends Parser {
  /** Names of the fields (their first tags). */
  readonly fieldNames: readonly string[]
  readonly answerField: string
  readonly #tags: readonly (readonly string[])[]

  /** `answerField`: default 'answer' if a field has that tag, else the last field. Throws for invalid tags, and for a tag that two fields share. */
  constructor(fields: readonly XMLField[], options: { answerField?: string; extract?: Extract } = {}) {
    super(options.extract)
    this.#tags = fields.map((field) => (typeof field === 'string' ? [field] : field))
    const all = this.#tags.flat()
    for (const tag of all) {
      if (!/^[A-Za-z_][\w-]*$/u.test(tag)) throw new Error(`XMLParser: "${tag}" is not a valid tag name`)
      if (all.indexOf(tag) !== all.lastIndexOf(tag)) throw new Error(`XMLParser: the tag "${tag}" is named twice`)
    }
    this.fieldNames = this.#tags.map(([name]) => name)
    const wanted = options.answerField ?? (all.includes('answer') ? 'answer' : (this.fieldNames.at(-1) ?? ''))
    const found = this.#tags.find((tags) => tags.includes(wanted))
    if (!found)
      throw new Error(`XMLParser: the answer field "${wanted}" is not one of its fields (${this.fieldNames.join(', ')})`)
    this.answerField = found[0]
  }

  /** The fields in order, each with all of its tags. */
  getFields(): string[][] {
    return this.#tags.map((tags) => [...tags])
  }

  /** The content of the last closed occurrence of each field, trimmed; null for a field that is not in the text. */
  fields(text: string): Record<string, string | null> {
    return Object.fromEntries(this.#tags.map((tags) => [tags[0], occurrences(text, tags).at(-1)?.inner ?? null]))
  }
  override parse(text: string): string {
    return super.parse(this.fields(text)[this.answerField] ?? '')
  }

  /** Half of the score is the fraction of fields that occur exactly once, the other half is given if the text consists of the fields in order. */
  override format(text: string): number {
    const once = this.#tags.filter((tags) => occurrences(text, tags).length === 1).length
    const share = (0.5 * once) / this.#tags.length
    let rest = text.trim()
    for (const tags of this.#tags) {
      const tag = tags.find((name) => rest.startsWith(`<${name}>`))
      const end = tag === undefined ? -1 : rest.indexOf(`</${tag}>`)
      if (tag === undefined || end < 0) return share
      rest = rest.slice(end + tag.length + 3).trim()
    }
    return share + (rest === '' ? 0.5 : 0)
  }

  /** The expected form, for a system prompt: `<reasoning>\n...\n</reasoning>`. Alternative tags are shown side by side. */
  getFormatStr(): string {
    return this.#tags
      .map(
        (tags) =>
          `<${tags.join(' | ')}>\n${tags.length > 1 ? `(one of: ${tags.map((tag) => `<${tag}>`).join(', ')})\n` : ''}...\n</${tags.join(' | ')}>`,
      )
      .join('\n')
  }

  /** Writes a text that `parse` reads back, for supervised examples. A field may be given by any of its tags. Throws for an unknown field. */
  render(fields: Record<string, string>): string {
    const unknown = Object.keys(fields).find((name) => !this.#tags.flat().includes(name))
    if (unknown !== undefined) throw new Error(`XMLParser: "${unknown}" is not one of its fields (${this.fieldNames.join(', ')})`)
    return this.#tags
      .flatMap((tags) => tags.find((tag) => tag in fields) ?? [])
      .map((tag) => `<${tag}>\n${fields[tag]}\n</${tag}>`)
      .join('\n')
  }
}

/** Finds all closed occurrences of tags, ordered by where they end. */
function occurrences(text: string, tags: readonly string[]): { inner: string; end: number }[] {
  // Splits at the tags instead of matching across them, so that a text full of opening tags takes linear time.
  return tags
    .flatMap((tag) => {
      let end = 0
      return text
        .split(`</${tag}>`)
        .slice(0, -1)
        .flatMap((piece) => {
          end += piece.length + tag.length + 3
          const start = piece.lastIndexOf(`<${tag}>`)
          return start < 0 ? [] : [{ inner: piece.slice(start + tag.length + 2).trim(), end }]
        })
    })
    .toSorted((a, b) => a.end - b.end)
}
