/**
 * Chooses the adapter and opens the device.
 * - `DAWN_RL_ADAPTER` (part of an adapter's name) takes precedence, then the fastest kind of adapter. A software adapter is the last choice, and
 *   `facts.software` tells the caller. For systems with several backends see backends.ts.
 * - All limits of the adapter and all features that kernels use are requested: WebGPU's default limits are those of a phone.
 */
import { create, globals } from 'webgpu'
import { CLI, SCRIPTS } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { findAdapter, findAdapters, type Found } from './backends.ts'
import { separateDriverCache } from './driver-cache.ts'
import { widestBinding } from './pool.ts'
import {
  broadcastsMemory,
  cpuKind,
  firstCacheBytes,
  fusesMultiplyAdd,
  vectorRegisters,
  widenVectors,
  type CpuKind,
} from './vector-width.ts'

Object.assign(globalThis, globals)

/** What kernels may rely on. Determined once; every variant of a kernel is chosen from these facts. */
export interface GpuFacts {
  name: string
  vendor: string
  architecture: string
  /** A CPU that acts as a GPU (lavapipe, SwiftShader). Selects the kernels made for CPU drivers. */
  software: boolean
  /** Invocations per subgroup if fixed, or requested by DAWN_RL_SUBGROUPS; otherwise 0, and kernels use workgroup memory instead. */
  subgroupSize: number
  /** Whether kernels must request that number, because the driver would otherwise choose a size. */
  sizedSubgroups: boolean
  f16: boolean
  /** Shapes of the matrix units that multiply f16 by f16 into float32; empty if there are none. */
  matrixUnits: MatrixUnit[]
  timestamps: boolean
  /** Whether parameters are passed with the command (`var<immediate>`); otherwise through a ring of uniform buffers. */
  immediates: boolean
  /** Whether a software driver compiles a multiply-add to one instruction, as Mesa does since version 26 (LLVM 22). */
  fused: boolean
  /** Number of vector registers of the CPU that a software driver runs on (vector-width.ts); not used on GPUs, like the three facts that follow. */
  vectorRegisters: number
  /** Whether that CPU's vector operations accept an operand that is broadcast from memory to all lanes (AVX-512). */
  broadcasts: boolean
  /** Kind of that CPU: some kinds need different tile sizes and unrolling. */
  cpu: CpuKind
  /** Size in bytes of that CPU's first-level data cache per core. */
  firstCache: number
  /** Whether kernels run in a permuted order, which reveals missing barriers (shuffle.ts): `DAWN_RL_SHUFFLE=1`. */
  shuffled: boolean
  limits: {
    maxBinding: number
    maxBuffer: number
    maxWorkgroupMemory: number
    maxInvocations: number
    maxTexture: number
    /** Number of storage buffers that a kernel may bind. */
    maxStorageBuffers: number
  }
}

/** The shape of a product on a matrix unit: (m, k) times (k, n). */
export interface MatrixUnit {
  m: number
  n: number
  k: number
}

/** How to choose the adapter and open the device. */
export interface OpenOptions {
  /** Part of an adapter's name; default: `DAWN_RL_ADAPTER`. */
  adapter?: string
  /** Dawn's validation and bounds checks: on in tests, off in runs. Default: whether `DAWN_RL_CHECKS` is 1. */
  checks?: boolean
  /**
   * Sets a software driver to 512-bit vectors if the CPU gains from them (vector-width.ts); for models that gain too (model/decoder/wide-vectors.ts). No
   * effect once the driver is loaded. Default: no.
   */
  wideVectors?: boolean
}

/** An open device, and what is known about it. */
export interface OpenDevice {
  gpu: GPU
  device: GPUDevice
  facts: GpuFacts
  checks: boolean
  /** Opens another device on the same adapter, with the same features. */
  another: () => Promise<GPUDevice>
}

const sizeFeature = 'subgroup-size-control'
const wantedFeatures = [
  'shader-f16',
  'subgroups',
  sizeFeature,
  'timestamp-query',
  'chromium-experimental-subgroup-matrix',
] as const

/**
 * Dawn's flags for a run with or without checks. Without `vulkan_enable_f16_on_nvidia`, Dawn hides f16 on NVIDIA. By default Dawn rounds timestamps
 * to 65.5 us to hinder spying web pages, which is too coarse for timing kernels. Its validation of the SPIR-V that its own compiler has written takes 8% of
 * the processor time of compiling a kernel.
 */
export function dawnFlags(checks: boolean): string[] {
  const on = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia', 'use_vulkan_memory_model']
  if (!checks) on.push('skip_validation', 'disable_robustness', 'disable_workgroup_init')
  return [`enable-dawn-features=${on.join(',')}`, 'disable-dawn-features=timestamp_quantization,enable_spirv_validation']
}

let loaded = false

/**
 * Creates a Dawn instance with these flags, for the whole project. Sets a software driver's environment variables first, since the first instance
 * loads the driver.
 */
export function createInstance(flags: string[], { wideVectors = false } = {}): GPU {
  if (!loaded) {
    widenVectors(wideVectors)
    separateDriverCache()
  }
  loaded = true
  return create(flags)
}

/**
 * Opens the adapter that `options` ask for.
 * @throws UserError if there is none, naming a command that helps; Error if no device can be opened
 */
export async function openDevice(options: OpenOptions = {}): Promise<OpenDevice> {
  const checks = options.checks ?? process.env.DAWN_RL_CHECKS === '1'
  const name = options.adapter ?? process.env.DAWN_RL_ADAPTER
  const flags = dawnFlags(checks)
  if (name) flags.push(`adapter=${name}`)
  const found = findAdapters((more) => createInstance([...flags, ...more], options), isSoftware)
  const opened = await openFirst(found)
  if (!opened) throw new UserError(noAdapter(name))
  const { gpu, adapter, device } = opened
  // An adapter can open only one device.
  const another = async (): Promise<GPUDevice> => open((await findAdapter(gpu))!, 'dawn-rl, beside')
  const features = new Set<string>(adapter.features)
  const info = adapter.info
  const software = isSoftware(info)
  const subgroups = subgroupsOf(info, features)
  const language = gpu.wgslLanguageFeatures
  const facts: GpuFacts = {
    name: info.description || info.device || info.architecture,
    vendor: info.vendor,
    architecture: info.architecture,
    software,
    ...subgroups,
    f16: features.has('shader-f16'),
    // With subgroups of 16, a kernel that uses lavapipe's matrix units crashes the process (Mesa 26.2).
    matrixUnits:
      features.has('chromium-experimental-subgroup-matrix') && !(software && subgroups.subgroupSize === 16)
        ? matrixUnitsOf(info)
        : [],
    timestamps: features.has('timestamp-query'),
    immediates: language.has('immediate_address_space') && process.env.DAWN_RL_IMMEDIATES !== '0',
    fused: software && fusesMultiplyAdd(info.description),
    vectorRegisters: software ? vectorRegisters() : 32,
    broadcasts: software && broadcastsMemory(),
    cpu: software ? cpuKind() : 'other',
    firstCache: software ? firstCacheBytes() : 0,
    shuffled: process.env.DAWN_RL_SHUFFLE === '1',
    limits: limitsOf(device.limits),
  }
  return { gpu, device, facts, checks, another }
}

/**
 * Opens the first of the adapters that can be opened; undefined if there are no adapters.
 * @throws the first adapter's error if none can be opened
 */
async function openFirst(found: AsyncIterable<Found>): Promise<(Found & { device: GPUDevice }) | undefined> {
  let failed: unknown
  for await (const one of found) {
    try {
      return { ...one, device: await open(one.adapter, 'dawn-rl') }
    } catch (error) {
      failed ??= error
    }
  }
  if (failed) throw failed
  return undefined
}

function open(adapter: GPUAdapter, label: string): Promise<GPUDevice> {
  const requiredFeatures = wantedFeatures.filter((f) => adapter.features.has(f)) as GPUFeatureName[]
  return adapter.requestDevice({ requiredFeatures, requiredLimits: allLimits(adapter), label })
}

function noAdapter(name: string | undefined): string {
  const backend = process.env.DAWN_RL_BACKEND
  const seen = `'${CLI} doctor' lists the adapters of this machine.`
  if (name)
    return `No WebGPU adapter has '${name}' in its name (DAWN_RL_ADAPTER${backend ? `, through ${backend}` : ''}). ${seen}`
  if (backend) return `No WebGPU adapter was found through ${backend} (DAWN_RL_BACKEND). Unset it; ${seen}`
  // The script installs drivers for Linux only.
  const mend =
    process.platform === 'linux'
      ? `Run 'bash ${SCRIPTS}/setup.sh' to install a software adapter, or '${CLI} doctor' to see why.`
      : `Update the graphics driver, or run '${CLI} doctor' to see why.`
  return `No WebGPU adapter was found on this machine. ${mend}`
}

/**
 * The subgroup size that kernels can rely on. AMD's and Intel's drivers choose a size per kernel, unless it requests one.
 * @throws UserError if DAWN_RL_SUBGROUPS asks for a size that the adapter does not have
 */
function subgroupsOf(info: GPUAdapterInfo, features: Set<string>): Pick<GpuFacts, 'subgroupSize' | 'sizedSubgroups'> {
  const { subgroupMinSize: least = 0, subgroupMaxSize: most = 0 } = info
  const asked = process.env.DAWN_RL_SUBGROUPS
  if (!features.has('subgroups') || asked === '0') return { subgroupSize: 0, sizedSubgroups: false }
  if (!asked) return { subgroupSize: least === most ? least : 0, sizedSubgroups: false }
  const size = Number(asked)
  if (features.has(sizeFeature) && size >= least && size <= most && Number.isInteger(Math.log2(size)))
    return { subgroupSize: size, sizedSubgroups: true }
  const has = least === most ? `${least} lanes` : `${least} to ${most} lanes, in powers of two`
  const why = features.has(sizeFeature) ? `have ${has}` : 'have a number of lanes that its driver chooses'
  throw new UserError(
    `DAWN_RL_SUBGROUPS=${asked}: this adapter's subgroups ${why}. Unset it, or set it to 0 for kernels without subgroups.`,
  )
}

/** An adapter's limits by name. They are getters of the object's prototype, so a spread would miss them. */
export function allLimits({ limits }: GPUAdapter): Record<string, number> {
  const found: Record<string, number> = {}
  for (const key in limits) {
    const value = (limits as unknown as Record<string, unknown>)[key]
    if (typeof value === 'number') found[key] = value
  }
  return found
}

/** The limits that kernels and the pool depend on. */
export function limitsOf(limits: GPUSupportedLimits): GpuFacts['limits'] {
  return {
    maxBinding: Math.min(limits.maxStorageBufferBindingSize, widestBinding),
    maxBuffer: limits.maxBufferSize,
    maxWorkgroupMemory: limits.maxComputeWorkgroupStorageSize,
    maxInvocations: limits.maxComputeInvocationsPerWorkgroup,
    maxTexture: limits.maxTextureDimension2D,
    maxStorageBuffers: limits.maxStorageBuffersPerShaderStage,
  }
}

/**
 * Whether the adapter is a CPU that acts as a GPU.
 * @param name the adapter's name in Dawn's list, if known
 */
export function isSoftware({ isFallbackAdapter, device, description, architecture }: GPUAdapterInfo, name = ''): boolean {
  return isFallbackAdapter || /llvmpipe|swiftshader|software/i.test(`${name} ${device} ${description} ${architecture}`)
}

/** The matrix shapes that an adapter reports; the WebGPU types do not have this field yet. */
export function matrixConfigsOf(
  info: GPUAdapterInfo & {
    subgroupMatrixConfigs?: Iterable<{ componentType: string; resultComponentType: string; M: number; N: number; K: number }>
  },
) {
  return [...(info.subgroupMatrixConfigs ?? [])]
}

function matrixUnitsOf(info: GPUAdapterInfo): MatrixUnit[] {
  return matrixConfigsOf(info)
    .filter((c) => c.componentType === 'f16' && c.resultComponentType === 'f32')
    .map(({ M, N, K }) => ({ m: M, n: N, k: K }))
}
