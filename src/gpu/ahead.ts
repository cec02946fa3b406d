/**
 * Machine code before its first use, on several cores. Lavapipe turns a pipeline into machine code when it is first dispatched, for seconds where a kernel is large,
 * one after the other on the thread that runs a device's commands. So devices that do nothing else are opened beside the one that computes: a dispatch of no
 * workgroups makes such a helper compile the kernel, and the other device finds it in the driver's cache.
 */
import { availableParallelism } from 'node:os'
import { cacheFault, isLavapipe } from './driver-cache.ts'
import { collectYoung } from './heap.ts'
import { napping } from './waits.ts'
import type { BindingDeclaration } from './wgsl.ts'

export interface Made {
  pipeline: GPUComputePipeline
  layout: GPUBindGroupLayout
  /** Of the uniform that its parameters lie in. */
  uniform?: GPUBindGroupLayout
}

/** A kernel that has no pipeline yet. */
export interface Unmade {
  make: (device: GPUDevice) => Made
  bindings: BindingDeclaration[]
  /** Bytes of its parameters; 0 where it has none, or they lie in a uniform. */
  immediateBytes: number
  /** Characters of its source: how long compiling takes, roughly. */
  length: number
  /** Makes the pipeline of the device that computes: meanwhile the helper compiles. */
  makeHere: () => void
}

/** Helpers at most: each compiles a kernel of its own, which takes up to 100 MB meanwhile. */
const mostHelpers = 4
/** Milliseconds that a kernel of middling length takes which lies in the driver's cache already, at most. */
const inCache = 40
/** For fewer kernels no helper is opened. */
const worthIt = 4
/** No binding of a kernel asks for more, and none reads it. */
const dummyBytes = 1 << 16

/**
 * How many helpers are of use, 0 where none is: they ask for more than one core, a driver that compiles at the first use, and keeps what it compiled in a folder.
 * @param adapter its name
 */
export function helpersFor(adapter: string, env: NodeJS.ProcessEnv = process.env): number {
  const cores = availableParallelism()
  return cores > 1 && isLavapipe(adapter) && !cacheFault(env) ? Math.min(cores, mostHelpers) : 0
}

/**
 * Compiles kernels on helpers, the largest first, and is over when all are compiled, or when two of middling length turn out to lie in the driver's cache: then
 * an earlier process has compiled them, and all others are left. A helper that cannot be opened is done without, as is what one reports: such a kernel is
 * compiled at its first use, and its errors are heard there.
 */
export async function compileAhead(kernels: Unmade[], helpers: number, open: () => Promise<GPUDevice>): Promise<void> {
  if (kernels.length < worthIt) return
  const left = kernels.toSorted((a, b) => b.length - a.length)
  /** Takes kernels until there are no more; gives how many lay in the driver's cache. */
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
      // What it was to do, others do, or the first use.
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
  /** One for each binding, as what is written is bound once; likewise views. */
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
