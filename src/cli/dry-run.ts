/** `train --dry-run`: the resolved config and what it would need. Reads the model's shape, loads no weights, starts nothing. */
import { messageOf } from '../common/errors.ts'
import { batchLine } from '../config/load.ts'
import { memoryOf, memoryTable } from '../config/memory.ts'
import type { RunConfig } from '../config/schema.ts'
import { stringifyConfig } from '../config/toml-write.ts'
import { listAdapters } from '../gpu/inventory.ts'
import { openModel } from '../model/open.ts'

export async function dryRun(config: RunConfig): Promise<void> {
  console.log(stringifyConfig(config))
  console.log(`# ${batchLine(config)}`)
  const adapters = await listAdapters()
  const best = adapters.find((a) => !a.software) ?? adapters[0]
  console.log(
    best ? `# adapter: ${best.description}${best.software ? ' (software)' : ''}` : '# no WebGPU adapter: node cli.js doctor',
  )
  try {
    const model = await openModel(config.model.name)
    const limits = best?.limits as { maxStorageBufferBindingSize: number; maxBufferSize: number } | undefined
    const table = memoryTable(memoryOf(config, model.config), model.config, limits)
    console.log(`# GPU memory for ${model.name}\n${table.replaceAll(/^/gm, '#')}`)
    model.close()
  } catch (error) {
    // The config itself is fine: a model that is not here yet must not hide that.
    console.log(`# no memory table: ${messageOf(error)}`)
  }
}
