/** Opens the device for a model, loads other weights into an engine, closes things in order. */
import { Gpu } from '../gpu/gpu.ts'
import type { Engine } from '../inference/engine.ts'
import { openModel } from '../model/files/open.ts'
import type { ModelConfig } from '../model/types.ts'
import { gainsByWideVectors, type WideVectorWork } from '../model/decoder/wide-vectors.ts'

/** Opens the device for one model; prints a line if it is not a GPU. */
export async function openGpu(model: ModelConfig, work: WideVectorWork): Promise<Gpu> {
  const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([model], work) })
  if (gpu.facts.software) console.error(`no GPU found: running on the CPU (${gpu.facts.name})`)
  return gpu
}

/** Replaces an engine's weights with those of a model. */
export async function reloadWeights(engine: Engine, ref: string): Promise<void> {
  const files = await openModel(ref)
  try {
    await engine.reloadWeights(files)
  } finally {
    files.close()
  }
}

/**
 * Closes all of these, the newest first, and empties the list, so that a second call does nothing.
 * @throws the first error of a close, once all are closed: what is left open would keep the GPU's memory and the run's lock
 */
export async function closeAll(opened: { close(): unknown }[]): Promise<void> {
  const errors: unknown[] = []
  for (const one of opened.splice(0).toReversed()) {
    try {
      await one.close()
    } catch (error) {
      errors.push(error)
    }
  }
  if (errors.length > 0) throw errors[0]
}

/** Closes all of these after an error, which says more than one of closing would. */
export const giveUp = (opened: { close(): unknown }[]): Promise<void> => closeAll(opened).catch(() => {})
