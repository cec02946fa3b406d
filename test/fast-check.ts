/** fast-check, with the tests' own seed (seed.ts): the same inputs in CI, fresh ones elsewhere. */
import fc from 'fast-check'
import { seed } from './seed.ts'

fc.configureGlobal({ seed })

export default fc
