/** A fault the device reported (validation, out of memory, lost), with the kernels and shapes that were running. */
export class GpuError extends Error {
  override name = 'GpuError'
}

/** There is not enough memory on the device, not within the limit that was set, or not in one piece. What was asked for was not made. */
export class GpuMemoryError extends GpuError {
  override name = 'GpuMemoryError'
}

/** The device is gone: the driver restarted, the GPU fell off, somebody destroyed it. Nothing on it can be read any more; another one may be opened. */
export class DeviceLostError extends GpuError {
  override name = 'DeviceLostError'
}

/** Whether it is for want of memory: said by the device, by a limit, or by a driver that had none for a texture, with which the device is lost. */
export const isOutOfMemory = (error: unknown): error is GpuError =>
  error instanceof GpuMemoryError || (error instanceof DeviceLostError && /OUT_OF_(DEVICE|HOST)_MEMORY/.test(error.message))
