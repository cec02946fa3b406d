/**
 * Which products of the register tile read a weight's blocks themselves (quantised/blocks.wgsl), and do not have its values widened first. It changes no bit: both
 * make the same bf16 values, and each output is the same sum.
 */
import type { Gpu } from '../../gpu/gpu.ts'
import { capacityOf, type Count } from '../../gpu/size.ts'
import { matrixUnitOf } from '../common/matrix-units.ts'
import type { Weight } from '../common/weight.ts'
import { takesCpu } from './cpu.ts'
import { tileFor } from './register-tile.ts'

/**
 * Most row tiles of a product that may unpack the same weight, each for itself: with one or two that costs less than a dispatch that writes all values and reading these; with four about
 * as much, with more it costs more (bench/LOG.md).
 */
const mostUnpacked = 2

/**
 * Whether a product with a weight reads its blocks: where that is less than widening. The caller makes sure that rows and columns are read and written as whole vec4.
 * @param columns of the product
 */
export function readsBlocks(gpu: Gpu, weight: Weight, rows: Count, columns: number): boolean {
  if (!weight.blocks || matrixUnitOf(gpu) || takesCpu(gpu, weight.columns)) return false
  return capacityOf(rows) <= mostUnpacked * tileFor(gpu, rows, columns).rows
}
