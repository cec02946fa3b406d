/** A fault the device reported (validation, out of memory, lost), with the kernels and shapes that were running. */
export class GpuError extends Error {
  override name = 'GpuError'
}

/** Memory did not suffice: on the device, within the limit that was set, or in one piece. Nothing was allocated. */
export class GpuMemoryError extends GpuError {
  override name = 'GpuMemoryError'
}

/** The device is gone: the driver restarted, the GPU fell off, somebody destroyed it. Nothing on it can be read any more; another one may be opened. */
export class DeviceLostError extends GpuError {
  override name = 'DeviceLostError'
}

/** Whether an error means that memory ran out: reported by the device, by the limit, or by a driver that lost the device because it could not allocate a texture. */
export const isOutOfMemory = (error: unknown): error is GpuError =>
  error instanceof GpuMemoryError || (error instanceof DeviceLostError && /OUT_OF_(DEVICE|HOST)_MEMORY/.test(error.message))
