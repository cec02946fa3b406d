/** Splits an answer into thoughts (<think>...</think>) and content. Both keep their white space. */
import { mayBegin } from '../detokenizer.ts'
import type { ReasoningDelta } from './types.ts'

const START = '<think>'
const END = '</think>'
/** The tags around thoughts. */
export const thoughtMarks: readonly string[] = [START, END]

/** State of the answer's thoughts at the end of the prompt: the model may begin them, the template has begun them, or they have ended. */
export type Thinking = 'to come' | 'begun' | 'ended'

/**
 * The state of the answer's thoughts at the end of a prompt. Only the prompt's end counts, since a user may have written a <think>.
 * @param begun if an answer is continued, the part of it that the prompt ends with
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

/** How much of a whole answer are thoughts, with their tags; 0 if it has none, or they never end. */
export function thoughtsLength(answer: string, prompt: string): number {
  if (thinkingAt(prompt) !== 'begun' && !answer.trimStart().startsWith(START)) return 0
  const at = answer.indexOf(END)
  return at < 0 ? 0 : at + END.length
}

/** Whether a chat template handles thoughts. */
export const templateThinks = (chatTemplate: string | null): boolean => chatTemplate?.includes(END) ?? false

/** Splits text as it arrives. The deltas together do not depend on where the text is cut. If the thoughts do not end, there is no content. */
export class ReasoningStream {
  /** 'before': only white space so far; the start tag may follow. */
  #state: 'before' | 'thoughts' | 'content' = 'before'
  readonly #open: boolean
  #held = ''

  /** @param open whether the prompt ends inside an open <think>, so that the answer begins with thoughts */
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

  /** Drops the start tag, even if the prompt has already opened the thoughts. */
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
