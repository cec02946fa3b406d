/** `grad` as a user runs it. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { roundToBf16, widenBf16 } from '../../src/model/bf16.ts'
import {
  openSafetensors,
  writeSafetensors,
  type SafetensorsSource,
  type TensorToWrite,
} from '../../src/model/files/safetensors.ts'
import { bars, fixtures, floats, openCase, relativeError } from '../golden/cases.ts'

const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-grad-'))
afterAll(() => rmSync(folder, { recursive: true }))

function grad(words: string[]) {
  const result = spawnSync(process.execPath, [cli, 'grad', ...words], { encoding: 'utf8' })
  return { code: result.status, out: result.stdout, err: result.stderr }
}

let runs = 0
/** The file that a run on a case writes. */
async function gradients(dir: string, words: string[]): Promise<SafetensorsSource & { said: string }> {
  const out = join(folder, `${runs++}.safetensors`)
  const result = grad(['--model', `${dir}/model`, '--batch', `${dir}/batch.json`, '--out', out, ...words])
  expect(result.code, result.err).toBe(0)
  return Object.assign(await openSafetensors(out), { said: result.out })
}

const expectScalar = async (file: SafetensorsSource, name: string, expected: number) => {
  expect(file.shape(name)).toEqual([1])
  expect(relativeError(await floats(file, name), [expected])).toBeLessThanOrEqual(bars.gradients)
}

/** CISPO with its default bounds, as a user would write it; its ratio comes from the log-probabilities of that name. */
const cispoOf = (logprobs: 'logprobs' | 'frozenLogprobs') => `
  type Inputs = Record<'logprobs' | 'frozenLogprobs' | 'inferenceLogprobs' | 'advantages', Float32Array> & { lossMask: Uint8Array; lossTokenCount: number }
  export default function own(x: Inputs) {
    const weight = (t: number) => x.lossMask[t] * Math.min(8, Math.max(0.125, Math.exp(x.${logprobs}[t] - x.inferenceLogprobs[t])))
    const gradient = x.logprobs.map((_, t) => (-weight(t) * x.advantages[t]) / x.lossTokenCount)
    return { gradient, loss: gradient.reduce((sum, g, t) => sum + g * x.logprobs[t], 0) }
  }`

test('without an adapter: every weight under its Hugging Face name and shape', async () => {
  const dir = `${fixtures}golden/qwen2`
  const { facts, expected } = await openCase(dir)
  const file = await gradients(dir, ['--loss', 'cispo_mask', '--temperature', String(facts.temperature)])
  expect(file.said).toMatch(
    /^.*\.safetensors: cispo_mask loss \S+, gradient norm \S+, \d+ tensors, \d+ loss tokens in 1 micro-batches .*\n$/,
  )
  const names = expected
    .names()
    .filter((name) => name.startsWith('full.masked.grad.'))
    .map((name) => name.replace('full.masked.grad.', ''))
  expect(file.names().toSorted()).toEqual([...names, 'loss', 'grad_norm'].toSorted())
  for (const name of names) {
    expect(file.shape(name), name).toEqual(expected.shape(`full.masked.grad.${name}`))
    const error = relativeError(await floats(file, name), await floats(expected, `full.masked.grad.${name}`))
    expect(error, name).toBeLessThanOrEqual(bars.gradients)
  }
  await expectScalar(file, 'loss', facts['full.masked.loss'] as number)
  await expectScalar(file, 'grad_norm', facts['full.masked.grad_norm'] as number)
})

test('with an adapter: its factors without the padding of their rank, under both of their names', async () => {
  const dir = `${fixtures}odd/llama-odd`
  const { facts, expected } = await openCase(dir)
  const adapter = await openSafetensors(`${dir}/adapter/adapter_model.safetensors`)
  const words = ['--adapter', `${dir}/adapter`, '--temperature', String(facts.temperature), '--micro-batch-tokens', '9']
  const file = await gradients(dir, words)
  const bare = adapter.names().map((name) => name.replace('base_model.model.', ''))
  expect(file.names().toSorted()).toEqual([...adapter.names(), ...bare, 'loss', 'grad_norm'].toSorted())
  for (const name of bare) {
    expect(file.shape(name)).toEqual(adapter.shape(`base_model.model.${name}`))
    const values = await floats(file, name)
    expect(await floats(file, `base_model.model.${name}`)).toEqual(values)
    expect(relativeError(values, await floats(expected, `lora.clipped.grad.${name}`)), name).toBeLessThanOrEqual(bars.gradients)
  }
  await expectScalar(file, 'loss', facts['lora.clipped.loss'] as number)
  await expectScalar(file, 'grad_norm', facts['lora.clipped.grad_norm'] as number)
})

test("the ratio bounds, checkpointing or not, and a loss of the user's own", async () => {
  const dir = `${fixtures}odd/llama-odd`
  const read = async (words: string[]) => {
    const file = await gradients(dir, words)
    return { loss: (await floats(file, 'loss'))[0], embedding: await floats(file, 'model.embed_tokens.weight') }
  }
  const plain = await read([])
  expect(await read(['--no-gradient-checkpointing'])).toEqual(plain)
  const narrow = await read(['--mask-ratio-low', '0.99', '--mask-ratio-high', '1.01'])
  expect(relativeError(narrow.embedding, plain.embedding)).toBeGreaterThan(0.01)
  // What npm init writes.
  writeFileSync(join(folder, 'package.json'), '{"type": "commonjs"}')
  const own = join(folder, 'own.ts')
  writeFileSync(own, cispoOf('frozenLogprobs'))
  const custom = await read(['--loss', own])
  expect(relativeError(custom.embedding, plain.embedding)).toBeLessThan(1e-5)
  expect(custom.loss).toBeCloseTo(plain.loss, 5)
})

test('a loss of a file has its arguments, from an option or from a training config, whose other keys hold too', async () => {
  const own = join(folder, 'scaled.ts')
  writeFileSync(own, cispoOf('frozenLogprobs').replace('function own(x: Inputs)', 'function own(x: Inputs, args: { scale: number })').replace('(-weight', '(-args.scale * weight')) // prettier-ignore
  const config = join(folder, 'grad.toml')
  const args = `loss = ${JSON.stringify(own)}\nloss_args = { scale = 2 }\ntemperature = 0.5\nentropy_coef = 0.01\n`
  writeFileSync(config, `model = "none"\n[env]\nid = "reverse-text"\n[trainer.args]\n${args}`)
  const read = async (words: string[]) => {
    const file = await gradients(`${fixtures}odd/llama-odd`, words)
    return [...(await floats(file, 'loss')), ...(await floats(file, 'model.embed_tokens.weight'))]
  }
  const by = async (scale: number, more: string[] = []) =>
    await read(['--loss', own, '--loss-args', JSON.stringify({ scale }), '--temperature', '0.5', ...more])
  const [once, twice] = [await by(1), await by(2)]
  expect(relativeError(twice.map((value) => value / 2), once)).toBeLessThan(1e-5) // prettier-ignore
  expect(await read(['@', config])).toEqual(await by(2, ['--entropy-coef', '0.01']))
  expect(await read(['@', config, '--loss-args', '{"scale": 1}', '--entropy-coef', '0'])).toEqual(once)
})

test('what a loss of a file does not read is named', () => {
  const own = join(folder, 'reads.ts')
  writeFileSync(own, cispoOf('frozenLogprobs').replace('(x: Inputs)', '(x: Inputs, { scale = 1 }: { scale?: number })').replace('(-weight', '(-scale * weight')) // prettier-ignore
  const dir = `${fixtures}odd/llama-odd`
  const common = [
    '--model',
    `${dir}/model`,
    '--batch',
    `${dir}/batch.json`,
    '--out',
    join(folder, 'reads.safetensors'),
    '--loss',
    own,
  ]
  const { code, err } = grad([...common, '--loss-args', '{"scale": 2, "skale": 3}', '--mask-ratio-high', '4'])
  expect(code, err).toBe(0)
  expect(err).toMatch(/warning: --loss-args skale: .*reads\.ts did not read it/)
  expect(err).toContain('note: --mask-ratio-high has no effect: the loss is from a file, which takes --loss-args instead.')
  expect(err).not.toContain('--loss-args scale')
  const config = join(folder, 'reads.toml')
  writeFileSync(
    config,
    `model = "none"\n[env]\nid = "reverse-text"\n[trainer.args]\nloss = ${JSON.stringify(own)}\nloss_args = { scale = 2 }\n`,
  )
  const builtIn = grad(['@', config, ...common, '--loss', 'cispo'])
  expect(builtIn.code, builtIn.err).toBe(0)
})

test('weights of a file in float32 are rounded to bf16 where a training config rounds them', async () => {
  const dir = `${fixtures}odd/llama-bias`
  const rounded = join(folder, 'rounded')
  cpSync(dir, rounded, { recursive: true })
  const files = await openSafetensors(`${dir}/model/model.safetensors`)
  const tensors: Record<string, TensorToWrite> = {}
  for (const name of files.names()) {
    const data = widenBf16(roundToBf16(await floats(files, name)))
    tensors[name] = { dtype: 'F32', shape: files.shape(name), data }
  }
  await writeSafetensors(`${rounded}/model/model.safetensors`, tensors)
  const config = (bf16: string) => {
    const path = join(folder, 'held.toml')
    writeFileSync(path, `model = "none"\n[env]\nid = "reverse-text"\n[trainer.args]\n${bf16}`)
    return ['@', path]
  }
  const read = async (from: string, words: string[] = []) => {
    const file = await gradients(from, words)
    return [...(await floats(file, 'loss')), ...(await floats(file, 'model.embed_tokens.weight'))]
  }
  const [asFiled, asRounded] = [await read(dir), await read(rounded)]
  expect(asRounded).not.toEqual(asFiled)
  expect(await read(dir, config(''))).toEqual(asRounded)
  expect(await read(dir, config('bf16 = false'))).toEqual(asFiled)
})

test('a batch without a single loss token has gradients of 0', async () => {
  const batch = join(folder, 'nothing.json')
  for (const longer of [[{ input_ids: [3, 4], loss_mask: [1, 0] }], []]) {
    writeFileSync(batch, JSON.stringify([{ input_ids: [5] }, ...longer]))
    const file = await gradients(`${fixtures}odd/llama-odd`, ['--batch', batch])
    for (const name of file.names())
      expect(
        (await floats(file, name)).every((v) => v === 0),
        name,
      ).toBe(true)
  }
})

describe('says in a sentence what is wrong, and exits with 2', () => {
  const dir = `${fixtures}odd/llama-odd`
  const common = ['--model', `${dir}/model`, '--batch', `${dir}/batch.json`, '--out', join(folder, 'never.safetensors')]
  const file = (name: string, text: string) => {
    writeFileSync(join(folder, name), text)
    return join(folder, name)
  }
  test.each<[string, () => string[], RegExp]>([
    ['an unknown loss', () => ['--loss', 'cispo2'], /loss is 'cispo2'/],
    [
      'a loss file without a function',
      () => ['--loss', file('none.ts', 'export const loss = 1\n')],
      /none\.ts must export a function/,
    ],
    [
      'a loss that gives no gradient',
      () => ['--loss', file('bad.ts', 'export default () => ({ loss: 1 })\n')],
      /bad\.ts must return/,
    ],
    [
      'a loss whose gradient is another',
      () => ['--loss', file('other.ts', cispoOf('logprobs'))],
      /other\.ts says that dLoss\/dlogprob of token/,
    ],
    ['arguments that are no JSON', () => ['--loss-args', 'scale=2'], /grad: --loss-args is not valid JSON/],
    ['arguments of a built-in loss', () => ['--loss-args', '{"clip": 0.2}'], /the built-in loss cispo takes no --loss-args/],
    [
      'another reference model of a config',
      () => [
        '@',
        file('ref.toml', 'model = "m"\n[env]\nid = "reverse-text"\n[trainer.args]\nref_model = "teacher"\nbeta = 0.1\n'),
      ],
      /ref_logprobs\. Write them for all; grad opens no second model, and the config's is teacher\./,
    ],
    ['a negative bound', () => ['--mask-ratio-low', '-1'], /--mask-ratio-low.*It must be a number, 0 or above/],
    [
      'bounds between which no ratio lies',
      () => ['--mask-ratio-low', '9'],
      /grad: --mask-ratio-low is 9, above --mask-ratio-high \(8\)\. No ratio lies between them\./,
    ],
    ['an adapter for another model', () => ['--adapter', `${fixtures}golden/llama/adapter`], /for another model/],
  ])('%s', (_, words, sentence) => {
    const { code, out, err } = grad([...common, ...words()])
    expect(code).toBe(2)
    expect(out).toBe('')
    expect(err).toMatch(sentence)
    expect(err).not.toContain('    at ')
  })
})
