/** The worker thread of MathRubric. Parses and compares answers, which could take hours for a malicious answer. */
import { messageOf } from '../../common/errors.ts'
import { serve } from '../sandbox/serve.ts'
import { type CompareOptions, sameAnswer } from './compare.ts'
import type { MathVerdict } from './index.ts'
import { symbols } from './symbols.ts'

serve({
  same(gold: string, given: string, options: CompareOptions): MathVerdict {
    try {
      return { equal: sameAnswer(gold, given, symbols, options), undecided: null }
    } catch (error) {
      // compute-engine throws for numbers that JavaScript cannot hold. That is the answer's doing, and must not fail the rollout.
      return { equal: false, undecided: `it cannot be computed: ${messageOf(error)}` }
    }
  },
})
