/** A fault the device reported (validation, out of memory, lost), with the kernels and shapes that were running. */
export class GpuError extends Error {
  override name = 'GpuError'
}

/** Not enough memory: on the device, within the configured limit, or in one piece. Nothing was allocated. */
export class GpuMemoryError extends GpuError {
  override name = 'GpuMemoryError'
}

/**
 * The device was lost: the driver restarted, the GPU was disconnected, or the device was destroyed. Nothing on it can be read any more; another
 * device may be opened.
 */
export class DeviceLostError extends GpuError {
  override name = 'DeviceLostError'
}

/**
 * Whether an error means that memory ran out: as reported by the device or the pool's limit, or by a driver that lost the device because it could not
 * allocate a texture.
 */
export const isOutOfMemory = (error: unknown): error is GpuError =>
  error instanceof GpuMemoryError || (error instanceof DeviceLostError && /OUT_OF_(DEVICE|HOST)_MEMORY/.test(error.message))
