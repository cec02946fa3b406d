/** A cache of bind groups by layout and bound buffers: kernels with the same layout share them. */
import { rangeOf, type Binding } from './commands.ts'
import { GpuError, GpuMemoryError } from './errors.ts'
import type { Kernel } from './kernel.ts'
import { GpuBuffer, GpuTexture } from './pool.ts'

export class BindGroups {
  readonly #device: GPUDevice
  readonly #limits: { maxBinding: number }
  readonly #groups = new Map<string, { group: GPUBindGroup; ids: number[] }>()
  /** For each buffer's or texture's id, the keys in `#groups` of the bind groups that contain it. */
  readonly #keys = new Map<number, Set<string>>()

  constructor(device: GPUDevice, limits: { maxBinding: number }) {
    this.#device = device
    this.#limits = limits
  }

  get size(): number {
    return this.#groups.size
  }

  /**
   * The bind group for a kernel's bindings, given in the kernel's order.
   * @throws GpuError for a wrong number of bindings, GpuMemoryError for one that is larger than the adapter can bind
   */
  of(kernel: Kernel, bindings: Binding[]): GPUBindGroup {
    if (bindings.length !== kernel.bindings.length) {
      throw new GpuError(`${kernel.label} takes ${kernel.bindings.length} bindings, got ${bindings.length}`)
    }
    let key = `${kernel.layoutId}`
    for (const b of bindings) {
      key += b instanceof GpuBuffer || b instanceof GpuTexture ? `,${b.id}` : `,${b.buffer.id}:${b.offset}:${b.bytes}`
    }
    const known = this.#groups.get(key)
    if (known) return known.group
    const entries = bindings.map((b, i) => ({ binding: kernel.bindings[i].binding, resource: this.#resource(kernel, b, i) }))
    const group = this.#device.createBindGroup({ layout: kernel.layout, entries, label: kernel.label })
    const ids = bindings.map((b) => (b instanceof GpuBuffer || b instanceof GpuTexture ? b.id : b.buffer.id))
    this.#groups.set(key, { group, ids })
    for (const id of ids) {
      const keys = this.#keys.get(id)
      if (keys) keys.add(key)
      else this.#keys.set(id, new Set([key]))
    }
    return group
  }

  /** Removes the bind groups of a buffer or texture that was destroyed: they would keep its memory. */
  forget(id: number): void {
    for (const key of this.#keys.get(id) ?? []) {
      // Also from the other buffers' key sets: some of these (weights) live as long as the process.
      for (const other of this.#groups.get(key)!.ids) this.#keys.get(other)?.delete(key)
      this.#groups.delete(key)
    }
    this.#keys.delete(id)
  }

  #resource(kernel: Kernel, b: Binding, index: number): GPUBindingResource {
    if (b instanceof GpuTexture) return b.view
    const { buffer, offset, bytes } = rangeOf(b)
    const { maxBinding } = this.#limits
    if (bytes > maxBinding) {
      const name = kernel.bindings[index].name
      throw new GpuMemoryError(`${kernel.label}: '${name}' is ${bytes} bytes; this adapter binds at most ${maxBinding}`)
    }
    return { buffer: buffer.raw, offset: buffer.start + offset, size: Math.ceil(bytes / 4) * 4 }
  }
}
