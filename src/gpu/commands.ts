/** What a submit is made of, and where parameters lie that cannot travel with a command. */
import { GpuError } from './errors.ts'
import type { Kernel } from './kernel.ts'
import { GpuBuffer, GpuTexture } from './pool.ts'

/** A whole buffer, a part of one (bytes, offset a multiple of 256), or a texture. */
export type Binding = GpuBuffer | GpuTexture | BufferRange
export interface BufferRange {
  buffer: GpuBuffer
  offset: number
  bytes: number
}

export type Workgroups = [number] | [number, number] | [number, number, number]

export interface Dispatch {
  kernel: Kernel
  group: GPUBindGroup
  params: ArrayBuffer | undefined
  workgroups: [number, number, number]
}
interface Copy {
  source: GPUBuffer
  sourceOffset: number
  target: GPUBuffer
  targetOffset: number
  bytes: number
}
/** Rows of a buffer into the upper left corner of a texture. */
interface Staging {
  source: GPUBuffer
  layout: { offset: number; bytesPerRow: number; rowsPerImage: number }
  texture: GPUTexture
  size: [number, number]
}
export type Command = Dispatch | Copy | Staging | { clear: GPUBuffer; offset: number; bytes: number }

/** Commands that can be sent again and again; what changes between replays lives in buffers. */
export interface Plan {
  commands: Command[]
  /** Scratch that belongs to the plan: what its commands took from the pool and gave back. */
  arena: GpuBuffer[]
  dispatches: number
}

export function rangeOf(binding: Binding): BufferRange {
  if (binding instanceof GpuBuffer) return { buffer: binding, offset: 0, bytes: binding.bytes }
  if (binding instanceof GpuTexture) throw new GpuError('a texture has no byte range')
  return binding
}

/** Where there are no immediates: all parameters of a submit go into a ring of uniform buffers, 256 bytes apart. */
export class UniformRing {
  readonly #device: GPUDevice
  readonly #layout: GPUBindGroupLayout
  readonly #ring: { buffer: GPUBuffer; group: GPUBindGroup }[] = []
  constructor(device: GPUDevice, layout: GPUBindGroupLayout) {
    this.#device = device
    this.#layout = layout
  }

  /** Writes the parameters of `commands`; where each dispatch that has some finds them. */
  fill(commands: Command[]): { group: GPUBindGroup; offset: number }[] {
    const perBuffer = 256
    const blocks = commands.flatMap((c) => ('kernel' in c && c.params ? [c.params] : []))
    for (let first = 0; first < blocks.length; first += perBuffer) {
      const n = first / perBuffer
      if (!this.#ring[n]) {
        const buffer = this.#device.createBuffer({
          size: perBuffer * 256,
          usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
        })
        const entries = [{ binding: 0, resource: { buffer, size: 64 } }]
        this.#ring[n] = { buffer, group: this.#device.createBindGroup({ layout: this.#layout, entries }) }
      }
      const part = blocks.slice(first, first + perBuffer)
      const data = new Uint8Array(part.length * 256)
      part.forEach((block, i) => data.set(new Uint8Array(block), i * 256))
      this.#device.queue.writeBuffer(this.#ring[n].buffer, 0, data)
    }
    return blocks.map((_, i) => ({ group: this.#ring[Math.floor(i / perBuffer)].group, offset: (i % perBuffer) * 256 }))
  }
}
