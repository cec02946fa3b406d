/** Compiled kernels: one pipeline for each variant, and the cache that compiles each only once. */
import { availableParallelism } from 'node:os'
import { relative } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { messageOf } from '../common/errors.ts'
import type { GpuFacts } from './adapter.ts'
import { compileAhead, helpersFor, type Unmade } from './ahead.ts'
import { GpuError } from './errors.ts'
import { collectYoung } from './heap.ts'
import { shuffled } from './shuffle.ts'
import { capacityOf, type Count } from './size.ts'
import { bindingsOf, expandWgsl, paramsOf, type BindingDeclaration, type Constants } from './wgsl.ts'

export interface Kernel {
  /** A readable name made of file name and constants, for errors, timings and traces. */
  label: string
  pipeline: GPUComputePipeline
  layout: GPUBindGroupLayout
  bindings: BindingDeclaration[]
  params: { name: string; type: 'u32' | 'i32' | 'f32' }[]
  /** Id of the bind group layout, for cache keys. Kernels with the same kinds of bindings share it. */
  layoutId: number
  /** Whether it was submitted before. Software drivers generate machine code only at the first submit. */
  sent: boolean
  /** Creates another pipeline of the kernel, whose machine code is at another address (second-copies.ts). */
  copy: () => Promise<GPUComputePipeline>
}

/** A kernel that may not have its pipeline yet. */
type Coming = Omit<Kernel, 'pipeline'> & Partial<Kernel>

/** A kernel that is not compiled yet. */
interface Waiting extends Unmade {
  /** Like `makeHere`, but on one of Dawn's threads; errors are reported. */
  makeHereSoon: () => Promise<void>
}

/** The most pipelines that are compiled at once: a driver's compiler may hold a hundred megabytes for each. */
const mostAtOnce = 8

export class KernelCache {
  readonly #device: GPUDevice
  readonly #facts: GpuFacts
  readonly #another: (() => Promise<GPUDevice>) | undefined
  /** By the kinds of their bindings. */
  readonly #layouts = new Map<string, { layout: GPUBindGroupLayout; layoutId: number }>()
  /** By path and constants. (Labels are not unique: kernels in different folders may have the same.) */
  readonly #kernels = new Map<string, Kernel>()
  /** Kernels that are not compiled yet, by the same key. */
  readonly #waiting = new Map<string, Waiting>()
  /** The last call of `compile`. The next one starts after it. */
  #compiling: Promise<void> = Promise.resolve()
  /** Bind group layout of the uniform buffer for parameters, if the adapter has no immediates. */
  readonly uniformLayout: GPUBindGroupLayout | undefined

  /**
   * @param another opens a helper device (ahead.ts). Absent with checks on, as Dawn would then print a warning for each dispatch without workgroups.
   */
  constructor(device: GPUDevice, facts: GpuFacts, another?: () => Promise<GPUDevice>) {
    this.#device = device
    this.#facts = facts
    this.#another = another
    if (!facts.immediates) this.uniformLayout = uniformLayoutOf(device)
  }

  get size(): number {
    return this.#kernels.size
  }

  /**
   * The kernel of a `.wgsl` file, in the variant selected by `constants`.
   * @param later whether to leave it uncompiled, and without a pipeline, until `compile` or a call without this flag
   * @param shuffle whether to run its invocations in another order (shuffle.ts)
   * @throws GpuError with the compiler's message and the line that it refers to
   */
  get(path: string, constants: Constants, later: boolean, shuffle = false): Kernel {
    const key = `${path} ${JSON.stringify(constants)}${shuffle ? ' shuffled' : ''}`
    let kernel = this.#kernels.get(key)
    if (!kernel) this.#kernels.set(key, (kernel = this.#expand(path, key, constants, shuffle)))
    if (!later) this.#waiting.get(key)?.makeHere()
    return kernel
  }

  /**
   * Compiles the kernels that are not compiled yet. On a software adapter, one in each turn of the event loop: a compiled kernel's module holds up to
   * 27 MB that V8 does not know of and frees only between turns. Compiling all in one turn would hold 100 MB more.
   * @param used whether all of them are about to be used. Then also compiles to machine code, which some drivers leave to the first use (ahead.ts)
   */
  async compile(used = true): Promise<void> {
    this.#compiling = this.#compiling.catch(() => {}).then(() => this.#compile(used))
    await this.#compiling
  }

  async #compile(used: boolean): Promise<void> {
    if (this.#waiting.size === 0) return
    const helpers = used && this.#another ? helpersFor(this.#facts.name) : 0
    if (helpers > 0) await compileAhead([...this.#waiting.values()], helpers, this.#another!)
    if (!this.#facts.software) return await this.#together()
    for (const kernel of this.#waiting.values()) {
      kernel.makeHere()
      await turn()
      collectYoung()
    }
  }

  /** GPU drivers compile when a pipeline is created, for up to half a second: several at once on Dawn's threads, as the event loop continues. */
  async #together(): Promise<void> {
    const left = this.#waiting.values()
    const work = async (): Promise<void> => {
      for (const kernel of left) await kernel.makeHereSoon()
    }
    await Promise.all(Array.from({ length: Math.min(availableParallelism(), mostAtOnce) }, work))
  }

  #expand(path: string, key: string, constants: Constants, shuffle: boolean): Kernel {
    const label = labelOf(path, constants)
    const { source, params } = this.#sourceOf(path, label, constants, shuffle)
    const bindings = bindingsOf(source)
    const { layout, layoutId } = this.#layoutOf(bindings)
    const inUniform = params.length > 0 && !this.#facts.immediates
    const immediateBytes = inUniform ? 0 : params.length * 4
    const layouts = [layout, inUniform ? this.uniformLayout : undefined]
    const describe = (text: string) => descriptorOf(this.#device, label, text, layouts, immediateBytes)
    const kernel: Coming = {
      label,
      layout,
      bindings,
      params,
      layoutId,
      sent: false,
      copy: async () => {
        // Expanded again, as all sources would take megabytes. The constant makes the text differ: for equal text Dawn returns the same pipeline.
        const text = `${this.#sourceOf(path, label, constants, shuffle).source}\nconst SECOND_COPY = 2;`
        // Not on Dawn's threads: a process that exits while they compile would print spurious errors.
        this.#device.pushErrorScope('validation')
        const pipeline = this.#device.createComputePipeline(describe(text))
        const error = await this.#device.popErrorScope()
        if (error) throw new GpuError(`a copy of kernel '${label}' does not compile: ${error.message}`)
        return pipeline
      },
    }
    this.#waiting.set(key, this.#waitingFor(kernel, key, source, describe, immediateBytes))
    return kernel as Kernel
  }

  /** Separate from `#expand`: closures of one function share their scope, so `copy`, which a kernel keeps, would keep `source` alive as well. */
  #waitingFor(
    kernel: Coming,
    key: string,
    source: string,
    describe: (text: string) => GPUComputePipelineDescriptor,
    immediateBytes: number,
  ): Waiting {
    const { label, bindings, params } = kernel
    const inUniform = params.length > 0 && immediateBytes === 0
    const broken = (message: string): void =>
      this.onError?.(new GpuError(`kernel '${label}' does not compile: ${message}${excerpt(source, message)}`))
    return {
      bindings,
      immediateBytes,
      length: source.length,
      make: (device) => {
        const [own, uniform] = [layoutOf(device, bindings), inUniform ? uniformLayoutOf(device) : undefined]
        const pipeline = device.createComputePipeline(descriptorOf(device, label, source, [own, uniform], immediateBytes))
        return { layout: own, uniform, pipeline }
      },
      makeHere: () => {
        if (kernel.pipeline) return
        this.#device.pushErrorScope('validation')
        kernel.pipeline = this.#device.createComputePipeline(describe(source))
        // The scope reports later. A broken kernel is then reported by the device's error handler, with this label.
        void this.#device.popErrorScope().then((error) => error && broken(error.message))
        this.#waiting.delete(key)
      },
      makeHereSoon: async () => {
        if (kernel.pipeline) return
        this.#device.pushErrorScope('validation')
        const descriptor = describe(source)
        const error = await this.#device.popErrorScope()
        const make = () => this.#device.createComputePipelineAsync(descriptor)
        const pipeline = error ? broken(error.message) : await make().catch((thrown: unknown) => broken(messageOf(thrown)))
        // If someone needed the kernel meanwhile, it already has a pipeline.
        if (pipeline) kernel.pipeline ??= pipeline
        this.#waiting.delete(key)
      },
    }
  }

  /** The source text to compile, and the parameters that it declares. */
  #sourceOf(path: string, label: string, constants: Constants, shuffle: boolean): { source: string; params: Kernel['params'] } {
    let source = expandWgsl(path, constants)
    if (shuffle) source = shuffled(source, constants, this.#facts.subgroupSize)
    const params = paramsOf(source, label)
    const declaration = this.#facts.immediates ? 'var<immediate> p: Params;' : '@group(1) @binding(0) var<uniform> p: Params;'
    const enables: string[] = []
    // Comments are removed: one that mentions f16 would enable it, which adapters without f16 refuse.
    const code = source.replaceAll(/\/\/.*/g, '')
    if (/\bsubgroup[A-Z]/.test(code)) {
      enables.push('enable subgroups;', 'diagnostic(off, subgroup_uniformity);')
      if (this.#facts.sizedSubgroups) {
        enables.push('enable subgroup_size_control;')
        source = source.replace('@compute', `@subgroup_size(${this.#facts.subgroupSize}) @compute`)
      }
    }
    if (/\bf16\b/.test(code)) enables.push('enable f16;')
    if (/\bsubgroup_matrix/.test(code)) {
      enables.push('enable chromium_experimental_subgroup_matrix;', 'diagnostic(off, chromium.subgroup_matrix_uniformity);')
    }
    if (this.#facts.immediates && params.length > 0) enables.push('requires immediate_address_space;')
    return { source: [...enables, source, params.length > 0 ? declaration : ''].join('\n'), params }
  }

  #layoutOf(bindings: BindingDeclaration[]): { layout: GPUBindGroupLayout; layoutId: number } {
    const key = JSON.stringify(bindings.map(({ binding, kind, access, format }) => [binding, kind, access, format]))
    let known = this.#layouts.get(key)
    if (!known) this.#layouts.set(key, (known = { layout: layoutOf(this.#device, bindings), layoutId: this.#layouts.size }))
    return known
  }

  onError: ((error: GpuError) => void) | undefined
}

function layoutOf(device: GPUDevice, bindings: BindingDeclaration[]): GPUBindGroupLayout {
  return device.createBindGroupLayout({
    entries: bindings.map((b) => ({
      binding: b.binding,
      visibility: GPUShaderStage.COMPUTE,
      ...(b.kind === 'texture'
        ? { storageTexture: { access: b.access, format: b.format! } }
        : { buffer: { type: b.kind === 'read' ? ('read-only-storage' as const) : ('storage' as const) } }),
    })),
  })
}

function uniformLayoutOf(device: GPUDevice): GPUBindGroupLayout {
  const buffer = { type: 'uniform', hasDynamicOffset: true } as const
  return device.createBindGroupLayout({ entries: [{ binding: 0, visibility: GPUShaderStage.COMPUTE, buffer }] })
}

function descriptorOf(
  device: GPUDevice,
  label: string,
  code: string,
  layouts: (GPUBindGroupLayout | undefined)[],
  immediateSize: number,
): GPUComputePipelineDescriptor {
  const bindGroupLayouts = layouts.filter((layout) => layout !== undefined)
  const layout = device.createPipelineLayout({ label, bindGroupLayouts, immediateSize })
  return { label, layout, compute: { module: device.createShaderModule({ label, code }) } }
}

function labelOf(path: string, constants: Constants): string {
  const name = relative('', path)
    .replace(/^.*kernels\//, '')
    .replace(/\.wgsl$/, '')
  const parts = Object.entries(constants).map(([k, v]) => `${k}=${v}`)
  return parts.length > 0 ? `${name}(${parts.join(',')})` : name
}

/** The source line to which a compiler message refers. */
function excerpt(source: string, message: string): string {
  const line = /:(\d+):\d+ error/.exec(message)?.[1]
  return line ? `\n  line ${line}: ${source.split('\n')[Number(line) - 1]?.trim()}` : ''
}

/**
 * The bytes of a kernel's `struct Params`.
 * @param open called with each value, and a function that replaces its number
 * @throws GpuError for a missing parameter
 */
export function encodeParams(
  kernel: Kernel,
  params: Record<string, Count>,
  open: (count: Count, put: (value: number) => void) => void,
): ArrayBuffer | undefined {
  if (kernel.params.length === 0) return undefined
  const data = new DataView(new ArrayBuffer(kernel.params.length * 4))
  kernel.params.forEach(({ name, type }, i) => {
    const value = params[name]
    if (value === undefined) throw new GpuError(`${kernel.label}: parameter '${name}' is missing`)
    put(data, i * 4, type, capacityOf(value))
    if (typeof value !== 'number') open(value, (n) => put(data, i * 4, type, n))
  })
  return data.buffer
}

function put(data: DataView, at: number, type: 'u32' | 'i32' | 'f32', value: number): void {
  if (type === 'f32') data.setFloat32(at, value, true)
  else if (type === 'i32') data.setInt32(at, value, true)
  else data.setUint32(at, value, true)
}
