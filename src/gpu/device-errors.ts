/** Errors of a device. WebGPU reports them late and to a global handler, so they are kept here and thrown when the device is next used. */
import { messageOf } from '../common/errors.ts'
import type { Command } from './commands.ts'
import { DeviceLostError, GpuError, GpuMemoryError } from './errors.ts'

/** Collects the errors of one device. */
export class DeviceErrors {
  #error: GpuError | undefined
  #closing = false
  readonly #device: GPUDevice

  constructor(device: GPUDevice) {
    this.#device = device
    device.addEventListener('uncapturederror', (event) => {
      const { error } = event
      this.report(new (error instanceof GPUOutOfMemoryError ? GpuMemoryError : GpuError)(`the GPU reported: ${error.message}`))
    })
    void device.lost.then((info) => {
      if (!this.#closing) this.#error = new DeviceLostError(`the GPU device was lost (${info.reason}): ${info.message}`)
    })
  }

  /** The first error reported; a device loss takes precedence. */
  get first(): GpuError | undefined {
    return this.#error
  }

  /** Why the device was lost; undefined while it exists. */
  get lost(): DeviceLostError | undefined {
    return this.#error instanceof DeviceLostError ? this.#error : undefined
  }

  /** Called before the device is closed on purpose, which is no loss. */
  closing(): void {
    this.#closing = true
  }

  /** Keeps the first error; later ones follow from it. */
  report(error: GpuError): void {
    this.#error ??= error
  }

  /** Calls `submit`. If `commands` are given, validation errors are reported with the names of their kernels. */
  within(commands: Command[] | undefined, submit: () => void): void {
    if (!commands) return submit()
    this.#device.pushErrorScope('validation')
    submit()
    const names = [...new Set(commands.map((c) => ('kernel' in c ? c.kernel.label : 'copy')))].slice(0, 12).join(', ')
    void this.#device.popErrorScope().then((error) => {
      if (error) this.report(new GpuError(`${error.message} [in a submit of: ${names}]`))
    })
  }

  throwIfAny(): void {
    if (this.#error) throw this.#error
  }

  /**
   * Waits for `promise`.
   * @throws GpuError for anything the device reported meanwhile, or for the promise's own error
   */
  async orError(promise: Promise<unknown>): Promise<void> {
    try {
      await promise
    } catch (error) {
      throw this.#error ?? new GpuError(`the GPU device does not respond: ${messageOf(error)}`)
    }
    this.throwIfAny()
  }
}

/**
 * Creates something on the device, and waits until the device has said whether it has the memory.
 * @throws GpuMemoryError if it does not
 */
export async function withinMemory(device: GPUDevice, make: () => void): Promise<void> {
  device.pushErrorScope('out-of-memory')
  let said: Promise<GPUError | null>
  try {
    make()
  } finally {
    said = device.popErrorScope()
    said.catch(() => {})
  }
  const error = await said
  if (error) throw new GpuMemoryError(`the GPU is out of memory: ${error.message}`)
}
