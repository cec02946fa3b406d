/** The worker thread of MathRubric: parses and compares answers, which can take hours for a malicious one. */
import { serve } from '../sandbox/serve.ts'
import { type CompareOptions, sameAnswer } from './compare.ts'
import { symbols } from './symbols.ts'

serve({
  same: (gold: string, given: string, options: CompareOptions) => sameAnswer(gold, given, symbols, options),
})
