/**
 * Reads one tool call, `{"name": ..., "arguments": {...}}`, character by character. Text becomes a call as soon as the name and the beginning of the
 * arguments are known. Until then it may turn out to be plain text. From then on it stays a call, and its arguments are passed on as they are
 * written, even if they turn out not to be valid JSON.
 */

/** The effect of a character: nothing yet, the text is not a call, the call ends with this character, or the call ended before it. */
export type Step = 'more' | 'fail' | 'done' | 'over'

interface CallEvents {
  /** Called once, before any arguments. */
  begin(name: string): void
  arguments(text: string): void
}

type State = 'open' | 'key-or-end' | 'key' | 'in-key' | 'colon' | 'value' | 'in-value' | 'comma-or-end'

const ARGUMENTS = new Set(['arguments', 'parameters'])
const KNOWN = new Set(['name', 'type', 'id', ...ARGUMENTS])
/** Maximum characters held back: of a name, and of arguments that come before it. */
const LONGEST_NAME = 256
const LONGEST_EARLY = 20_000
/** Whether a character is white space in JSON. */
export const isSpace = (sign: string): boolean => sign === ' ' || sign === '\n' || sign === '\t' || sign === '\r'

interface CallRules {
  events: CallEvents
  /** Allowed names; undefined allows any. */
  names?: ReadonlySet<string>
  /** Whether a call may omit its arguments, which are then `{}`. */
  bare: boolean
}

export class CallReader {
  readonly #rules: CallRules
  #state: State = 'open'
  /** Text of the key or value being read. */
  #text = ''
  #key = ''
  #name: string | undefined
  /** Arguments that came before the name. */
  #early: string | undefined
  #begun = false
  #ended = false
  #depth = 0
  #inString = false
  #escaped = false

  constructor(rules: CallRules) {
    this.#rules = rules
  }

  /** Whether the text is certain to be a call. */
  get begun(): boolean {
    return this.#begun
  }

  step(sign: string): Step {
    const step = this.#step(sign)
    if (step !== 'fail') return step
    return this.#begun ? 'over' : 'fail'
  }

  #step(sign: string): Step {
    if (this.#state === 'in-key') return this.#inKey(sign)
    if (this.#state === 'in-value') return this.#inValue(sign)
    if (isSpace(sign)) return 'more'
    switch (this.#state) {
      case 'open':
        this.#state = 'key-or-end'
        return sign === '{' ? 'more' : 'fail'
      case 'key-or-end':
      case 'key':
        if (sign !== '"') return 'fail'
        this.#state = 'in-key'
        this.#text = ''
        return 'more'
      case 'colon':
        this.#state = 'value'
        return sign === ':' ? 'more' : 'fail'
      case 'comma-or-end':
        if (sign === '}') return this.#end()
        this.#state = 'key'
        return sign === ',' ? 'more' : 'fail'
      default:
        return this.#firstOfValue(sign)
    }
  }

  #inKey(sign: string): Step {
    if (sign !== '"') {
      this.#text += sign
      return this.#text.length > 16 || sign === '\\' ? 'fail' : 'more'
    }
    this.#key = this.#text
    this.#state = 'colon'
    const twice = (this.#key === 'name' && this.#name !== undefined) || (ARGUMENTS.has(this.#key) && this.#ended)
    return KNOWN.has(this.#key) && !twice ? 'more' : 'fail'
  }

  #firstOfValue(sign: string): Step {
    const isArguments = ARGUMENTS.has(this.#key)
    if (isArguments ? sign !== '{' : sign !== '"') return 'fail'
    this.#state = 'in-value'
    this.#text = ''
    this.#depth = 0
    this.#inString = this.#escaped = false
    if (isArguments) {
      if (this.#name === undefined) this.#early = ''
      else this.#begin()
    }
    return this.#inValue(sign)
  }

  #inValue(sign: string): Step {
    const isArguments = ARGUMENTS.has(this.#key)
    if (isArguments && this.#begun) this.#rules.events.arguments(sign)
    else if (isArguments) this.#early! += sign
    else this.#text += sign
    if (this.#text.length > LONGEST_NAME || (!this.#begun && (this.#early?.length ?? 0) > LONGEST_EARLY)) return 'fail'
    if (this.#escaped) this.#escaped = false
    else if (this.#inString && sign === '\\') this.#escaped = true
    else if (sign === '"') this.#inString = !this.#inString
    else if (!this.#inString && (sign === '{' || sign === '[')) this.#depth++
    else if (!this.#inString && (sign === '}' || sign === ']')) this.#depth--
    if (this.#inString || this.#depth > 0) return 'more'
    this.#state = 'comma-or-end'
    if (isArguments) this.#ended = true
    if (this.#key === 'name') return this.#named()
    return 'more'
  }

  #named(): Step {
    try {
      this.#name = JSON.parse(this.#text) as string
    } catch {
      return 'fail'
    }
    if (this.#name === '' || (this.#rules.names && !this.#rules.names.has(this.#name))) return 'fail'
    if (this.#early === undefined) return 'more'
    this.#begin()
    this.#rules.events.arguments(this.#early)
    return 'more'
  }

  #begin(): void {
    this.#begun = true
    this.#rules.events.begin(this.#name!)
  }

  #end(): Step {
    if (!this.#begun) {
      if (this.#name === undefined || !this.#rules.bare) return 'fail'
      this.#begin()
      this.#rules.events.arguments('{}')
    }
    return 'done'
  }
}
