/**
 * Every WebGPU adapter of the machine, for `doctor`. WebGPU gives one adapter to a request, so Dawn is asked for its list first (it
 * names all adapters when asked for one that is not there) and then for each by name.
 */
import { messageOf } from '../common/errors.ts'
import { backendFlags, backendsOf } from './backends.ts'
import { allLimits, createInstance, dawnFlags, isSoftware, matrixConfigsOf } from './adapter.ts'

export interface AdapterFacts {
  /** Part of this is what DAWN_RL_ADAPTER takes. */
  name: string
  /** 'vulkan', 'metal', 'd3d12', ... */
  backend: string
  vendor: string
  architecture: string
  /** The driver's own words, its version among them. */
  description: string
  /** A CPU that plays a GPU. */
  software: boolean
  /** [smallest, largest] invocations of a subgroup, or undefined where there are none. */
  subgroupSizes: [number, number] | undefined
  /** Matrix units, as 'MxNxK component -> result'. */
  subgroupMatrixConfigs: string[]
  f16: boolean
  timestamps: boolean
  features: string[]
  limits: Record<string, number>
  wgslFeatures: string[]
  /** Why no device could be opened on it; undefined where one could. */
  problem: string | undefined
}

/**
 * Lists the adapters in Dawn's order, each tried by opening a device.
 * @throws Error where the `webgpu` package does not load.
 */
export async function listAdapters(): Promise<AdapterFacts[]> {
  const list: AdapterFacts[] = []
  for (const { backend, name } of await namedAdapters()) {
    const gpu = createInstance([...dawnFlags(true), `backend=${backend}`, `adapter=${name}`])
    // A backend that Dawn names and that does not reach WebGPU's core (old OpenGL) gives null, or throws.
    const adapter = await gpu.requestAdapter().catch(() => null)
    if (adapter) list.push(await factsOf(gpu, adapter, backend, name))
  }
  return list
}

async function namedAdapters(): Promise<{ backend: string; name: string }[]> {
  let words = ''
  for (const backend of backendsOf()) {
    try {
      await createInstance([...dawnFlags(true), ...backendFlags(backend), 'adapter=(the list of all adapters)']).requestAdapter()
    } catch (error) {
      words += `${messageOf(error)}\n`
    }
  }
  const found = [...words.matchAll(/backend: '([^']*)', name: '(.*)'/g)].map(([, backend, name]) => ({ backend, name }))
  // Dawn's null backend computes nothing
  const real = found.filter(({ backend }) => backend !== 'null')
  return real.filter((a, i) => real.findIndex((b) => b.backend === a.backend && b.name === a.name) === i)
}

async function factsOf(gpu: GPU, adapter: GPUAdapter, backend: string, name: string): Promise<AdapterFacts> {
  const { info } = adapter
  const features = [...adapter.features].toSorted()
  let problem: string | undefined
  try {
    const device = await adapter.requestDevice()
    device.destroy()
  } catch (error) {
    problem = messageOf(error)
  }
  return {
    name,
    backend,
    vendor: info.vendor,
    architecture: info.architecture,
    description: info.description,
    software: isSoftware(info, name),
    subgroupSizes: features.includes('subgroups') ? [info.subgroupMinSize ?? 0, info.subgroupMaxSize ?? 0] : undefined,
    subgroupMatrixConfigs: matrixConfigsOf(info).map(
      (c) => `${c.M}x${c.N}x${c.K} ${c.componentType} -> ${c.resultComponentType}`,
    ),
    f16: features.includes('shader-f16'),
    timestamps: features.includes('timestamp-query'),
    features,
    limits: allLimits(adapter),
    wgslFeatures: [...gpu.wgslLanguageFeatures].toSorted(),
    problem,
  }
}
