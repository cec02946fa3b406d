/** `score` as a user runs it. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { openSafetensors } from '../../src/model/files/safetensors.ts'
import { bars, fixtures, floats, relativeError } from '../golden/cases.ts'

const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-score-'))
afterAll(() => rmSync(folder, { recursive: true }))

function score(words: string[]) {
  const result = spawnSync(process.execPath, [cli, 'score', ...words], { encoding: 'utf8' })
  return { code: result.status, out: result.stdout, err: result.stderr }
}
/** Closes the file: Windows replaces none that is open. */
async function logprobsOf(path: string): Promise<Float32Array> {
  const file = await openSafetensors(path)
  try {
    return await floats(file, 'logprobs')
  } finally {
    file.close()
  }
}
const golden = `${fixtures}golden/qwen2`
const of = (dir: string) => ['--model', `${dir}/model`, '--batch', `${dir}/batch.json`]

test('writes log-probabilities and entropies, the sequences one after another', async () => {
  const out = join(folder, 'scores.safetensors')
  const { code, out: said } = score([...of(golden), '--out', out, '--temperature', '0.8', '--micro-batch-tokens', '40'])
  expect(code).toBe(0)
  expect(said.split('\n')).toHaveLength(2)
  expect(said).toMatch(/scores\.safetensors: 6 sequences, \d+ scored tokens, mean logprob -\d+\.\d+, mean entropy \d/)
  const [file, expected] = [await openSafetensors(out), await openSafetensors(`${golden}/expected.safetensors`)]
  expect(file.names().toSorted()).toEqual(['entropy', 'logprobs'])
  expect(file.dtype('logprobs')).toBe('F32')
  const batch = JSON.parse(readFileSync(`${golden}/batch.json`, 'utf8')) as { input_ids: number[] }[]
  expect(file.shape('logprobs')).toEqual([batch.reduce((sum, s) => sum + s.input_ids.length, 0)])
  for (const name of ['logprobs', 'entropy']) {
    const values = await floats(file, name)
    expect(relativeError(values, await floats(expected, `full.${name}`))).toBeLessThanOrEqual(bars.logprobs)
    let at = 0
    for (const { input_ids } of batch) {
      expect(values[at]).toBe(0)
      at += input_ids.length
    }
  }
})

test('takes an adapter, shards and sequences of one token; the temperature is 1 where none is said', async () => {
  const dir = `${fixtures}odd/qwen3-tied`
  const facts = JSON.parse(readFileSync(`${dir}/case.json`, 'utf8')) as { temperature: number }
  const expected = await floats(await openSafetensors(`${dir}/expected.safetensors`), 'lora.logprobs')
  const run = async (words: string[]) => {
    const out = join(folder, 'lora.safetensors')
    expect(score([...of(dir), '--adapter', `${dir}/adapter`, '--out', out, ...words]).code).toBe(0)
    return await logprobsOf(out)
  }
  expect(relativeError(await run(['--temperature', String(facts.temperature)]), expected)).toBeLessThanOrEqual(bars.logprobs)
  const plain = await run([])
  expect(relativeError(plain, expected)).toBeGreaterThan(1e-3)
  expect(await run(['--temperature', '1'])).toEqual(plain)
  const short = join(folder, 'short.json')
  writeFileSync(short, '[{"input_ids": [5]}]')
  expect(await run(['--batch', short])).toEqual(Float32Array.of(0))
})

test('--quantization q8_0 holds the layers in 8 bits', async () => {
  const run = async (words: string[]) => {
    const out = join(folder, 'blocks.safetensors')
    expect(score([...of(golden), '--out', out, ...words]).code).toBe(0)
    return await logprobsOf(out)
  }
  const error = relativeError(await run(['--quantization', 'q8_0']), await run([]))
  expect(error).toBeGreaterThan(1e-5)
  expect(error).toBeLessThan(1e-2)
})

describe('says in a sentence what is wrong, and exits with 2', () => {
  const batch = (name: string, value: unknown) => {
    const file = join(folder, name)
    writeFileSync(file, typeof value === 'string' ? value : JSON.stringify(value))
    return file
  }
  const out = ['--out', join(folder, 'never.safetensors')]
  const cases: [string, () => string[], RegExp][] = [
    [
      'no blocks to keep',
      () => [...of(golden), '--quantization', 'gguf', ...out],
      /has no quantised matrices.*Name a quantised \.gguf, or take "q8_0"/,
    ],
    [
      'no model',
      () => ['--model', join(folder, 'none'), '--batch', `${golden}/batch.json`, ...out],
      /There is no model at .*none/,
    ],
    ['no batch', () => ['--model', `${golden}/model`, '--batch', join(folder, 'none.json'), ...out], /none\.json/],
    [
      'a batch that is no JSON',
      () => ['--model', `${golden}/model`, '--batch', batch('a.json', '[{'), ...out],
      /a\.json is not valid JSON/,
    ],
    [
      'a token that the model does not have',
      () => ['--model', `${golden}/model`, '--batch', batch('b.json', [{ input_ids: [1, 512] }]), ...out],
      /b\.json: sequence 0: input_ids\[1\] is 512; it must be a token id from 0 to/,
    ],
    [
      'an adapter for another model',
      () => [...of(golden), '--adapter', `${fixtures}odd/llama-odd/adapter`, ...out],
      /The adapter .*llama-odd.* is for another model: .*has shape/,
    ],
    ['a folder that is no adapter', () => [...of(golden), '--adapter', `${golden}/model`, ...out], /has no adapter_config\.json/],
    ['a temperature of 0', () => [...of(golden), '--temperature', '0', ...out], /--temperature.*It must be a number above 0/],
    ['half a token', () => [...of(golden), '--micro-batch-tokens', '0.5', ...out], /It must be a whole number of 1 or more/],
    ['no --out', () => of(golden), /--out/],
    [
      'an --out that is a folder',
      () => [...of(golden), '--out', folder],
      /--out .* cannot be written: it is a folder\. Name another file/,
    ],
    [
      'an --out that would overwrite the batch',
      () => [...of(golden), '--batch', batch('own.json', [{ input_ids: [5] }]), '--out', join(folder, 'own.json')],
      /--out and --batch are both .*own\.json, which would be overwritten/,
    ],
  ]
  test.each(cases)('%s', (_, words, sentence) => {
    const { code, out: said, err } = score(words())
    expect(code).toBe(2)
    expect(said).toBe('')
    expect(err).toMatch(sentence)
    expect(err).not.toContain('    at ')
  })
})

test('a disk that is full when it has scored is told in a sentence', () => {
  const hook = `import files from 'node:fs/promises'
    import { syncBuiltinESMExports } from 'node:module'
    const { open } = files
    const full = () => { throw Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC', syscall: 'write' }) }
    files.open = async (path, ...words) => (String(path).includes('.partial-') ? full() : open(path, ...words))
    syncBuiltinESMExports()`
  const words = [`--import=data:text/javascript,${encodeURIComponent(hook)}`, cli, 'score', ...of(golden)]
  const run = spawnSync(process.execPath, [...words, '--out', join(folder, 'full.safetensors')], { encoding: 'utf8' })
  expect(run.status, run.stderr).toBe(2)
  expect(run.stderr).toMatch(/--out .*full\.safetensors cannot be written: ENOSPC.+ make room there\.\n$/)
  expect(existsSync(join(folder, 'full.safetensors'))).toBe(false)
})
