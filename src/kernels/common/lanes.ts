/** Workgroup shapes of the kernels that give a row to a group of lanes. */
import type { Gpu } from '../../gpu/gpu.ts'
import type { Constants } from '../../gpu/wgsl.ts'

/**
 * LANES and SUBGROUP for lanes.wgsl. A subgroup where its size is fixed; wide rows (a vocabulary) take 256 lanes on a GPU.
 * The choice depends on the adapter alone, never on the batch.
 */
export function lanes(gpu: Gpu, wide = false): Constants {
  const { software, subgroupSize } = gpu.facts
  if (wide && !software) return { LANES: 256, SUBGROUP: 0 }
  if (subgroupSize >= 4 && subgroupSize <= 64) return { LANES: subgroupSize, SUBGROUP: 1 }
  return { LANES: software ? 8 : 32, SUBGROUP: 0 }
}

/** Workgroups for `n` elements at 64 to a workgroup, folded into y where x would pass 65535; see flat.wgsl. */
export function flat(n: number): [number, number] {
  const groups = Math.ceil(n / 64)
  const x = Math.min(groups, 65535)
  return [x, Math.ceil(groups / x)]
}

/** Workgroups, one a row, folded likewise: the kernel's row is x + y * 65535. */
export function perRow(rows: number): [number, number] {
  const x = Math.min(rows, 65535)
  return [x, Math.ceil(rows / Math.max(1, x))]
}
