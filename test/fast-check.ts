/** fast-check with the seed of the tests (seed.ts): the same inputs in CI, new ones elsewhere. */
import fc from 'fast-check'
import { seed } from './seed.ts'

fc.configureGlobal({ seed })

export default fc
