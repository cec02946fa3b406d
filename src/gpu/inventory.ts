/**
 * Lists every WebGPU adapter of the machine, for `doctor`. WebGPU returns one adapter per request, so Dawn is first asked for its list (its error
 * names all adapters when asked for one that does not exist), and then for each adapter by name.
 */
import { messageOf } from '../common/errors.ts'
import { backendFlags, backendsOf } from './backends.ts'
import { allLimits, createInstance, dawnFlags, isSoftware, matrixConfigsOf } from './adapter.ts'

/** An adapter as `doctor` shows it. */
export interface AdapterFacts {
  /** `DAWN_RL_ADAPTER` may be any part of it. */
  name: string
  /** 'vulkan', 'metal', 'd3d12', ... */
  backend: string
  vendor: string
  architecture: string
  /** The driver's own description, including its version. */
  description: string
  /** A CPU that acts as a GPU. */
  software: boolean
  /** [smallest, largest] number of invocations in a subgroup; undefined without subgroups. */
  subgroupSizes: [number, number] | undefined
  /** Matrix units, as 'MxNxK component -> result'. */
  subgroupMatrixConfigs: string[]
  f16: boolean
  timestamps: boolean
  features: string[]
  limits: Record<string, number>
  wgslFeatures: string[]
  /** Why no device could be opened on the adapter; undefined if one could. */
  problem: string | undefined
}

/**
 * Lists the adapters in Dawn's order. Each is tried by opening a device.
 * @throws Error if the `webgpu` package does not load
 */
export async function listAdapters(): Promise<AdapterFacts[]> {
  const list: AdapterFacts[] = []
  for (const { backend, name } of await namedAdapters()) {
    const gpu = createInstance([...dawnFlags(true), `backend=${backend}`, `adapter=${name}`])
    // For a backend that Dawn lists but that does not support core WebGPU (old OpenGL), this returns null or throws.
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
  // Dawn's null backend computes nothing.
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
