/** Token embedding: rows of a weight. Also the token ids that a generation step takes from the step before. */
import { fileURLToPath } from 'node:url'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { times, type Count } from '../../gpu/size.ts'
import { dispatchFlat } from '../common/lanes.ts'
import { weightConstants, weightParams, type Weight } from '../common/weight.ts'

const path = fileURLToPath(new URL('embedding.wgsl', import.meta.url))
const feedPath = fileURLToPath(new URL('feed.wgsl', import.meta.url))

/** y[t] = scale * weight[ids[t]]; ids (rows) u32, y (rows, K) float32. */
export function embedding(gpu: Gpu, ids: GpuBuffer, weight: Weight, y: GpuBuffer, rows: Count, scale = 1): void {
  const k = weight.columns
  for (const slice of weight.slices) {
    const constants = { BY8: Number(k % 8 === 0), SCALE: Number(scale !== 1), ...weightConstants(weight, slice, 2) }
    const params = { rows, k, first_row: slice.row, n: slice.rows, ...weightParams(weight, slice), scale }
    dispatchFlat(gpu, path, constants, [ids, y, slice.storage], params, times(rows, k % 8 === 0 ? k / 8 : k))
  }
}

/** Added to an id in `given` to mark it as an index into `drawn`. */
export const fromDrawn = 2 ** 31

/** ids[i] = given[i], or if that is marked, drawn[given[i] - fromDrawn]; all u32. */
export function feedIds(gpu: Gpu, given: GpuBuffer, drawn: GpuBuffer, ids: GpuBuffer, rows: Count): void {
  dispatchFlat(gpu, feedPath, {}, [given, drawn, ids], { rows }, rows)
}
