import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readBatch } from '../../src/model/decoder/batch.ts'
import { golden, newFolder, userErrorOf } from './helpers.ts'

const dir = newFolder()
const path = join(dir, 'batch.json')
const read = (value: unknown) => {
  writeFileSync(path, typeof value === 'string' ? value : JSON.stringify(value))
  return readBatch(path, { vocabSize: 100 })
}

test('the golden batches, whose mask counts the tokens of case.json', async () => {
  for (const [name, tokens] of [
    ['llama', 108],
    ['qwen2', 108],
    ['qwen3', 108],
    ['smollm2', 27],
  ] as const) {
    const samples = await readBatch(join(golden, name, 'batch.json'))
    expect(samples.reduce((sum, { lossMask }) => sum + lossMask.reduce((a, b) => a + b, 0), 0)).toBe(tokens)
    for (const { ids, lossMask, inferenceLogprobs, advantages } of samples) {
      expect([lossMask.length, inferenceLogprobs.length, advantages.length]).toEqual([ids.length, ids.length, ids.length])
    }
  }
})

test('fields that are left out: every token but the first counts; a byte order mark is none of it', async () => {
  const [sample] = await read('\ufeff[{ "input_ids": [3, 1, 4] }]')
  expect(sample).toEqual({
    ids: Int32Array.of(3, 1, 4),
    lossMask: Uint8Array.of(0, 1, 1),
    inferenceLogprobs: new Float32Array(3),
    advantages: new Float32Array(3),
  })
})

test('a field that is null is left out, ref_logprobs too: as zeros they would be a reference', async () => {
  const [sample] = await read([{ input_ids: [3, 1], loss_mask: null, advantages: null, ref_logprobs: null }])
  expect(sample).toEqual((await read([{ input_ids: [3, 1] }]))[0])
})

test.each([
  ['{', 'is not valid JSON'],
  [{}, 'must hold a list of sequences, at least one.'],
  [[], 'must hold a list of sequences, at least one.'],
  [[7], 'sequence 0 must be an object with input_ids.'],
  [[{ input_ids: [1] }, { ids: [1] }], 'sequence 1: input_ids must be a list of token ids, at least one.'],
  [[{ input_ids: [1, 100] }], 'sequence 0: input_ids[1] is 100; it must be a token id from 0 to 99.'],
  [[{ input_ids: [1, 2], loss_mask: [1] }], 'sequence 0: loss_mask has 1 entries and input_ids 2; they must be as many.'],
  [[{ input_ids: [1, 2], loss_mask: [0, 2] }], 'sequence 0: loss_mask[1] is 2; it must be 0 or 1.'],
  [[{ input_ids: [1, 2], advantages: [0, null] }], 'sequence 0: advantages[1] is null; it must be a finite number in float32.'],
  [[{ input_ids: [1, 2], advantages: [0, 1e39] }], 'sequence 0: advantages[1] is 1e+39; it must be a finite number in float32.'],
  [
    [{ input_ids: [1, 2], advantage: [0, 1] }],
    'sequence 0: advantage is not a field; did you mean advantages? The fields are input_ids, loss_mask,',
  ],
  [[{ inputs_ids: [1, 2] }], 'sequence 0: inputs_ids is not a field; did you mean input_ids?'],
  [[{ input_ids: [1, 2], inference_logprobs: 3 }], 'sequence 0: inference_logprobs must be a list.'],
])('refuses %j', async (value, message) => {
  const text = await userErrorOf(() => read(value))
  expect(text).toContain(path)
  expect(text).toContain(message)
})

test('other fields may stand beside: a text, or one like a field that is there as well', async () => {
  const [sample] = await read([{ input_ids: [3, 1], text: 'so', id: 7, advantages: [0, 1], advantage: 1 }])
  expect([...sample.advantages]).toEqual([0, 1])
})

test('refuses a file in another encoding', async () => {
  writeFileSync(path, Buffer.from('\ufeff[{ "input_ids": [3, 1, 4] }]', 'utf16le'))
  expect(await userErrorOf(() => readBatch(path))).toBe(`${path} is not UTF-8 text. Save the file as UTF-8.`)
})

test('refuses a file that is not there', async () => {
  expect(await userErrorOf(() => readBatch(join(dir, 'absent.json')))).toMatch(/^Cannot read .*absent\.json: ENOENT/)
})
