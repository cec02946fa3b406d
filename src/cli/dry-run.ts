/** `train --dry-run`: the resolved config and what it would need. Reads the model's shape, loads no weights, starts nothing. */
import { existsSync } from 'node:fs'
import { messageOf } from '../common/errors.ts'
import { batchLine } from '../config/load.ts'
import type { VllmConfig } from '../config/inference-schema.ts'
import { memoryOf, memoryTable } from '../config/memory.ts'
import { show } from '../config/problems.ts'
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
  if (config.inference.backend === 'vllm')
    for (const line of samplerLines(config.inference, config.model.name)) console.log(`# ${line}`)
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

/** What would sample, where that is a vLLM server. */
function samplerLines({ base_url, python, args }: VllmConfig, model: string): string[] {
  const memory = 'Its weights and KV cache are memory of its own, which the table does not count'
  if (base_url !== undefined) return [`sampler: the vLLM that runs at ${base_url}`, `${memory}.`]
  const { port, ...flags } = args
  const written = Object.keys(flags).length ? `, with ${Object.keys(flags).join(', ')}` : ''
  const missing = existsSync(python) ? '' : ' (not there yet: bash scripts/setup-vllm.sh makes .venv-vllm)'
  return [
    `sampler: a vLLM server, started by ${python}${missing} for ${model} on ${port === undefined ? 'a free port' : `port ${show(port)}`}${written}`,
    `${memory}; on the GPU that trains gpu_memory_utilization under [inference.args] leaves the trainer room.`,
  ]
}
