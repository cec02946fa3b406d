/**
 * Finds tool calls in text, character by character, so that the result does not depend on where the text is cut. White space beside calls is dropped
 * (between two calls, and before and after all of them); other text is content. Text that looked like a call but is none is content too.
 */
import type { AnswerDelta, AnswerStream } from '../types.ts'
import { CallReader, isSpace } from './call-reader.ts'
import { DeltaWriter } from './stream.ts'

/** A format of tool calls. */
export interface FinderRules {
  /** Tags around a call, which may be anywhere; undefined: a call begins with a brace at the beginning of a line. */
  tags?: { open: string; close: string }
  /** Text that a model may write before its calls; it is dropped if a call follows. */
  prefix?: string
  /** Whether calls may be in a list: [{...}, {...}]. */
  list?: boolean
  /** Characters that may separate calls. */
  separators?: string
  names?: ReadonlySet<string>
  /** Whether a call may omit its arguments. */
  bare: boolean
}

type State = 'text' | 'call' | 'after' | 'list'

export class CallFinder implements AnswerStream {
  readonly #rules: FinderRules
  readonly #out = new DeltaWriter()
  #state: State = 'text'
  #reader: CallReader | undefined
  /** White space (and separators after a call), which is dropped if a call follows and content otherwise. */
  #space = ''
  /** Held-back text: the beginning of a tag, of a prefix, or of what is expected after a call; or all of a call that may still be text. */
  #held = ''
  #lineStart = true
  #inList = false

  constructor(rules: FinderRules) {
    this.#rules = rules
  }

  push(text: string): AnswerDelta {
    for (const sign of text) this.#take(sign)
    return this.#out.take()
  }

  flush(): AnswerDelta {
    while (this.#state === 'call' && !this.#reader!.begun) this.#giveUp()
    if (this.#state === 'call') this.#space = ''
    if (this.#state === 'list') this.#text('[')
    this.#content(this.#held)
    this.#held = ''
    this.#state = 'text'
    return this.#out.take()
  }

  #take(sign: string): void {
    if (this.#state === 'call') this.#inCall(sign)
    else if (this.#state === 'after') this.#afterCall(sign)
    else if (this.#state === 'list') this.#inOpenList(sign)
    else this.#inText(sign)
  }

  /** Outputs text, preceded by the pending white space. */
  #content(text: string): void {
    if (text === '' && this.#out.count > 0) return
    this.#out.content(this.#space + text)
    this.#space = ''
  }

  #text(text: string): void {
    this.#content(text)
    this.#lineStart = false
  }

  #inText(sign: string): void {
    const { tags, prefix } = this.#rules
    const words = [tags?.open, this.#lineStart ? prefix : undefined].filter((word) => word !== undefined)
    const longer = this.#held + sign
    if (words.includes(longer)) {
      if (longer === prefix) {
        // Dropped if a call follows, content otherwise.
        this.#space += longer
        this.#held = ''
      } else this.#beginCall(longer)
      return
    }
    if (words.some((word) => word.startsWith(longer))) {
      this.#held = longer
      return
    }
    if (this.#held !== '') {
      const held = this.#held
      this.#held = ''
      this.#text(held)
    }
    if (isSpace(sign)) {
      this.#space += sign
      if (sign === '\n') this.#lineStart = true
    } else if (words.some((word) => word.startsWith(sign))) this.#held = sign
    else if (!tags && this.#lineStart && sign === '{') this.#beginCall('', sign)
    else if (!tags && this.#rules.list && this.#lineStart && sign === '[') {
      this.#state = 'list'
      this.#held = ''
    } else if (this.#lineStart && this.#out.count > 0 && this.#rules.separators?.includes(sign)) this.#space += sign
    else this.#text(sign)
  }

  #beginCall(opened: string, first = ''): void {
    this.#state = 'call'
    this.#held = opened
    const out = this.#out
    this.#reader = new CallReader({
      names: this.#rules.names,
      bare: this.#rules.bare,
      events: {
        begin: (name) => {
          this.#space = this.#held = ''
          out.begin(name)
        },
        arguments: (text) => out.arguments(text),
      },
    })
    if (first !== '') this.#inCall(first)
  }

  #inCall(sign: string): void {
    const begun = this.#reader!.begun
    if (!begun) this.#held += sign
    const step = this.#reader!.step(sign)
    if (step === 'more') return
    if (step === 'fail') {
      this.#giveUp()
      return
    }
    this.#held = ''
    this.#lineStart = true
    this.#state = this.#rules.tags || this.#inList ? 'after' : 'text'
    if (step === 'over') this.#take(sign)
  }

  /** What looked like a call is text: its first character becomes content, and the rest is read again. */
  #giveUp(): void {
    const text = this.#held
    const first = this.#inList && this.#state === 'call' && this.#out.count === 0 ? '[' : ''
    const { open = '' } = this.#rules.tags ?? {}
    const sure = this.#rules.tags ? open.length : 1
    this.#held = ''
    this.#reader = undefined
    this.#state = 'text'
    this.#inList = false
    this.#text(first + text.slice(0, sure))
    for (const sign of text.slice(sure)) this.#take(sign)
  }

  /** After a tagged call, expects its closing tag; in a list, a comma or the end. Anything else is text again. */
  #afterCall(sign: string): void {
    const { tags } = this.#rules
    if (tags) {
      const longer = this.#held + sign
      if (this.#held === '' && isSpace(sign)) {
        this.#space += sign
        return
      }
      if (tags.close.startsWith(longer)) {
        this.#held = longer
        if (longer !== tags.close) return
        this.#held = this.#space = ''
        this.#state = 'text'
        return
      }
    } else {
      if (isSpace(sign)) return void (this.#space += sign)
      if (sign === ',') {
        this.#space = ''
        this.#beginCall(sign)
        return
      }
      this.#inList = false
      if (sign === ']') {
        this.#space = ''
        this.#state = 'text'
        return
      }
    }
    const held = this.#held
    this.#held = ''
    this.#state = 'text'
    for (const again of held + sign) this.#take(again)
  }

  /** After the bracket of a list, a brace begins its first call. */
  #inOpenList(sign: string): void {
    if (isSpace(sign)) {
      this.#held += sign
      return
    }
    const held = this.#held
    this.#held = ''
    this.#state = 'text'
    if (sign === '{') {
      this.#inList = true
      this.#beginCall(held, sign)
    } else {
      this.#text(`[${held}`)
      this.#take(sign)
    }
  }
}
