/** The door to tuning for the rooms above, which know no kernels: every kernel family with a choice is measured, and the choices are kept. */
import type { Gpu } from '../gpu/gpu.ts'
import { tuneMatmul, type TuneRow } from '../kernels/matmul/tune.ts'
import type { Tiles } from '../kernels/matmul/tiles.ts'
import { checkTunePath, writeTuned } from '../kernels/matmul/tuned.ts'

export { tileText } from '../kernels/matmul/tiles.ts'
export { tileWords, type TuneRow } from '../kernels/matmul/tune.ts'

/** Measures, within a minute, and writes the user's cache. `report` hears of each candidate. Gives the file and what was chosen. */
export async function tuneKernels(gpu: Gpu, report: (row: TuneRow) => void): Promise<{ path: string; tiles: Partial<Tiles> }> {
  checkTunePath()
  const tiles = await tuneMatmul(gpu, { report })
  return { path: writeTuned(gpu, tiles), tiles }
}
