/** Which models run with vectors of 512 bits, where the CPU has them. */
import { expect, test } from 'vitest'
import { modelShapes } from '../../src/bench/shapes.ts'
import { gainsByWideVectors } from '../../src/model/decoder/wide-vectors.ts'

const { tiny, 'smollm2-135m': smollm2, 'qwen3-0.6b': qwen3 } = modelShapes
const gemma = { ...tiny, headDim: 256 }
const deltas = { deltaLayers: [0], keyHeads: 1, valueHeads: 1, keyDim: 64, valueDim: 64, taps: 4 }

test('heads that 16 lanes share evenly take them, others do not', () => {
  for (const trains of [true, false]) {
    expect(gainsByWideVectors([smollm2], { trains })).toBe(true)
    expect(gainsByWideVectors([qwen3], { trains })).toBe(true)
    expect(gainsByWideVectors([tiny], { trains })).toBe(false)
    expect(gainsByWideVectors([{ ...tiny, headDim: 80 }], { trains })).toBe(false)
    expect(gainsByWideVectors([{ ...smollm2, qwen35: deltas }], { trains })).toBe(false)
    expect(gainsByWideVectors([gemma], { trains })).toBe(!trains)
  }
})

test('one model of a process that loses by them is enough', () => {
  expect(gainsByWideVectors([smollm2, qwen3], { trains: true })).toBe(true)
  expect(gainsByWideVectors([smollm2, tiny], { trains: true })).toBe(false)
})

test('neither matrix units nor a cache of f16 take them', () => {
  expect(gainsByWideVectors([smollm2], { trains: true, matrixUnits: true })).toBe(false)
  expect(gainsByWideVectors([smollm2], { trains: false, kvCacheDtype: 'f16' })).toBe(false)
  expect(gainsByWideVectors([smollm2], { trains: false, kvCacheDtype: 'auto' })).toBe(true)
})
