/** Tests of kernels on matrix units: on an adapter that has some, as if it were a GPU. */
import { useMatrixUnits } from '../../src/kernels/common/matrix-units.ts'
import { setTiles } from '../../src/kernels/matmul/tiles.ts'
import type { Bench } from './harness.ts'

/** Runs `fn` with matrix units in use; its inputs come from the seed and `name`. Afterwards they are not, and tiles are the built-in ones. */
export async function withUnits(bench: Bench, name: string, fn: () => Promise<void>): Promise<void> {
  const { gpu } = bench
  await bench.run(name, { software: false }, async () => {
    useMatrixUnits(gpu)
    try {
      await fn()
    } finally {
      useMatrixUnits(gpu, false)
      setTiles(gpu, {})
    }
  })
}
