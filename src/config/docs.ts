/** Writes docs/config.md from the schema: `node src/config/docs.ts`. A test fails if the file is out of date. */
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { configReference } from './describe.ts'

const file = fileURLToPath(new URL('../../docs/config.md', import.meta.url))
writeFileSync(file, configReference())
console.log(`wrote ${file}`)
