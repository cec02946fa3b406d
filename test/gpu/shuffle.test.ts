/** Shuffled kernels: a right one keeps its bits, and what a software driver's order hides comes to light. */
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { openBench } from '../kernels/harness.ts'

const bench = await openBench()
const path = join(import.meta.dirname, 'fixtures/handed_on.wgsl')
const [lanes, groups] = [48, 3]
const right = Float32Array.from({ length: groups * lanes }, (_, i) => 7 + (i % lanes) + 1000 * Math.floor(i / lanes))

async function results(constants: Record<string, number>, shuffled: boolean): Promise<Float32Array> {
  let results: Float32Array = new Float32Array()
  await bench.run('handed on', { shuffled }, async () => {
    const y = bench.out(groups * lanes)
    bench.gpu.dispatch(bench.gpu.kernel(path, { LANES: lanes, ...constants }), [y], { value: 7 }, [groups])
    results = await bench.down(y, groups * lanes)
  })
  return results
}

test('a kernel with its barrier is right in any order', async () => {
  expect(await results({ BARRIER: 1 }, false)).toEqual(right)
  expect(await results({ BARRIER: 1 }, true)).toEqual(right)
})

test('a missing barrier, which the order of a software driver hides, shows', async ({ skip }) => {
  if (!bench.gpu.facts.software) skip('a GPU runs invocations as it likes')
  expect(await results({ BARRIER: 0 }, false)).toEqual(right)
  expect(await results({ BARRIER: 0 }, true)).not.toEqual(right)
})

test('workgroup memory that nobody wrote is NaN', async () => {
  expect((await results({ BARRIER: 1, UNWRITTEN: 1 }, true)).every(Number.isNaN)).toBe(true)
})
