/**
 * One suite for two servers: the same requests (conformance/requests.ts), whose answers are held against what vLLM 0.32 answers, kept in a
 * fixture. vLLM's own run proves that the fixture is what it says; ours may differ where a table names the place and the reason.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { askAll, differences, type Answer, type Difference, type Folders } from './conformance/answers.ts'
import type { KnownDifference } from './conformance/known.ts'
import type { Exchange } from './conformance/requests.ts'

const fixture = join(import.meta.dirname, '../../fixtures/vllm-answers.json')
/** Of log-probabilities: other orders of summation, in float32. */
const BOUND = 1e-4

export interface ServerUnderTest {
  url: string
  folders: Folders
  close?(): Promise<void>
}

/**
 * @param exchanges what is asked, in this order
 * @param known where its answers may differ from the fixture, and do
 * @param record the fixture gets these answers first (of vLLM)
 */
export function testConformance(
  name: string,
  open: () => Promise<ServerUnderTest>,
  exchanges: readonly Exchange[],
  { known = [], record = false }: { known?: readonly KnownDifference[]; record?: boolean } = {},
): void {
  describe(`conformance: ${name}`, () => {
    let server: ServerUnderTest
    let answers: Record<string, Answer>
    let expected: Record<string, Answer>
    beforeAll(async () => {
      server = await open()
      answers = await askAll(server.url, exchanges, server.folders)
      const kept = JSON.parse(readFileSync(fixture, 'utf8')) as Record<string, Answer>
      if (record) writeFileSync(fixture, linesOf(Object.assign(kept, answers)))
      expected = kept
    })
    afterAll(async () => {
      await server?.close?.()
    })

    const isKnown = (found: Difference) => known.find((one) => one.of.test(found.name) && one.path.test(found.path))

    it.each(exchanges.map((exchange) => exchange.name))('%s', (exchange) => {
      const found = differences(exchange, answers[exchange], expected[exchange], BOUND)
      expect(found.filter((one) => !isKnown(one)), JSON.stringify({ here: answers[exchange], there: expected[exchange] }, null, 1)).toEqual([]) // prettier-ignore
    })

    if (known.length > 0) {
      it('every difference that is listed is there', () => {
        const found = exchanges.flatMap((exchange) =>
          differences(exchange.name, answers[exchange.name], expected[exchange.name], BOUND),
        )
        const matched = new Set(found.map(isKnown))
        expect(known.filter((one) => !matched.has(one)).map(({ of, path }) => `${of} ${path}`)).toEqual([])
      })
    }
  })
}

/** JSON, an answer a line. */
const linesOf = (answers: Record<string, Answer>): string =>
  `{\n${Object.entries(answers)
    .map(([name, answer]) => `${JSON.stringify(name)}: ${JSON.stringify(answer)}`)
    .join(',\n')}\n}\n`
