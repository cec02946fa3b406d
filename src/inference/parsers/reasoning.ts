/** Splits what a model thinks, <think>...</think>, from what it answers. The words in between are kept as they are, spaces too. */
import { mayBegin } from '../detokenizer.ts'
import type { ReasoningDelta } from './types.ts'

const START = '<think>'
const END = '</think>'
export const thoughtMarks: readonly string[] = [START, END]

/** Where the thoughts of an answer stand when it is gone on with: a template may begin them, or leave that to the model. */
export type Thinking = 'to come' | 'begun' | 'ended'

/**
 * What a prompt leaves to an answer. A <think> that a user wrote says nothing: only what the prompt ends with does, and `begun`, the text
 * of the answer that it ends with where that is gone on with.
 */
export function thinkingAt(prompt: string, begun = ''): Thinking {
  const own = begun.trim()
  const [open, close] = [own.lastIndexOf(START), own.lastIndexOf(END)]
  if (open !== close) return open > close ? 'begun' : 'ended'
  const whole = prompt.trimEnd()
  const before = whole.slice(0, whole.length - own.length).trimEnd()
  if (before.endsWith(START)) return 'begun'
  return own !== '' || before.endsWith(END) ? 'ended' : 'to come'
}

/** Whether a chat template knows of thoughts. */
export const templateThinks = (chatTemplate: string | null): boolean => chatTemplate?.includes(END) ?? false

/** The text as it comes. The deltas together are the same however it is cut; thoughts that do not end are all there is. */
export class ReasoningStream {
  /** 'before': no text yet but white space; the start tag may come. */
  #state: 'before' | 'thoughts' | 'content' = 'before'
  readonly #open: boolean
  #held = ''

  /** @param open the prompt ends inside of an open <think>: the answer begins with thoughts */
  constructor(open: boolean) {
    this.#open = open
  }

  push(text: string): ReasoningDelta {
    this.#held += text
    const delta: ReasoningDelta = {}
    if (this.#state === 'before') this.#begin()
    if (this.#state === 'thoughts') this.#think(delta)
    if (this.#state === 'content' && this.#held !== '') {
      delta.content = this.#held
      this.#held = ''
    }
    return delta
  }

  flush(): ReasoningDelta {
    const held = this.#held
    this.#held = ''
    if (held === '') return {}
    const thoughts = this.#state === 'thoughts' || (this.#state === 'before' && this.#open)
    return thoughts ? { reasoning: held } : { content: held }
  }

  /** The start tag is dropped, also where the prompt has opened the thoughts already. */
  #begin(): void {
    const begun = this.#held.trimStart()
    if (begun.startsWith(START)) {
      this.#held = begun.slice(START.length)
      this.#state = 'thoughts'
    } else if (!START.startsWith(begun)) this.#state = this.#open ? 'thoughts' : 'content'
  }

  #think(delta: ReasoningDelta): void {
    const at = this.#held.indexOf(END)
    const length = at >= 0 ? at : this.#held.length - mayBegin(this.#held, [END])
    if (length > 0) delta.reasoning = this.#held.slice(0, length)
    this.#held = this.#held.slice(at >= 0 ? at + END.length : length)
    if (at >= 0) this.#state = 'content'
  }
}
