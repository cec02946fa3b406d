/** Types for constrained answers. */
import type { TokenConstraint } from '../../common/types.ts'

/**
 * What an answer must be. `json_object`: any JSON object. `json_schema`: JSON that satisfies a schema. `regex`: text that a regular expression
 * matches as a whole. `choice`: one of these texts. `grammar`: text of an EBNF grammar in GBNF's syntax, whose start rule is `root`. A `loose` schema
 * is enforced as far as a grammar can, and the rest is ignored, not refused.
 */
export type GrammarFormat =
  | { type: 'json_object' }
  | { type: 'json_schema'; schema: unknown; loose?: boolean }
  | { type: 'regex'; pattern: string }
  | { type: 'choice'; choices: readonly string[] }
  | { type: 'grammar'; grammar: string }

/** The constraint of one completion. */
export interface GrammarConstraint extends TokenConstraint {
  /** Whether only an end-of-sequence token may follow, or one was already taken. */
  readonly complete: boolean
}

export interface ConstraintOptions {
  /** The field that errors name; default 'response_format'. */
  field?: string
  /** Everything is allowed until this token has been taken; the format begins after it. For example the `</think>` of a model that thinks first. */
  afterToken?: number
}

/** Grammars over one tokenizer's vocabulary. */
export interface Grammars {
  /**
   * A constraint for one completion (n completions need n).
   * @throws UserError naming the field, for a format that cannot be enforced
   */
  constraint(format: GrammarFormat, options?: ConstraintOptions): Promise<GrammarConstraint>
  /** Drops all compiled grammars; constraints that were given out stay valid. */
  close(): void
}
