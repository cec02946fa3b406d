/**
 * Which of Dawn's backends (Vulkan, D3D12, Metal) adapters are looked for in. A system has one, but for Windows. There Dawn takes D3D12 by itself, and Vulkan is
 * asked first: it alone has matrix units, f16 on NVIDIA, and multiply-adds that round once. `DAWN_RL_BACKEND` names another.
 */
import { UserError } from '../common/errors.ts'

/** Those that reach WebGPU's core. */
const BACKENDS = ['vulkan', 'd3d12', 'metal']

/**
 * The preferred backend first; undefined is Dawn's own choice.
 * @throws UserError where DAWN_RL_BACKEND names none
 */
export function backendsOf(
  platform: NodeJS.Platform = process.platform,
  asked = process.env.DAWN_RL_BACKEND,
): (string | undefined)[] {
  if (asked && !BACKENDS.includes(asked))
    throw new UserError(`DAWN_RL_BACKEND=${asked}: it takes ${BACKENDS.join(', ')}, or is left out.`)
  if (asked) return [asked]
  return platform === 'win32' ? ['vulkan', 'd3d12'] : [undefined]
}

/** Dawn's switch for it. */
export const backendFlags = (backend: string | undefined): string[] => (backend ? [`backend=${backend}`] : [])

/** An adapter and the instance that it comes from. */
export interface Found {
  gpu: GPU
  adapter: GPUAdapter
}

/**
 * The adapters that a run may take, the best first: real GPUs before software ones, and each kind by its backend.
 * @param create makes Dawn's instance with these switches more
 * @param isSoftware whether a CPU plays the GPU
 */
export async function findAdapters(
  create: (flags: string[]) => GPU,
  isSoftware: (info: GPUAdapterInfo) => boolean,
  platform: NodeJS.Platform = process.platform,
): Promise<Found[]> {
  const found: Found[] = []
  for (const backend of backendsOf(platform)) {
    try {
      const gpu = create(backendFlags(backend))
      const adapter = await findAdapter(gpu)
      if (adapter) found.push({ gpu, adapter })
    } catch {
      // Where no adapter has the name that is asked for, or the system has no such backend, Dawn throws an error that lists what there is.
    }
  }
  return found.toSorted((a, b) => Number(isSoftware(a.adapter.info)) - Number(isSoftware(b.adapter.info)))
}

/** An instance's adapter, rather a real GPU's. Dawn lists adapters in the driver's order, so it is asked with both power preferences. */
export async function findAdapter(gpu: GPU): Promise<GPUAdapter | null> {
  let software: GPUAdapter | null = null
  for (const powerPreference of ['high-performance', 'low-power'] as const) {
    const adapter = await gpu.requestAdapter({ powerPreference })
    if (adapter && !adapter.info.isFallbackAdapter) return adapter
    software ??= adapter
  }
  return software
}
