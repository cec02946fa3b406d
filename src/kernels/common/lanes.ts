/** Workgroup shapes of kernels that give each row to a group of lanes. */
import type { Binding, Gpu } from '../../gpu/gpu.ts'
import { capacityOf, groupsOf, map, type Count } from '../../gpu/size.ts'
import type { Constants } from '../../gpu/wgsl.ts'

/**
 * LANES, SUBGROUP and WIDE for lanes.wgsl: one subgroup if its size is fixed; with `wide` (rows as long as a vocabulary), 256 lanes on a GPU. The
 * choice depends on the adapter alone, never on the batch.
 */
export function lanes(gpu: Gpu, wide = false): Constants {
  const { software, subgroupSize } = gpu.facts
  const { WIDE } = cpuLanes(gpu)
  if (wide && !software) return { LANES: 256, SUBGROUP: 0, WIDE }
  if (subgroupSize >= 4 && subgroupSize <= 64) return { LANES: subgroupSize, SUBGROUP: 1, WIDE }
  return { LANES: software ? 8 : 32, SUBGROUP: 0, WIDE }
}

/**
 * LANES of the kernels for CPU drivers: the subgroup size, 8 or (WIDE) 16; 0 if these kernels do not run. Products have the same bits with either
 * size, except a weight's gradient (tn_stage_cpu.wgsl). Sums over lanes (norms, attention) differ, but a process never changes its size.
 */
export function cpuLanes(gpu: Gpu): { LANES: number; WIDE: number } {
  const { software, subgroupSize } = gpu.facts
  const LANES = software && (subgroupSize === 8 || subgroupSize === 16) ? subgroupSize : 0
  return { LANES, WIDE: Number(LANES === 16) }
}

/**
 * GUARDED and APART of apart_cpu.wgsl: how many rows of a tile share a block of code, by the number of columns per lane. 32 registers hold some 16
 * sums with their operands, 16 registers hold 8. One row, without blocks, if the driver's compiler keeps the order of the code.
 */
export function apartOf(gpu: Gpu, columns: number): { GUARDED: number; APART: number } {
  const { fused, vectorRegisters } = gpu.facts
  if (!fused) return { GUARDED: 0, APART: 1 }
  if (vectorRegisters <= 16) return { GUARDED: 1, APART: columns > 4 ? 1 : columns > 2 ? 2 : 4 }
  return { GUARDED: 1, APART: columns > 4 ? 2 : 4 }
}

/**
 * GUARDED and APART as from `apartOf`, and HELD: if the CPU can broadcast an operand from memory to all lanes, x of a forward product (dy of a
 * backward one) is put on the stack (held_cpu.wgsl). A block is then one column of 8 rows: 8 sums and their part of W, whatever the driver
 * (bench/LOG.md, "Operands on the stack").
 * @param rows of a tile, a multiple of 4
 */
export function heldOf(gpu: Gpu, rows: number, columns: number): { HELD: number; GUARDED: number; APART: number } {
  if (!gpu.facts.broadcasts) return { HELD: 0, ...apartOf(gpu, columns) }
  return { HELD: 1, GUARDED: 1, APART: rows % 8 === 0 ? 8 : rows }
}

/** Whether a GPU's subgroups have 32 lanes or more. In narrower ones, each lane would hold many times as much, and the compiler would unroll that. */
export const hasWideSubgroups = (gpu: Gpu): boolean => gpu.facts.subgroupSize >= 32

/** Invocations that a large GPU runs at a time. */
export const fullGpu = 2 ** 18

/**
 * Runs an elementwise kernel (flat.wgsl) over `n` elements. A workgroup has 64, or 256 if there are enough of them for a whole GPU. On a CPU driver,
 * where a workgroup costs more than its elements, it has 512, or 1,024 if there are many. Workgroups are folded into y where x would exceed 65,535.
 */
export function dispatchFlat(
  gpu: Gpu,
  path: string,
  constants: Constants,
  bindings: Binding[],
  params: Record<string, Count>,
  n: Count,
): void {
  const most = capacityOf(n)
  const { software } = gpu.facts
  const PER = !software || most < 1024 ? 1 : most < 32768 ? 8 : 16
  const FLAT = software || most < fullGpu ? 64 : 256
  gpu.dispatch(gpu.kernel(path, { ...constants, PER, FLAT }), bindings, params, perRow(groupsOf(n, FLAT * PER)))
}

/** One workgroup per row, folded in the same way: the kernel's row is x + y * 65535. */
export function perRow(rows: Count): [Count, Count] {
  return [map(rows, (n) => Math.min(n, 65535)), map(rows, (n) => Math.ceil(n / 65535))]
}
