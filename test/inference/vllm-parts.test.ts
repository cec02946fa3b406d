/** Parts of the vLLM client that need no server. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, it } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import type { GenerationResult } from '../../src/common/types.ts'
import { loraRankFlag } from '../../src/common/vllm-ranks.ts'
import { serverFlags, vllmFlags } from '../../src/inference/vllm/flags.ts'
import { VllmHost } from '../../src/inference/vllm/host.ts'
import { distance, probePositions, staleBecause } from '../../src/inference/vllm/probe.ts'
import { checkServed, COMPLETIONS, GENERATE, requestBody, takeStream, tellsLogprob } from '../../src/inference/vllm/requests.ts'
import { VllmError } from '../../src/inference/vllm/api.ts'
import { VllmServer } from '../../src/inference/vllm/server.ts'
import { Sequence } from '../../src/inference/sequence.ts'
import { becomes, pauseMs, withRetries } from '../../src/inference/vllm/wait.ts'
import { sampling } from './helpers.ts'

describe('flags', () => {
  it('are vLLM words of a table', () => {
    const args = { gpu_memory_utilization: 0.5, enforce_eager: true, 'enable-prefix-caching': false, lora_modules: ['a=b', 'c=d'], hf_overrides: { x: 1 } } // prettier-ignore
    expect(vllmFlags(args)).toEqual([
      '--gpu-memory-utilization', '0.5', '--enforce-eager', '--no-enable-prefix-caching', '--lora-modules', 'a=b', 'c=d', '--hf-overrides', '{"x":1}',
    ]) // prettier-ignore
  })
  it('round the rank up to one that vLLM has', () => {
    expect([1, 2, 8, 9, 300, 512, 513].map(loraRankFlag)).toEqual([1, 8, 8, 16, 320, 512, undefined])
  })
  it('leave the last word to the user', () => {
    const needs = {
      model: 'm',
      servedName: 'base',
      maxLength: 64,
      maxSequences: 4,
      maxAsyncLevel: 2,
      logprobsMode: 'raw_logprobs',
    } as const
    const flags = serverFlags({ ...needs, loraRank: 12, args: { max_model_len: 128 } }, 8000).join(' ')
    expect(flags).toContain('--max-lora-rank 16 --max-loras 3')
    expect(flags.lastIndexOf('--max-model-len 128')).toBeGreaterThan(flags.indexOf('--max-model-len 64'))
    expect(serverFlags({ ...needs, args: {} }, 8000).join(' ')).toMatch(/^(?!.*lora).*--enable-scale-out/)
  })
})

describe('requests', () => {
  it('say every value that shapes sampling, in both forms', () => {
    const request = { promptIds: [1, 2], sampling: sampling({ top_k: -1, stop_token_ids: [7, 9], seed: 5 }) }
    const route = { model: 'run-v000003', salt: 's', eosTokenIds: [9] }
    const wanted = {
      temperature: 0.8, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0, seed: 5, n: 1,
      max_tokens: 12, min_tokens: 0, stop: [], stop_token_ids: [9, 7], ignore_eos: true, skip_special_tokens: false, logprobs: 0,
    } // prettier-ignore
    const completion = requestBody(request, { ...route, path: COMPLETIONS })
    expect(completion).toMatchObject({ ...wanted, model: 'run-v000003', cache_salt: 's', prompt: [1, 2], return_token_ids: true })
    const generate = requestBody(request, { ...route, path: GENERATE })
    expect(generate).toMatchObject({ model: 'run-v000003', cache_salt: 's', token_ids: [1, 2], sampling_params: wanted })
  })
  it('say which tokens may be drawn and which end an answer, and are refused where they want what a server is not asked for', () => {
    const choice = { min_tokens: 3, logit_bias: { 4: -2.5 }, allowed_token_ids: [4, 7] }
    const request = { promptIds: [1, 2], sampling: sampling({ ...choice, stop_token_ids: [7], ignore_eos: true }) }
    const route = { model: 'm', salt: 's', eosTokenIds: [9] }
    const wanted = { ...choice, stop_token_ids: [7] }
    expect(requestBody(request, { ...route, path: COMPLETIONS })).toMatchObject(wanted)
    expect(requestBody(request, { ...route, path: GENERATE })).toMatchObject({ sampling_params: wanted })
    expect(() => checkServed({ ...request, logprobs: { mode: 'policy' } })).not.toThrow()
    const constraint = { fill: () => {}, accept: () => {} }
    const refused = [{ adapter: null }, { constraint }, { logprobs: { mode: 'raw' } }, { logprobs: { top: 0 } }, { logprobs: { prompt: 0 } }] as const // prettier-ignore
    const words = ['an adapter', 'a constraint', 'logprobs.mode', 'logprobs.top', 'logprobs.prompt']
    refused.forEach((fields, i) => {
      const check = () => checkServed({ ...request, ...fields })
      expect(check).toThrow(UserError)
      expect(check).toThrow(`The request has ${words[i]}, which is not supported with vLLM.`)
    })
  })
  it.each([
    [{}, true, false],
    [{ temperature: 1 }, true, true],
    [{ temperature: 0, top_k: 5 }, true, true],
    [{ temperature: 1, top_p: 0.9 }, false, true],
    [{ temperature: 0.8, min_p: 0.1 }, false, false],
    [{ temperature: 1, presence_penalty: 0.5 }, false, true],
    [{ temperature: 1, logit_bias: { 3: 1 } }, false, true],
    [{ temperature: 1, logit_bias: {} }, true, true],
    [{ temperature: 0, allowed_token_ids: [3] }, false, true],
    [{ temperature: 1, min_tokens: 6 }, false, true],
    [{ temperature: 1, min_tokens: 5 }, true, true],
  ])('with %j the log-probability of token 5 is known in processed mode: %s, in raw mode: %s', (changes, processed, raw) => {
    expect(tellsLogprob(sampling(changes), 'processed_logprobs', 5)).toBe(processed)
    expect(tellsLogprob(sampling(changes), 'raw_logprobs', 5)).toBe(raw)
  })
})

describe('a streamed answer', () => {
  const took = async (id: number, logprob: number, finish_reason = 'length'): Promise<number[]> => {
    const answer = Promise.withResolvers<GenerationResult>()
    const rules = { eosTokenIds: new Set<number>(), decode: () => '' }
    const sequence = new Sequence({ promptIds: [1], sampling: sampling() }, rules, { ...answer, abort: () => {} })
    const chunk = {
      choices: [{ token_ids: [3, id], logprobs: { token_logprobs: [-1, logprob] }, finish_reason }],
    }
    const chunks = async function* () {
      yield chunk
    }
    await takeStream(chunks(), sequence, { version: () => 0, vocabulary: 260, known: () => true })
    return (await answer.promise).ids
  }
  it('is of tokens that the model has, with numbers that are log-probabilities', async () => {
    expect(await took(259, 1e-7)).toEqual([3, 259])
    for (const id of [260, -1, 1.5])
      await expect(took(id, -1)).rejects.toThrow(`vLLM sent token ${id}, but the model only has tokens 0 to 259`)
    for (const logprob of [0.5, NaN]) await expect(took(3, logprob)).rejects.toThrow(`token 3 the log-probability ${logprob}`)
  })
  it('that an error inside of vLLM ended is no answer', async () => {
    expect(await took(5, -1, 'stop')).toEqual([3, 5])
    await expect(took(5, -1, 'error')).rejects.toThrow('vLLM ended the request with the reason "error"')
    await expect(took(5, -1, 'abort')).rejects.toThrow('vLLM aborted the request')
  })
})

describe('a server at base_url that does not answer', () => {
  const start = async (url: string) => {
    await new VllmHost({ where: { url }, startupMs: 1, maxRestarts: 0, log: () => {} }).start()
  }
  it('is told with what was wrong, if it is not just that nobody listens there', async () => {
    const nobody = 'http://127.0.0.1:9'
    await expect(start(nobody)).rejects.toThrow(`No vLLM server answers at ${nobody}/health. Start one there`)
    const impossible = 'http://me:secret@127.0.0.1:9'
    await expect(start(impossible)).rejects.toThrow(/\/health \(.*includes credentials.*\)\. Start one there/)
    const refusing = createServer((_, answer) => answer.writeHead(403).end('{"message": "not from here"}')).listen(0, '127.0.0.1')
    await once(refusing, 'listening')
    const url = `http://127.0.0.1:${(refusing.address() as AddressInfo).port}`
    await expect(start(url)).rejects.toThrow(/\/health \(.* answered 403: .*\)\. Start one there/)
    refusing.close()
  })
})

describe('the probe', () => {
  it('scores at most eight positions, the last among them', () => {
    expect(probePositions(2)).toEqual([1])
    expect(probePositions(5)).toEqual([1, 2, 3, 4])
    expect(probePositions(49)).toEqual([6, 12, 18, 24, 30, 36, 42, 48])
    expect(distance([1, 2], [1.5, 1])).toBe(0.75)
    expect(distance([1], [NaN])).toBeNaN()
  })
  // Figures of vLLM 0.32 on a CPU: what a push was measured as when it arrived, when only the tied output head stayed, and when nothing came.
  it.each([
    ['a push that arrived', { error: 3.3e-7, moved: 0.47, stale: 0.47 }, 1e-5, undefined],
    ['a step too small to see', { error: 1e-5, moved: 2e-5, stale: 2.1e-5 }, 1e-5, undefined],
    ['bfloat16, and a small step', { error: 0.022, moved: 0.004, stale: 0.02 }, 0.02, undefined],
    ['bfloat16, and a large step', { error: 0.03, moved: 0.5, stale: 0.48 }, 0.02, undefined],
    [
      'old weights',
      { error: 0.05, moved: 0.05, stale: 4e-7 },
      1e-5,
      /0\.050 from the new ones and only 4\.0e-7 from the old ones/,
    ],
    ['an old head', { error: 0.078, moved: 0.47, stale: 0.44 }, 1e-5, /some of the weights are still the old ones/],
    ['another model', { error: 3, moved: 0.1, stale: 3 }, 1e-5, /off by 3\.0 nats per token/],
    ['no number', { error: NaN, moved: 0.1, stale: NaN }, 1e-5, /off by NaN/],
  ])('of %s', (_, probe, noise, words) => {
    const why = staleBecause(probe, noise)
    if (words) expect(why).toMatch(words)
    else expect(why).toBeUndefined()
  })
})

describe('a server', () => {
  it('is not started on Windows', async () => {
    const here = Object.getOwnPropertyDescriptor(process, 'platform')!
    Object.defineProperty(process, 'platform', { ...here, value: 'win32' })
    try {
      await expect(VllmServer.launch({ python: 'python' } as never)).rejects.toThrow('vLLM does not run on Windows')
    } finally {
      Object.defineProperty(process, 'platform', here)
    }
  })
})

describe('waiting', () => {
  it('pauses longer each time, up to a limit', () => {
    expect([0, 1, 2, 3, 4, 5, 9].map(pauseMs)).toEqual([250, 500, 1000, 2000, 4000, 5000, 5000])
  })
  it('repeats what may pass, and nothing else', async () => {
    let tries = 0
    const passing = async () => {
      if (++tries < 3) throw new VllmError('busy', 503)
      return tries
    }
    expect(await withRetries(passing, 10_000)).toBe(3)
    const wrong = async () => {
      tries++
      throw new VllmError('wrong', 400)
    }
    await expect(withRetries(wrong, 10_000)).rejects.toThrow('wrong')
    expect(tries).toBe(4)
    const never = async () => {
      throw new VllmError('nobody')
    }
    await expect(withRetries(never, 300)).rejects.toThrow('nobody')
  })
  it('ends when what it waits for can not come any more', async () => {
    let alive = true
    setTimeout(() => (alive = false), 50)
    expect(await becomes(async () => false, 60_000, () => alive)).toBe(false) // prettier-ignore
    expect(await becomes(async () => true, 1)).toBe(true)
  })
})
