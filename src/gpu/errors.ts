/** A fault the device reported (validation, out of memory, lost), with the kernels and shapes that were running. */
export class GpuError extends Error {
  override name = 'GpuError'
}
