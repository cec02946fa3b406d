/** A training run that serves: other clients sample from the policy as it learns, and can't stop it. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import OpenAI from 'openai'
import { beforeAll, expect, test } from 'vitest'
import { TinyRuns } from './tiny-run.ts'

const runs = new TinyRuns()
beforeAll(() => runs.prepare())

interface Generated {
  choices: { logprobs: { content: { logprob: number }[] }; weight_versions: { version: string }[] }[]
}

test('the policy is served while it learns, with the version of each token, beside the model without its adapter', async () => {
  const words = ['max_steps=6', 'learning_rate=0.05', 'max_async_level=0']
  const { child, outcome } = runs.start([...words, 'run_name=open', '--inference.serve', 'true', '--inference.serve_port', '0'])
  const ended = outcome.then(() => true)
  let text = ''
  child.stdout!.on('data', (piece: Buffer) => (text += piece.toString()))
  let line: RegExpExecArray | null = null
  while (!(line = /serving {2}(.+) at (http\S+)\/v1\n/.exec(text))) {
    if (await Promise.race([ended, new Promise<false>((resolve) => setTimeout(() => resolve(false), 20))]))
      throw new Error((await outcome).stderr)
  }
  const [, names, url] = line
  expect(names).toBe('policy, open, tiny')
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0, logLevel: 'off' })
  const post = (path: string, body: object) => client.post<Generated>(`${url}${path}`, { body })
  const seen = { policy: new Map<string, number>(), tiny: new Map<string, number>() }
  try {
    while (!(await Promise.race([ended, Promise.resolve(false)]))) {
      for (const model of ['policy', 'tiny'] as const) {
        const { choices } = await post('/inference/v1/generate', {
          model,
          token_ids: [72, 105],
          sampling_params: { max_tokens: 1, temperature: 0, logprobs: 0 },
        })
        seen[model].set(choices[0].weight_versions[0].version, choices[0].logprobs.content[0].logprob)
      }
      if (seen.policy.size === 1) {
        await expect(post('/pause', {})).rejects.toThrow(/404/)
        await expect(post('/collective_rpc', { method: 'reload_weights' })).rejects.toThrow(/404/)
        await expect(post('/v1/load_lora_adapter', { lora_name: 'x', lora_path: '/' })).rejects.toThrow(/403/)
      }
    }
  } catch (error) {
    // The run ended between two requests.
    if (!(error instanceof OpenAI.APIConnectionError) && !(error instanceof OpenAI.InternalServerError)) throw error
  }
  const { code, stderr } = await outcome
  expect({ code, stderr }).toMatchObject({ code: 0 })
  // The policy moved, the model below its adapter did not.
  expect(seen.policy.size).toBeGreaterThan(3)
  expect(new Set(seen.policy.values()).size).toBeGreaterThan(3)
  expect(new Set(seen.tiny.values()).size).toBe(1)
  const log = readFileSync(join(runs.outputs, 'open', 'logs', 'server.log'), 'utf8')
  expect(log).toMatch(/"path":"\/inference\/v1\/generate","status":200/)
  // Other clients change nothing of the run.
  expect((await runs.run([...words, 'run_name=closed'])).code).toBe(0)
  expect(runs.numbers('open')).toEqual(runs.numbers('closed'))
  expect(
    (await runs.run(['max_steps=2', 'run_name=refused', '--inference.serve', 'true', '--inference.serve_host', '0.0.0.0']))
      .stderr,
  ).toMatch(/needs a key/)
})
