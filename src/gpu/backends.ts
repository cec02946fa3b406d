/**
 * Which of Dawn's backends (Vulkan, D3D12, Metal) adapters are looked for in. A system has one, but for Windows. There Dawn takes D3D12 by itself, and Vulkan is
 * asked first: the kernels were tested and measured on it, matrix units and multiply-adds that round once included. `DAWN_RL_BACKEND` names another.
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
 * The adapters that a run may take, the best first: real GPUs before software ones, and each kind by its backend. A backend is not loaded before it is needed.
 * @param create makes Dawn's instance with these switches more
 * @param isSoftware whether a CPU plays the GPU
 */
export async function* findAdapters(
  create: (flags: string[]) => GPU,
  isSoftware: (info: GPUAdapterInfo) => boolean,
  backends = backendsOf(),
): AsyncGenerator<Found> {
  const software: Found[] = []
  for (const backend of backends) {
    const found = await findIn(create, backend)
    if (found && isSoftware(found.adapter.info)) software.push(found)
    else if (found) yield found
  }
  yield* software
}

/** A backend's adapter. Where none has the name that is asked for, or the system has no such backend, Dawn throws an error that lists what there is. */
async function findIn(create: (flags: string[]) => GPU, backend: string | undefined): Promise<Found | undefined> {
  try {
    const gpu = create(backendFlags(backend))
    const adapter = await findAdapter(gpu)
    return adapter ? { gpu, adapter } : undefined
  } catch {
    return undefined
  }
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
