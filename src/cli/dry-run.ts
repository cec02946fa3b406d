/** `train --dry-run`: the resolved config and what it would need. Reads the model's shape, loads no weights, starts nothing. */
import { existsSync } from 'node:fs'
import { CLI, SCRIPTS } from '../common/commands.ts'
import { messageOf } from '../common/errors.ts'
import { batchLine, type Loaded } from '../config/load.ts'
import type { VllmConfig } from '../config/inference-schema.ts'
import { diskLine } from '../config/disk.ts'
import { memoryOf, memoryTable, type MemoryLimits } from '../config/memory.ts'
import { show } from '../config/problems.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { stringifyConfig } from '../config/toml-write.ts'
import { listAdapters } from '../gpu/inventory.ts'
import { findPython } from '../inference/vllm/server.ts'
import { openModel, type ModelFiles } from '../model/open.ts'
import type { ModelConfig } from '../model/types.ts'
import { withMicroBatch, type AdapterWords } from './gpu-memory.ts'

export async function dryRun(loaded: Loaded<RunConfig>): Promise<void> {
  const best = await bestAdapter()
  const { model, problem } = await openModelOrWhy(loaded.config.model.name)
  const { config, line } = sized(loaded, model, best)
  console.log(stringifyConfig(config))
  console.log(`# ${batchLine(config)}`)
  console.log(best ? `# adapter: ${best.description}${best.software ? ' (software)' : ''}` : `# no WebGPU adapter: ${CLI} doctor`)
  if (config.inference.backend === 'vllm')
    for (const words of samplerLines(config.inference, config.model.name)) console.log(`# ${words}`)
  if (line) console.log(`# ${line}`)
  if (!model) {
    console.log(`# no memory table: ${problem}`)
    return
  }
  const table = memoryTable(memoryOf(config, model.config), model.config, best?.limits)
  console.log(`# GPU memory for ${model.name}\n${table.replaceAll(/^/gm, '#')}`)
  const { line: disk, short } = diskLine(config, model.config, model.path, config.trainer.args.output_dir)
  console.log(`# disk: ${disk}${short === undefined ? '' : `: ${short} will not fit`}`)
  model.close()
}

/** The adapter that a run would take, as far as it does not hang on DAWN_RL_ADAPTER. */
export async function bestAdapter(): Promise<(AdapterWords & { description: string; limits: MemoryLimits }) | undefined> {
  const adapters = await listAdapters()
  const best = adapters.find((a) => !a.software) ?? adapters[0]
  return best && { ...best, limits: best.limits as unknown as MemoryLimits }
}

/** The config is fine where the model is not here yet: that must not hide it. */
async function openModelOrWhy(name: string): Promise<{ model?: ModelFiles; problem?: string }> {
  try {
    return { model: await openModel(name) }
  } catch (error) {
    return { problem: messageOf(error) }
  }
}

/** The config with the number of "auto" in it, or a line that says why there is none. */
export function sized<Config extends RunConfig | SftConfig>(
  loaded: Loaded<Config>,
  model: { config: ModelConfig } | undefined,
  adapter: Awaited<ReturnType<typeof bestAdapter>>,
): { config: Config; line?: string } {
  if (!loaded.autoMicroBatch) return { config: loaded.config }
  const unknown = `micro_batch_tokens = "auto" is not known without ${model ? 'an adapter' : 'the model'}: the number above is the most it can be`
  return model && adapter ? withMicroBatch(loaded, model.config, adapter) : { config: loaded.config, line: unknown }
}

/** What would sample, where that is a vLLM server. */
function samplerLines({ base_url, args, ...config }: VllmConfig, model: string): string[] {
  const memory = 'Its weights and KV cache are memory of its own, which the table does not count'
  if (base_url !== undefined) return [`sampler: the vLLM that runs at ${base_url}`, `${memory}.`]
  const python = findPython(config.python)
  const { port, ...flags } = args
  const written = Object.keys(flags).length ? `, with ${Object.keys(flags).join(', ')}` : ''
  const missing = existsSync(python) ? '' : ` (not there yet: bash ${SCRIPTS}/setup-vllm.sh makes .venv-vllm)`
  return [
    `sampler: a vLLM server, started by ${python}${missing} for ${model} on ${port === undefined ? 'a free port' : `port ${show(port)}`}${written}`,
    `${memory}; on the GPU that trains gpu_memory_utilization under [inference.args] leaves the trainer room.`,
  ]
}
