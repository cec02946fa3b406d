/** The benchmarks' cases: every one passes its own check, and none passes where a kernel does not do its work. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { attentionCase, attentionForms } from '../../src/bench/attention.ts'
import { caseName, kernelGroups, runCase, whyNot, type KernelCase } from '../../src/bench/case.ts'
import { checkPoints, sumOf } from '../../src/bench/check.ts'
import { headCase, headForms } from '../../src/bench/head.ts'
import { benchKernels, casesOf } from '../../src/bench/kernels.ts'
import { linearShapesOf, matmulCase, matmulForms } from '../../src/bench/matmul.ts'
import { normCase, normForms } from '../../src/bench/norm.ts'
import { optimizerCase, optimizerForms } from '../../src/bench/optimizer.ts'
import { measurePeaks, peakOf, type Peaks } from '../../src/bench/peaks.ts'
import { samplerCase, samplerForms } from '../../src/bench/sampler.ts'
import { modelShapes } from '../../src/bench/shapes.ts'
import { Random } from '../../src/common/random.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { seed } from '../seed.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())
let peaks: Peaks
beforeAll(async () => {
  peaks = await measurePeaks(gpu, { repeats: 1, seconds: 0.01 })
})
const heads = { heads: 4, kvHeads: 2, headDim: 16 }
const cases: KernelCase[] = [
  ...matmulForms.map((form) => matmulCase(form, 19, { n: 72, k: 40, of: 'test' })),
  matmulCase('nt', 1, { n: 64, k: 64, of: 'test' }),
  ...attentionForms.map((form) => attentionCase(form, 21, heads, 'test', { sequences: 3 })),
  ...normForms.map((form) => normCase(form, 5, 48, 'test')),
  ...headForms.map((form) => headCase(form, 3, 515, 32, 'test')),
  ...optimizerForms.map((form) => optimizerCase(form, 8192, 'test')),
  ...samplerForms.map((form) => samplerCase(form, 9, 700, 'test')),
]
const named = cases.map((one) => [caseName(one), one] as const)

/** Runs a case's kernels with `change` between it and the device. */
async function broken(one: KernelCase, change: (groups: number[]) => number[]): Promise<unknown> {
  const own = gpu.dispatch.bind(gpu)
  const open = one.open(gpu)
  try {
    gpu.dispatch = (kernel, bindings, params, groups) => {
      const [x, y = 1, z = 1] = change([...(groups as number[])])
      own(kernel, bindings, params, [x, y, z])
    }
    open.run()
    gpu.dispatch = own
    return await open.check()
  } finally {
    gpu.dispatch = own
    open.release()
  }
}

describe('kernels', () => {
  test.each(named)('%s', async (name, one) => {
    const row = await runCase(gpu, one, peaks, { repeats: 1, seconds: 0.002 })
    expect(caseName(row)).toBe(name)
    expect(row.error).toBeLessThan(1e-4)
    for (const value of [row.ms, row.gbs, row.ofCopy]) expect(value).toBeGreaterThan(0)
    expect(row.ofPeak).toBeCloseTo(row.gflops / peakOf(peaks.fma))
    expect(row.gflops > 0).toBe(one.flops > 0)
  })
  test.each(named)('%s: a kernel that is left out is found', async (name, one) => {
    await expect(broken(one, () => [0])).rejects.toThrow(name)
  })
  test.each(named)('%s: a workgroup that is missing is found', async (name, one) => {
    const without = ([x, y = 1, z = 1]: number[]) => (y > 1 ? [x, y - 1, z] : [x - 1, y, z])
    await expect(broken(one, without)).rejects.toThrow(name)
  })
  test('nothing is left on the device', () => {
    expect(gpu.pool.bytesInUse).toBe(0)
  })
  test('a case that binds more than the adapter is left out, with both sizes', async () => {
    const one = { ...cases[0], binding: gpu.facts.limits.maxBinding + 1 }
    expect(whyNot(gpu, one)).toMatch(/binds \d+ MiB at a time and this adapter at most \d+/)
    expect(whyNot(gpu, cases[0])).toBeUndefined()
    // 128 sequences of 16k tokens at the 4B model's width: 8 GiB of keys.
    const config = modelShapes['qwen3-4b']
    expect(whyNot(gpu, attentionCase('decode', 16384, config, 'qwen3-4b', { sequences: 128 })) === undefined).toBe(
      gpu.facts.limits.maxBinding >= 2 ** 33,
    )
  })
})

describe('plans', () => {
  const tiny = { name: 'tiny', config: modelShapes.tiny }
  test('every group has cases, at every model and every row that was asked for', () => {
    for (const group of kernelGroups) {
      expect(casesOf(gpu, group, { models: [tiny], quick: true }).length, group).toBeGreaterThan(1)
      expect(casesOf(gpu, group, { models: [tiny] }).length, group).toBeGreaterThan(4)
    }
    const shapes = linearShapesOf('smollm2', modelShapes['smollm2-135m'])
    expect(shapes.map(({ n, k }) => [n, k])).toEqual([[576, 576], [192, 576], [1536, 576], [576, 1536]]) // prettier-ignore
    expect(shapes.map(({ of }) => of)).toEqual(['smollm2 q, o', 'smollm2 k, v', 'smollm2 gate, up', 'smollm2 down'])
    const rows = casesOf(gpu, 'matmul', { models: [tiny], rows: [3] })
    expect(rows.every(({ shape }) => shape.startsWith('3 x '))).toBe(true)
  })
  test('products stand beside a plain kernel', async () => {
    const lines: string[] = []
    const options = { repeats: 1, seconds: 0.002, progress: (line: string) => lines.push(line) }
    const plan = { models: [tiny], rows: [4], quick: true }
    const { rows, skipped } = await benchKernels(gpu, ['matmul'], plan, peaks, options)
    expect(skipped).toEqual([])
    expect(rows.map(({ name }) => name)).toEqual(['forward', 'dX', 'dW'])
    for (const { timesPlain } of rows) expect(timesPlain).toBeGreaterThan(0)
    expect(lines[0]).toBe('1/3 matmul forward 4 x 128 x 128 (tiny q, o)')
  })
})

test('peaks: what was measured is positive, matrix units only where there are some', () => {
  expect(peaks.fma.timed).toBeGreaterThan(0)
  expect(peaks.copy.timed).toBeGreaterThan(0)
  expect(peaks.fma.idle !== undefined).toBe(gpu.facts.software)
  expect(peaks.units !== undefined).toBe(gpu.facts.matrixUnits.length > 0 && gpu.facts.f16 && gpu.facts.subgroupSize > 0)
})

test('a check sees one wrong value at the ends, NaN, and an error past the tolerance', () => {
  const random = new Random(seed)
  const got = Float32Array.from({ length: 2000 }, () => random.normal())
  const want = [...got]
  const check = (tolerance = 1e-5) =>
    checkPoints('case', got, (i) => ({ value: want[i], size: 1 }), { random: new Random(seed), tolerance })
  expect(check()).toBe(0)
  for (const [at, value] of [
    [0, 9],
    [1999, 9],
    [1999, NaN],
  ]) {
    // prettier-ignore
    const kept = got[at]
    got[at] = value
    expect(() => check()).toThrow(`case: output ${at} is ${value}`)
    got[at] = kept
  }
  want.forEach((v, i) => (want[i] = v + 1e-3))
  expect(() => check()).toThrow('case: output 0')
  expect(check(2e-3)).toBeGreaterThan(9e-4)
  expect(sumOf(4, () => 3)).toEqual({ value: 12, size: 12 })
})
