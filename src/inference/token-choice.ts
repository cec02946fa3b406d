/** Which tokens a request allows: its mask (allowed_token_ids, a constraint, min_tokens) and its biases. Host only. */
import { UserError } from '../common/errors.ts'
import type { GenerationRequest, TokenConstraint } from '../common/types.ts'

export class TokenChoice {
  /** Added to logits, by token. */
  readonly bias: ReadonlyMap<number, number>
  readonly constraint: TokenConstraint | undefined
  readonly #vocabulary: number
  readonly #minTokens: number
  /** Tokens that end a completion. */
  readonly #ends: readonly number[]
  readonly #allowed: Uint32Array | undefined
  /** Mask of the tokens that may come next, and the same before min_tokens is reached; undefined if all may. */
  #mask: Uint32Array | undefined
  #early: Uint32Array | undefined

  /** @throws whatever the constraint throws, and a UserError if it allows no token */
  constructor({ sampling, constraint }: GenerationRequest, eosTokenIds: Iterable<number>, vocabulary: number) {
    const { logit_bias = {}, allowed_token_ids, min_tokens = 0, stop_token_ids } = sampling
    this.bias = new Map(Object.entries(logit_bias).map(([id, value]) => [Number(id), value]))
    this.constraint = constraint
    this.#vocabulary = vocabulary
    this.#minTokens = min_tokens
    this.#ends = [...eosTokenIds, ...stop_token_ids]
    if (allowed_token_ids) {
      this.#allowed = new Uint32Array(Math.ceil(vocabulary / 32))
      for (const id of allowed_token_ids) this.#allowed[id >> 5] |= 1 << (id & 31)
    }
    this.#look()
  }

  /** Bit b of word w says whether token 32 w + b may be the next one, after `drawn` tokens. Undefined if all tokens may. */
  mask(drawn: number): Uint32Array | undefined {
    return drawn < this.#minTokens ? this.#early : this.#mask
  }

  /** Takes a token, when another one will be drawn after it. @throws as the constructor */
  accept(token: number): void {
    if (!this.constraint) return
    this.constraint.accept(token)
    this.#look()
  }

  #look(): void {
    if (this.constraint) {
      this.#mask = this.#everything()
      const mask = new Uint32Array(this.#mask.length)
      this.constraint.fill(mask)
      // Bits beyond the vocabulary are undefined in a constraint's mask.
      mask.forEach((word, w) => (this.#mask![w] &= word & (this.#allowed?.[w] ?? 0xffffffff)))
      if (this.#mask.every((word) => word === 0)) {
        throw new UserError(
          `the constraint allows no ${this.#allowed ? 'token of allowed_token_ids' : 'token'} that could come next`,
        )
      }
    } else {
      this.#mask = this.#allowed
    }
    if (this.#minTokens === 0) return
    this.#early = this.#mask ? this.#mask.slice() : this.#everything()
    for (const id of this.#ends) this.#early[id >> 5] &= ~(1 << (id & 31))
    // If only end tokens are left (the grammar is complete), they are allowed even before min_tokens.
    if (this.#early.every((word) => word === 0)) this.#early = this.#mask
  }

  #everything(): Uint32Array {
    const mask = new Uint32Array(Math.ceil(this.#vocabulary / 32)).fill(0xffffffff)
    const rest = this.#vocabulary % 32
    if (rest > 0) mask[mask.length - 1] = 2 ** rest - 1
    return mask
  }
}
