/** Adapters over HTTP: loaded, named, replaced in flight and unloaded while requests run. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, expect, test } from 'vitest'
import { hashSeed, Random } from '../../../src/common/random.ts'
import { writeAdapter, type LoraPair } from '../../../src/model/files/peft.ts'
import { linearShapes } from '../../../src/model/decoder/shapes.ts'
import { sampling } from '../helpers.ts'
import { ask, expectError, Tiny } from './helpers.ts'

const tiny = await Tiny.open({ maxAdapters: 2, maxAdapterRank: 8 })
const root = mkdtempSync(join(tmpdir(), 'dawn-rl-adapters-'))
const { client, url } = await tiny.serve({ adapterRoot: root }, { maxAdapters: 2 })
afterAll(() => rmSync(root, { recursive: true, force: true }))
afterEach(() => tiny.expectIdle())

/** A random adapter, strong enough to change what is said. */
async function adapter(name: string, rank = 4): Promise<string> {
  const tensors = new Map<string, LoraPair>()
  for (const [path, [outputs, inputs]] of linearShapes(tiny.decoder.config)) {
    if (!/q_proj|v_proj/.test(path)) continue
    const random = new Random(hashSeed(rank, name + path))
    const values = (n: number) => Float32Array.from({ length: n }, () => 0.4 * random.normal())
    tensors.set(path, { A: values(rank * inputs), B: values(outputs * rank), r: rank })
  }
  const config = {
    r: rank,
    loraAlpha: rank,
    loraDropout: 0,
    targetModules: ['q_proj', 'v_proj'],
    useRslora: false,
    baseModel: 'tiny',
  }
  await writeAdapter(join(root, name), { config, tensors })
  return name
}
const load = (lora_name: string, lora_path: string, more: object = {}) =>
  ask(`${url}/v1/load_lora_adapter`, { lora_name, lora_path, ...more })
const unload = (lora_name: string) => ask(`${url}/v1/unload_lora_adapter`, { lora_name })
const complete = async (model: string, fields: object = {}) =>
  (
    await client.completions.create({
      model,
      prompt: 'hello there',
      max_tokens: 16,
      temperature: 0,
      logprobs: 0,
      ...({ ignore_eos: true, ...fields } as object),
    })
  ).choices[0]

test('an adapter is loaded, used by its name and unloaded', async () => {
  const base = await complete('tiny')
  const loaded = await load('style', await adapter('style'))
  expect(loaded).toMatchObject({ status: 200, text: "Success: LoRA adapter 'style' added successfully." })
  const { data } = await client.models.list()
  expect(data.map(({ id }) => id)).toEqual(['tiny', 'style'])
  expect(data[1]).toMatchObject({ parent: 'tiny' })
  expect(await client.models.retrieve('style')).toEqual(data[1])
  expectError(
    await ask(`${url}/v1/models/owner/none`),
    404,
    /no model "owner\/none" on this server; available: tiny, style/,
    'model',
  )
  const styled = await complete('style')
  expect(styled.logprobs).not.toEqual(base.logprobs)
  const promptIds = tiny.tokenizer.encode('hello there')
  const direct = await tiny.engine.generate({
    promptIds,
    adapter: 'style',
    sampling: sampling({ temperature: 0, max_tokens: 16, ignore_eos: true }),
  })
  expect(styled.logprobs!.token_logprobs).toEqual(direct.logprobs)
  expect((await complete('tiny')).logprobs).toEqual(base.logprobs)
  expect((await ask(`${url}/metrics`)).text).toContain('vllm:lora_requests_info{max_lora="2",running_lora_adapters="style"')
  expect((await unload('style')).status).toBe(200)
  expectError(await ask(`${url}/v1/completions`, { model: 'style', prompt: 'a' }), 404, /no model "style"/, 'model')
})

test('names that are taken, ranks that are too large, and too many of them are refused', async () => {
  expect((await load('one', await adapter('one'))).status).toBe(200)
  expectError(await load('one', 'one'), 400, /already been loaded; send load_inplace/, 'lora_name')
  expectError(await load('tiny', 'one'), 400, /own name/, 'lora_name')
  expectError(await load('wide', await adapter('wide', 16)), 400, /rank 16/, 'lora_path')
  expect((await load('two', await adapter('two'))).status).toBe(200)
  expectError(await load('three', await adapter('three')), 400, /no place/, 'lora_path')
  for (const name of ['one', 'two']) await unload(name)
  // A trainer that asks again, as the answer to its first try was lost, takes these words for success: vllm/sampler.ts.
  const twice = await Promise.all([load('one', 'one'), load('one', 'one')])
  expect(new Set(twice.map(({ status }) => status))).toEqual(new Set([200, 400]))
  expect(twice.find(({ status }) => status === 400)!.text).toMatch(/already been loaded/)
  await unload('one')
})

test('versions change in flight, under load, and each token tells its own', async () => {
  await load('policy', await adapter('first'))
  const ask1 = (model: string) =>
    ask(`${url}/inference/v1/generate`, {
      model,
      token_ids: [97, 98],
      sampling_params: { max_tokens: 120, temperature: 0, ignore_eos: true },
    })
  const asked = [ask1('policy'), ask1('tiny'), ask1('policy')]
  while (tiny.engine.stats().running < 3) await new Promise((resolve) => setTimeout(resolve, 2))
  expect((await load('policy', await adapter('second'), { load_inplace: true })).status).toBe(200)
  const later = ask1('policy')
  // It holds the adapter that is unloaded next.
  const held = () => tiny.engine.stats().running + tiny.engine.stats().waiting
  while (held() < 4) await new Promise((resolve) => setTimeout(resolve, 2))
  expect((await unload('policy')).status).toBe(200)
  const [one, base, two] = await Promise.all(asked)
  for (const { status, json } of [one, two]) {
    expect(status).toBe(200)
    const spans = json.choices[0].weight_versions as { version: string; start: number; end: number }[]
    expect(spans.map(({ version }) => version)).toEqual(['1', '2'])
    expect([spans[0].start, spans[1].end]).toEqual([0, 120])
  }
  expect(base.json.choices[0].weight_versions).toEqual([{ version: 'default', start: 0, end: 120 }])
  expect((await later).json.choices[0].weight_versions).toEqual([{ version: '2', start: 0, end: 120 }])
  expect(tiny.engine.adapters.list()).toEqual([])
})
