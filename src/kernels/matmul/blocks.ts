/**
 * Which products of the register tile read a weight's quantised blocks themselves (quantised/blocks.wgsl), instead of having its values widened
 * first. It changes no bit: both ways give the same bf16 values and the same sums.
 */
import type { Gpu } from '../../gpu/gpu.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'
import { matrixUnitOf } from '../common/matrix-units.ts'
import type { Weight } from '../common/weight.ts'
import { takesCpu } from './cpu.ts'
import { tileFor } from './register-tile.ts'

/**
 * Row tiles of a product that may each unpack the same weight. With one or two, that costs less than a dispatch that writes all values, and reading
 * them; with four about as much, with more it costs more (bench/LOG.md).
 */
const mostUnpacked = 2

/**
 * Whether a product reads a weight's blocks because that is less work than widening. The caller makes sure that rows and columns are read and written
 * as whole vec4.
 * @param columns of the product
 */
export function readsBlocks(gpu: Gpu, weight: Weight, rows: Count, columns: number): boolean {
  if (!weight.blocks || matrixUnitOf(gpu) || takesCpu(gpu, weight.columns)) return false
  return capacityOf(rows) <= mostUnpacked * tileFor(gpu, rows, columns).rows
}
