/** Our server in the suite that vLLM passes too (test/vllm/conformance.test.ts). */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { testConformance } from './conformance.suite.ts'
import { knownDifferences } from './conformance/known.ts'
import { openOurs } from './conformance/ours.ts'
import { adapterRequests, reloading, requests } from './conformance/requests.ts'

const root = mkdtempSync(join(tmpdir(), 'dawn-rl-conformance-'))
afterAll(() => rmSync(root, { recursive: true, force: true }))

testConformance('our server', () => openOurs(root), [...requests, ...adapterRequests, ...reloading], { known: knownDifferences })
