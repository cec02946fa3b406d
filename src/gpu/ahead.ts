/**
 * Compiles kernels to machine code before their first use, on several cores. Lavapipe compiles a pipeline only when it is first dispatched, one after
 * another on the thread that runs the device's commands, and a large kernel takes seconds. So helper devices are opened just for compiling: a
 * dispatch of 0 workgroups makes a helper compile a kernel, and the main device then finds it in the driver's cache.
 */
import { availableParallelism } from 'node:os'
import { cacheFault, isLavapipe } from './driver-cache.ts'
import { collectYoung } from './heap.ts'
import { napping } from './waits.ts'
import type { BindingDeclaration } from './wgsl.ts'

/** A kernel compiled on one device. */
export interface Made {
  pipeline: GPUComputePipeline
  layout: GPUBindGroupLayout
  /** Layout of the uniform that holds the kernel's parameters. */
  uniform?: GPUBindGroupLayout
}

/** A kernel that has no pipeline yet. */
export interface Unmade {
  make: (device: GPUDevice) => Made
  bindings: BindingDeclaration[]
  /** Size of the parameters in bytes; 0 if there are none or they are in a uniform. */
  immediateBytes: number
  /** Length of the source in characters, roughly proportional to the compile time. */
  length: number
  /** Creates the main device's pipeline; called while the helper compiles. */
  makeHere: () => void
}

/** Maximum helpers: each compiles one kernel at a time, which takes up to 100 MB. */
const mostHelpers = 4
/** If a kernel of medium length took fewer milliseconds than this, it was already in the driver's cache. */
const inCache = 40
/** Fewest kernels for which helpers are opened. */
const worthIt = 4
/** Size of a dummy buffer in bytes: no kernel's binding requires more, and none is read. */
const dummyBytes = 1 << 16

/**
 * How many helpers are useful: none with a single core, with a driver that does not compile at the first use, or without its cache on disk.
 * @param adapter the adapter's name
 */
export function helpersFor(adapter: string, env: NodeJS.ProcessEnv = process.env): number {
  const cores = availableParallelism()
  return cores > 1 && isLavapipe(adapter) && !cacheFault(env) ? Math.min(cores, mostHelpers) : 0
}

/**
 * Compiles kernels on helpers, the largest first. It begins with two kernels of medium length: if both are in the driver's cache, an earlier process
 * has compiled them all, and nothing more is done. Failures are ignored, whether a helper cannot be opened or reports an error: the kernel is then
 * compiled at its first use, which reports what is wrong with it.
 */
export async function compileAhead(kernels: Unmade[], helpers: number, open: () => Promise<GPUDevice>): Promise<void> {
  if (kernels.length < worthIt) return
  const left = kernels.toSorted((a, b) => b.length - a.length)
  /**
   * Compiles kernels on one helper until none are left.
   * @returns how many were in the driver's cache
   */
  const help = async (next: () => Unmade | undefined): Promise<number> => {
    let known = 0
    const device = await open().catch(() => undefined)
    if (!device) return known
    device.addEventListener('uncapturederror', (event) => event.preventDefault())
    const dummies = new Dummies(device)
    try {
      for (let kernel = next(); kernel; kernel = next()) {
        dummies.dispatch(kernel, kernel.make(device))
        kernel.makeHere()
        const begin = performance.now()
        await napping(device.queue.onSubmittedWorkDone())
        known += Number(performance.now() - begin < inCache)
        // A module holds up to 27 MB (kernel.ts).
        collectYoung()
      }
    } catch {
      // The remaining kernels are compiled by other helpers or at their first use.
    } finally {
      device.destroy()
    }
    return known
  }
  const probes = [2, 4].flatMap((part) => left.splice(Math.floor(left.length / part), 1))
  const tried = probes.length
  if ((await help(() => probes.shift())) === tried) return
  await Promise.all(Array.from({ length: helpers }, () => help(() => left.shift())))
}

/** Dispatches that run no invocation, and so read and write nothing. */
class Dummies {
  readonly #device: GPUDevice
  /** One for each binding, because a buffer that is written may be bound only once; the same holds for views. */
  readonly #buffers: GPUBuffer[] = []
  readonly #views = new Map<string, GPUTextureView>()

  constructor(device: GPUDevice) {
    this.#device = device
  }

  dispatch({ bindings, immediateBytes }: Unmade, { pipeline, layout, uniform }: Made): void {
    const entries = bindings.map((b, i) => ({
      binding: b.binding,
      resource: b.format ? this.#view(i, b.format) : this.#buffer(i),
    }))
    const encoder = this.#device.createCommandEncoder()
    const pass = encoder.beginComputePass()
    pass.setPipeline(pipeline)
    pass.setBindGroup(0, this.#device.createBindGroup({ layout, entries }))
    if (immediateBytes) pass.setImmediates(0, new ArrayBuffer(immediateBytes))
    if (uniform) {
      const resource = { buffer: this.#buffer(bindings.length), size: 64 }
      pass.setBindGroup(1, this.#device.createBindGroup({ layout: uniform, entries: [{ binding: 0, resource }] }), [0])
    }
    pass.dispatchWorkgroups(0)
    pass.end()
    this.#device.queue.submit([encoder.finish()])
  }

  #buffer(at: number): GPUBuffer {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.UNIFORM
    return (this.#buffers[at] ??= this.#device.createBuffer({ size: dummyBytes, usage }))
  }

  #view(at: number, format: GPUTextureFormat): GPUTextureView {
    const name = `${at} ${format}`
    let view = this.#views.get(name)
    if (!view) {
      const texture = this.#device.createTexture({ size: [1, 1], format, usage: GPUTextureUsage.STORAGE_BINDING })
      this.#views.set(name, (view = texture.createView()))
    }
    return view
  }
}
