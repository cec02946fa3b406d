/**
 * A real vLLM in the suite that our server passes: what it answers is what the fixture says. DAWN_RL_RECORD=1 writes the fixture anew.
 * Two servers: with adapters on, vLLM 0.32 ends at the first request for prompt_logprobs.
 */
import { afterAll } from 'vitest'
import { VllmHost } from '../../src/inference/vllm/host.ts'
import { openModel } from '../../src/model/files/open.ts'
import { testConformance, type ServerUnderTest } from '../inference/server/conformance.suite.ts'
import { writeFolders } from '../inference/server/conformance/folders.ts'
import { adapterRequests, reloading, requests } from '../inference/server/conformance/requests.ts'
import { launchOf, scratch, tiny, vllmIsThere } from './helpers.ts'

vllmIsThere()
delete process.env.VLLM_SERVER_DEV_MODE
const folder = scratch()
afterAll(() => folder.remove())
const record = process.env.DAWN_RL_RECORD === '1'

const files = await openModel(tiny)
const { config } = files
files.close()
const folders = await writeFolders(folder.path, config)

async function open(name: string, loraRank: number | undefined): Promise<ServerUnderTest> {
  const args = { enable_scale_out: true, stream_interval: 1, enable_auto_tool_choice: true, tool_call_parser: 'hermes' }
  const launch = launchOf(folder.path, name, {
    servedName: 'tiny',
    logprobsMode: 'raw_logprobs',
    maxSequences: 8,
    loraRank,
    args,
  })
  const host = new VllmHost({ where: { launch }, startupMs: 400_000, maxRestarts: 0, log: () => {} })
  await host.start()
  return { url: host.api.url, folders, close: () => host.close() }
}

testConformance('vLLM', () => open('plain', undefined), [...requests, ...reloading], { record })
testConformance('vLLM with adapters', () => open('adapters', 8), adapterRequests, { record })
