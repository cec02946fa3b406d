/** Opening and closing what verbs work with: the device for a model, and weights in the place of others. */
import { Gpu } from '../gpu/gpu.ts'
import type { Engine } from '../inference/engine.ts'
import { openModel } from '../model/open.ts'
import type { ModelConfig } from '../model/types.ts'
import { gainsByWideVectors, type WideVectorWork } from '../model/wide-vectors.ts'

/** The device for work with one model; says so where it is no GPU. */
export async function openGpu(model: ModelConfig, work: WideVectorWork): Promise<Gpu> {
  const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([model], work) })
  if (gpu.facts.software) console.error(`no GPU here: running on the CPU (${gpu.facts.name})`)
  return gpu
}

/** Puts a model's weights into an engine, in the place of those that it has. */
export async function reloadWeights(engine: Engine, ref: string): Promise<void> {
  const files = await openModel(ref)
  try {
    await engine.reloadWeights(files)
  } finally {
    files.close()
  }
}

/** Closes all of it, the newest first, once. */
export async function closeAll(opened: { close(): unknown }[]): Promise<void> {
  for (const one of opened.splice(0).toReversed()) await one.close()
}
