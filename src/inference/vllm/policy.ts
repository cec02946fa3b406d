/** One version of the policy, as it is brought to a vLLM server. */
import { createHash } from 'node:crypto'
import { createReadStream, readdirSync } from 'node:fs'
import { join } from 'node:path'
import type { PolicyVersion } from '../../common/types.ts'

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
