/** What can be asked of a constrained answer. */
import type { TokenConstraint } from '../../common/types.ts'

/**
 * What an answer must be. `json_object`: any JSON object. `json_schema`: JSON that a schema allows. `regex`: text that a regular expression
 * matches from end to end. `choice`: one of these texts. `grammar`: text of an EBNF grammar in GBNF's spelling, whose first rule is `root`.
 * A `loose` schema is held as far as a grammar can: what it cannot hold is passed over, not refused.
 */
export type GrammarFormat =
  | { type: 'json_object' }
  | { type: 'json_schema'; schema: unknown; loose?: boolean }
  | { type: 'regex'; pattern: string }
  | { type: 'choice'; choices: readonly string[] }
  | { type: 'grammar'; grammar: string }

export interface GrammarConstraint extends TokenConstraint {
  /** True when nothing but an end-of-sequence token may follow, or one was taken. */
  readonly complete: boolean
}

export interface ConstraintOptions {
  /** The field that errors name. Default 'response_format'. */
  field?: string
  /** Everything is allowed until this token was taken, which the format begins after: the `</think>` of a model that thinks first. */
  afterToken?: number
}

/** Grammars over one tokenizer's vocabulary. */
export interface Grammars {
  /** A constraint for one completion (n completions need n). Throws UserError, naming the field, for a format that cannot be held. */
  constraint(format: GrammarFormat, options?: ConstraintOptions): Promise<GrammarConstraint>
  /** Forgets all compiled grammars; constraints that were given out live on. */
  close(): void
}
