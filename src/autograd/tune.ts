/** Gives access to kernel tuning to code that must not import kernels: measures every kernel family that has a choice, and saves the choices. */
import type { Gpu } from '../gpu/gpu.ts'
import { tuneMatmul, type TuneRow } from '../kernels/matmul/tune.ts'
import type { Tiles } from '../kernels/matmul/tiles.ts'
import { checkTunePath, writeTuned } from '../kernels/matmul/tuned.ts'

export { tileText } from '../kernels/matmul/tiles.ts'
export { tileWords, type TuneRow } from '../kernels/matmul/tune.ts'

/** Measures the kernels, within a minute, and writes the user's cache. `report` gets each candidate. @returns the cache's path, and the choices */
export async function tuneKernels(gpu: Gpu, report: (row: TuneRow) => void): Promise<{ path: string; tiles: Partial<Tiles> }> {
  checkTunePath()
  const tiles = await tuneMatmul(gpu, { report })
  return { path: writeTuned(gpu, tiles), tiles }
}
