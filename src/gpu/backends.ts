/**
 * Chooses which of Dawn's backends (Vulkan, D3D12, Metal) to search for adapters. Systems have one, except Windows. There Dawn would choose D3D12,
 * but Vulkan is tried first, because the kernels were tested and measured on it, including matrix units and multiply-adds that round once.
 * `DAWN_RL_BACKEND` names another backend.
 */
import { UserError } from '../common/errors.ts'

/** Backends that support core WebGPU. */
const BACKENDS = ['vulkan', 'd3d12', 'metal']

/**
 * The backends to try, the preferred one first; undefined is Dawn's own choice.
 * @throws UserError if DAWN_RL_BACKEND is not the name of a backend
 */
export function backendsOf(
  platform: NodeJS.Platform = process.platform,
  asked = process.env.DAWN_RL_BACKEND,
): (string | undefined)[] {
  if (asked && !BACKENDS.includes(asked))
    throw new UserError(`DAWN_RL_BACKEND=${asked} is not supported: set it to one of ${BACKENDS.join(', ')}, or unset it.`)
  if (asked) return [asked]
  return platform === 'win32' ? ['vulkan', 'd3d12'] : [undefined]
}

/** Dawn's flags that select a backend. */
export const backendFlags = (backend: string | undefined): string[] => (backend ? [`backend=${backend}`] : [])

/** An adapter and the Dawn instance that it belongs to. */
export interface Found {
  gpu: GPU
  adapter: GPUAdapter
}

/**
 * The adapters that a run may use, best first: real GPUs before software adapters, and each kind in the order of `backends`. A backend is loaded only
 * when it is needed.
 * @param create creates a Dawn instance with these additional flags
 * @param isSoftware whether the adapter is a CPU that acts as a GPU
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

/**
 * A backend's adapter, or undefined: Dawn throws an error that lists the adapters if none has the requested name, or the system has no such backend.
 */
async function findIn(create: (flags: string[]) => GPU, backend: string | undefined): Promise<Found | undefined> {
  try {
    const gpu = create(backendFlags(backend))
    const adapter = await findAdapter(gpu)
    return adapter ? { gpu, adapter } : undefined
  } catch {
    return undefined
  }
}

/** An instance's adapter, preferably a real GPU. Dawn lists adapters in the driver's order, so both power preferences are tried. */
export async function findAdapter(gpu: GPU): Promise<GPUAdapter | null> {
  let software: GPUAdapter | null = null
  for (const powerPreference of ['high-performance', 'low-power'] as const) {
    const adapter = await gpu.requestAdapter({ powerPreference })
    if (adapter && !adapter.info.isFallbackAdapter) return adapter
    software ??= adapter
  }
  return software
}
