/** One version of the policy, as it is brought to a vLLM server. */
import { createHash } from 'node:crypto'
import { createReadStream, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { PolicyVersion } from '../../common/types.ts'
import type { VllmApi } from './api.ts'
import { explainLoadError, hasNoPlace, isThereAlready } from './checks.ts'

/** The weights of a version, where they are, and who still uses them. */
export interface Policy {
  version: PolicyVersion
  /** Empty for the model as the server loaded it. */
  dir: string
  /** In requests. */
  model: string
  sha: string
  /** The trainer's log-probabilities of the probe. */
  scores: ArrayLike<number>
  inFlight: number
}

/** SHA-256 of a folder's safetensors, one after another in the order of their names; of an adapter, what `sha256sum` says of its file. */
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
 * @param leaving settles when the server has heard of every adapter that is to leave it
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
    // The answer to an earlier try was lost.
    if (!isThereAlready(error)) throw explainLoadError(error, api, rank)
  }
}
