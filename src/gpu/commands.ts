/** The commands of a submit, their encoding, and the buffers for parameters that cannot be part of a command. */
import { GpuError } from './errors.ts'
import type { Kernel } from './kernel.ts'
import { GpuBuffer, GpuTexture } from './pool.ts'
import type { Count } from './size.ts'
import type { PassTimer } from './timing.ts'

/** A whole buffer, a part of one (in bytes; the offset is a multiple of 256), or a texture. */
export type Binding = GpuBuffer | GpuTexture | BufferRange
export interface BufferRange {
  buffer: GpuBuffer
  offset: number
  bytes: number
}

/** Numbers of workgroups (x, y, z); 1 where left out. */
export type Workgroups = [Count] | [Count, Count] | [Count, Count, Count]

/** One dispatch of a kernel. */
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
/** The part of a buffer that is copied into a texture: `texels` of 16 bytes in each of `rows` rows. */
export interface TextureRows {
  /** Offset of the first row, a multiple of 16. Default: 0. */
  offset?: number
  /** Distance between the starts of two rows, a multiple of 256. */
  bytesPerRow: number
  rows: Count
  texels: number
  /** Column and row of the first texel in the texture. Default: [0, 0]. */
  origin?: [number, number]
}
/** A copy of rows of a buffer into a texture. */
interface Staging {
  source: GPUBuffer
  layout: { offset: number; bytesPerRow: number; rowsPerImage: number }
  texture: GPUTexture
  origin: [number, number]
  size: [number, number]
}
export type Command = Dispatch | Copy | Staging | { clear: GPUBuffer; offset: number; bytes: number }

/** The range of a binding. @throws GpuError for a texture, which has none */
export function rangeOf(binding: Binding): BufferRange {
  if (binding instanceof GpuBuffer) return { buffer: binding, offset: 0, bytes: binding.bytes }
  if (binding instanceof GpuTexture) throw new GpuError('a texture has no byte range')
  return binding
}

/** Whether a range starts where another ends. */
export function follows(before: BufferRange, { buffer, offset }: BufferRange): boolean {
  return buffer === before.buffer && offset === before.offset + before.bytes
}

/** The bytes of an array, padded with zeros to a multiple of 4. */
export function paddedBytes(data: ArrayBufferView): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength)
  if (bytes.length % 4 === 0) return bytes
  const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4)
  padded.set(bytes)
  return padded
}

/** For adapters without immediates: the parameters of a submit are written to a ring of uniform buffers, 256 bytes apart. */
export class UniformRing {
  readonly #device: GPUDevice
  readonly #layout: GPUBindGroupLayout
  readonly #ring: { buffer: GPUBuffer; group: GPUBindGroup }[] = []
  constructor(device: GPUDevice, layout: GPUBindGroupLayout) {
    this.#device = device
    this.#layout = layout
  }

  /** Writes the parameters of `commands`. @returns their location, for each dispatch that has any */
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

/**
 * Encodes commands. Consecutive dispatches share a pass.
 * @param how.uniforms needed if the adapter has no immediates @param how.timer times passes; dispatches get separate passes if `timer.each`
 * @returns how many kernels are submitted for the first time
 */
export function encode(
  encoder: GPUCommandEncoder,
  commands: Command[],
  how: { uniforms: UniformRing | undefined; timer: PassTimer | undefined },
): number {
  const { uniforms, timer } = how
  const offsets = uniforms?.fill(commands)
  let pass: GPUComputePassEncoder | undefined
  let uniform = 0
  let unsent = 0
  for (const c of commands) {
    if (!('kernel' in c)) {
      pass?.end()
      pass = undefined
      if ('clear' in c) encoder.clearBuffer(c.clear, c.offset, c.bytes)
      else if ('texture' in c)
        encoder.copyBufferToTexture({ buffer: c.source, ...c.layout }, { texture: c.texture, origin: c.origin }, c.size)
      else encoder.copyBufferToBuffer(c.source, c.sourceOffset, c.target, c.targetOffset, c.bytes)
      continue
    }
    pass ??= encoder.beginComputePass(timer ? { timestampWrites: timer.next(encoder) } : undefined)
    timer?.add(c)
    unsent += Number(!c.kernel.sent)
    c.kernel.sent = true
    pass.setPipeline(c.kernel.pipeline)
    pass.setBindGroup(0, c.group)
    if (c.params) {
      if (!offsets) pass.setImmediates(0, c.params)
      else {
        const at = offsets[uniform++]
        pass.setBindGroup(1, at.group, [at.offset])
      }
    }
    pass.dispatchWorkgroups(...c.workgroups)
    if (timer?.each) {
      pass.end()
      pass = undefined
    }
  }
  pass?.end()
  timer?.resolve(encoder)
  return unsent
}
