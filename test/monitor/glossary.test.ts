import { expect, test } from 'vitest'
import { metricsGlossary } from '../../src/monitor/glossary.ts'

test('docs/metrics.md is what the table of metrics says (npx vitest run test/monitor/glossary.test.ts -u makes it again)', async () => {
  await expect(metricsGlossary()).toMatchFileSnapshot('../../docs/metrics.md')
})
