/** The thread's side of MathRubric: reading and comparing answers, which a hostile one could keep busy for hours. */
import { serve } from '../sandbox/serve.ts'
import { type CompareOptions, sameAnswer } from './compare.ts'
import { symbols } from './symbols.ts'

serve({
  same: (gold: string, given: string, options: CompareOptions) => sameAnswer(gold, given, symbols, options),
})
