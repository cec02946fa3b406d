/** Sums and the like over the lanes of a subgroup (common/lanes.wgsl), and which lanes a driver has. */
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { cpuLanes, lanes } from '../../src/kernels/common/lanes.ts'
import { modes, openBench } from './harness.ts'

const bench = await openBench()
const { gpu } = bench
const path = fileURLToPath(new URL('fixtures/all_lanes.wgsl', import.meta.url))

test("lavapipe's subgroups are as wide as it is asked for", () => {
  if (!gpu.facts.name.startsWith('llvmpipe')) return
  const asked = Number(process.env.LP_NATIVE_VECTOR_WIDTH ?? 256) / 32
  expect(gpu.facts.subgroupSize).toBe(asked)
  expect(cpuLanes(gpu)).toEqual({ LANES: asked === 4 ? 0 : asked, WIDE: Number(asked === 16) })
})

describe.each(modes)('$name', ({ facts, needs }) => {
  test.skipIf(needs === 'cpu' && !bench.cpu)('every lane gets what all come to', async () => {
    await bench.run('lanes', facts, async () => {
      const constants = lanes(gpu)
      const [rows, LANES] = [9, constants.LANES]
      // Negative but for one lane of some rows, each another: what is below 0 everywhere has no lane above.
      const values = bench.normals(rows * LANES).map((value, i) => {
        const row = Math.floor(i / LANES)
        return row % 2 === 0 && i % LANES === (row * 3) % LANES ? 7 : -Math.abs(value) - 1
      })
      const out = bench.out(rows * LANES * 4)
      gpu.dispatch(gpu.kernel(path, constants), [bench.up(values), out], { rows, bound: 0 }, [rows])
      const got = await bench.down(out, rows * LANES * 4)
      for (let row = 0; row < rows; row++) {
        const own = [...values.subarray(row * LANES, (row + 1) * LANES)]
        const sum = own.reduce((a, b) => a + b, 0)
        for (let lane = 0; lane < LANES; lane++) {
          const [added, most, any] = got.subarray((row * LANES + lane) * 4)
          expect(Math.abs(added - sum)).toBeLessThan(1e-5 * LANES)
          // Through workgroup memory a lane is told of itself alone.
          const above = constants.SUBGROUP ? row % 2 === 0 : own[lane] > 0
          expect([most, any]).toEqual([Math.max(...own), Number(above)])
          expect(added).toBe(got[row * LANES * 4])
        }
      }
    })
  })
})
