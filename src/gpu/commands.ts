/** What a submit is made of, how it is encoded, and where parameters lie that cannot travel with a command. */
import { GpuError } from './errors.ts'
import type { Kernel } from './kernel.ts'
import { GpuBuffer, GpuTexture } from './pool.ts'
import type { Count } from './size.ts'
import type { PassTimer } from './timing.ts'

/** A whole buffer, a part of one (bytes, offset a multiple of 256), or a texture. */
export type Binding = GpuBuffer | GpuTexture | BufferRange
export interface BufferRange {
  buffer: GpuBuffer
  offset: number
  bytes: number
}

export type Workgroups = [Count] | [Count, Count] | [Count, Count, Count]

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
/** What a copy into a texture takes of a buffer: `texels` of 16 bytes of each of `rows` rows. */
export interface TextureRows {
  /** Offset of the first row, a multiple of 16. Default: 0. */
  offset?: number
  /** Distance between the beginnings of two rows, a multiple of 256. */
  bytesPerRow: number
  rows: Count
  texels: number
  /** Column and row of the texture's first texel. Default: the upper left corner. */
  origin?: [number, number]
}
/** Rows of a buffer into a texture. */
interface Staging {
  source: GPUBuffer
  layout: { offset: number; bytesPerRow: number; rowsPerImage: number }
  texture: GPUTexture
  origin: [number, number]
  size: [number, number]
}
export type Command = Dispatch | Copy | Staging | { clear: GPUBuffer; offset: number; bytes: number }

export function rangeOf(binding: Binding): BufferRange {
  if (binding instanceof GpuBuffer) return { buffer: binding, offset: 0, bytes: binding.bytes }
  if (binding instanceof GpuTexture) throw new GpuError('a texture has no byte range')
  return binding
}

/** Whether a range begins where another ends. */
export function follows(before: BufferRange, { buffer, offset }: BufferRange): boolean {
  return buffer === before.buffer && offset === before.offset + before.bytes
}

/** The bytes of an array, with zeros up to a multiple of 4. */
export function paddedBytes(data: ArrayBufferView): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength)
  if (bytes.length % 4 === 0) return bytes
  const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4)
  padded.set(bytes)
  return padded
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

  /** Writes the parameters of `commands`. @returns for each dispatch that has parameters, where they lie */
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
 * Encodes commands, dispatches that follow each other in one pass.
 * @param how.uniforms where the adapter has no immediates @param how.timer times passes, or dispatches in passes of their own
 * @returns how many kernels are sent for the first time
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
