/** Rope parameters of type yarn: read, computed and written as transformers does it (test/peers/make_yarn.py made the numbers). */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { configToJson, parseConfig } from '../../src/model/config/config.ts'
import { ropeOf, ropeScalingToJson } from '../../src/model/config/rope.ts'
import { inverseFrequencies, rotaryFactor, rotaryTable } from '../../src/model/decoder/rope.ts'
import { fixtures } from './helpers.ts'

interface Case {
  config: Record<string, unknown>
  inverse: number[]
  factor: number
}
const cases = JSON.parse(readFileSync(join(fixtures, 'yarn.json'), 'utf8')) as Case[]

test.each(cases.map((one) => [JSON.stringify(one.config.rope_scaling ?? one.config.rope_parameters), one] as const))(
  '%s',
  (_, { config, inverse, factor }) => {
    const read = parseConfig(config, 'm/config.json')
    expect(rotaryFactor(read.ropeScaling)).toBe(Math.fround(factor))
    const found = inverseFrequencies(read)
    expect(found).toHaveLength(inverse.length)
    // PyTorch's powers may be another float32 next to the exact one.
    inverse.forEach((want, i) => expect(Math.abs(found[i] / want - 1)).toBeLessThan(2e-7))
    const written = { rope_theta: read.ropeTheta, rope_scaling: ropeScalingToJson(read.ropeScaling) }
    const again = ropeOf({ model_type: config.model_type, ...written }, '', read.maxPositionEmbeddings, 1)
    expect(again).toEqual({ theta: read.ropeTheta, scaling: read.ropeScaling })
    expect(parseConfig(JSON.parse(JSON.stringify(configToJson(read))) as Record<string, unknown>, '')).toEqual(read)
  },
)

test('the frequencies of Llama 3.1 8B between its two lengths are those of PyTorch, bit for bit', () => {
  const scaling = { factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalMaxPositionEmbeddings: 8192 }
  const found = inverseFrequencies({ headDim: 128, ropeTheta: 5e5, ropeScaling: { type: 'llama3', ...scaling } })
  const torch = [0.0021665706299245358, 0.0013718936825171113, 0.0008567514596506953, 0.0005248460220173001, 0.0003126936499029398, 0.0001785077911335975] // prettier-ignore
  expect([...found.subarray(29, 35)]).toEqual(torch)
})

test('the table has cosines and sines times the factor, each rounded once', () => {
  const factor = Math.fround(1.1386294)
  const plain = rotaryTable(new Float32Array([1, 0.3]), 5)
  expect(rotaryTable(new Float32Array([1, 0.3]), 5, factor)).toEqual(plain.map((value) => value * factor))
})

test.each([
  [{}, 'm/config.json: rope_scaling: factor is missing.'],
  [{ factor: -1 }, 'm/config.json: rope_scaling: factor is -1; it must be a number above 0.'],
  [{ factor: 2, attention_factor: 0 }, 'rope_scaling: attention_factor is 0; it must be a number above 0.'],
  [{ factor: 2, truncate: 'no' }, 'rope_scaling: truncate is "no"; it must be true or false.'],
  [{ factor: 2, beta_fast: [32] }, 'rope_scaling: beta_fast is [32]; it must be a number above 0.'],
])('%j is refused', (more, message) => {
  const raw = { rope_scaling: { rope_type: 'yarn', original_max_position_embeddings: 64, ...more } }
  expect(() => ropeOf(raw, 'm/config.json', 512, 1e4)).toThrow(message)
})

test('two numbers of tokens before it was made longer are refused', () => {
  const raw = {
    rope_parameters: { rope_type: 'yarn', factor: 8, original_max_position_embeddings: 64 },
    original_max_position_embeddings: 32,
  }
  expect(() => ropeOf(raw, 'm/config.json', 512, 1e4)).toThrow(
    'm/config.json: original_max_position_embeddings is 32, and of rope_parameters 64; keep one of the two.',
  )
})
