/** The worker thread of MathRubric. Parses and compares answers, which could take hours for a malicious answer. */
import { serve } from '../sandbox/serve.ts'
import { type CompareOptions, sameAnswer } from './compare.ts'
import { symbols } from './symbols.ts'

serve({
  same: (gold: string, given: string, options: CompareOptions) => sameAnswer(gold, given, symbols, options),
})
