/** A version of the policy, and how it is loaded into a vLLM server. */
import { createHash } from 'node:crypto'
import { createReadStream, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { PolicyVersion } from '../../common/types.ts'
import type { VllmApi } from './api.ts'
import { explainLoadError, hasNoPlace, isThereAlready } from './checks.ts'
import { withRetries } from './wait.ts'

/** A version's weights, where they are, and how many requests use them. */
export interface Policy {
  version: PolicyVersion
  /** Folder of the weights; empty for the model as the server loaded it. */
  dir: string
  /** The model's name in requests. */
  model: string
  sha: string
  /** The trainer's log-probabilities for the probe. */
  scores: ArrayLike<number>
  inFlight: number
}

/** SHA-256 of a folder's safetensors, concatenated in the order of their names; for an adapter, the same as `sha256sum` of its file. */
export async function shaOf(dir: string): Promise<string> {
  const hash = createHash('sha256')
  for (const file of readdirSync(dir)
    .filter((f) => f.endsWith('.safetensors'))
    .toSorted()) {
    for await (const chunk of createReadStream(join(dir, file))) hash.update(chunk as Buffer)
  }
  return hash.digest('hex')
}

/**
 * Loads a version's adapter into the server. May be called again after a failure.
 * @param leaving settles when all unloads that were due have reached the server or failed
 */
export async function loadAdapter(
  api: VllmApi,
  { model, dir }: Policy,
  { limitMs, rank, leaving }: { limitMs: number; rank: number; leaving: () => Promise<unknown> },
): Promise<void> {
  const load = () => api.loadAdapter(model, dir, limitMs)
  try {
    await load().catch((error: unknown) => (hasNoPlace(error) ? leaving().then(load) : Promise.reject(error)))
  } catch (error) {
    // An earlier try succeeded, but its answer was lost.
    if (!isThereAlready(error)) throw explainLoadError(error, api, rank)
  }
}

/** Unloads the adapters with a run's names, except those of some versions. One that the server does not unload within the time limit stays. */
export async function unloadAdapters(
  api: VllmApi,
  runName: string,
  { except, limitMs }: { except: readonly (PolicyVersion | undefined)[]; limitMs: number },
): Promise<void> {
  for (const { id } of await api.models()) {
    const version = id.startsWith(`${runName}-v`) ? Number(id.slice(runName.length + 2)) : NaN
    if (!Number.isInteger(version) || except.includes(version)) continue
    await withRetries(() => api.unloadAdapter(id), limitMs).catch(() => {})
  }
}

/**
 * Replaces the server's full weights; requests keep their place and their keys and values. May be called again after a failure, which leaves
 * generation frozen.
 */
export async function replaceWeights(api: VllmApi, { version, dir }: Policy, limitMs: number): Promise<void> {
  await api.pause(limitMs)
  if (dir) await api.reloadWeights(dir, limitMs)
  await api.nameWeights(String(version))
  await api.resume()
}
