/** `train --dry-run`: the resolved config and what it would need. Reads the model's shape, loads no weights, starts nothing. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { CLI, SCRIPTS } from '../common/commands.ts'
import { messageOf, UserError } from '../common/errors.ts'
import { batchLine, type Loaded, type Resume } from '../config/load.ts'
import type { VllmConfig } from '../config/inference-schema.ts'
import { diskLine, folderBytes } from '../config/disk.ts'
import { memoryOf, memoryTable, type SizedModel } from '../config/memory.ts'
import { show } from '../config/problems.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { stringifyConfig } from '../config/toml-write.ts'
import { Gpu } from '../gpu/gpu.ts'
import { findPython } from '../inference/vllm/server.ts'
import { openModel, type ModelFiles } from '../model/files/open.ts'
import type { ModelConfig } from '../model/types.ts'
import { refuseLonger } from '../model/config/longrope.ts'
import { checkRun } from '../monitor/run-folder.ts'
import { checkpointToResume, originOf } from './train-checkpoints.ts'
import { placeOf } from './train-folder.ts'
import { maxSeqLenIs, openAdapter } from './train-inputs.ts'
import { adapterWords, withMicroBatch } from './gpu-memory.ts'

/**
 * Prints the resolved config, the memory table and the disk line.
 * @throws UserError for a GPU adapter that does not exist, a length that the model does not have, and a LoRA adapter from which the run cannot start
 */
export async function dryRun(loaded: Loaded<RunConfig>): Promise<void> {
  const begin = await beginLine(loaded)
  const best = await bestAdapter()
  const { model, problem } = await openModelOrWhy(loaded.config.model.name)
  const { ref_model: refName } = loaded.config.trainer.args
  const { model: reference, problem: noReference } = refName === undefined ? {} : await openModelOrWhy(refName)
  const { config, line } = sized(loaded, model && { ...model, reference }, best)
  console.log(stringifyConfig(config))
  if (begin) console.log(`# ${begin}`)
  console.log(`# ${batchLine(config)}`)
  console.log(best ? `# adapter: ${best.name}${best.software ? ' (software)' : ''}` : `# no WebGPU adapter: ${CLI} doctor`)
  if (config.inference.backend === 'vllm')
    for (const words of samplerLines(config.inference, config.model.name)) console.log(`# ${words}`)
  if (line) console.log(`# ${line}`)
  if (!model) {
    console.log(`# no memory table: ${problem}`)
    return
  }
  for (const files of [model, reference])
    if (files) refuseLonger(files, config.trainer.args.max_seq_len, maxSeqLenIs(config.trainer.args))
  if (config.model.adapter) await openAdapter(config, model)
  const table = memoryTable(memoryOf(config, { ...model, reference }, best?.limits), model.config, best?.limits)
  console.log(`# GPU memory for ${model.name}\n${table.replaceAll(/^/gm, '#')}`)
  if (noReference) console.log(`# the reference model is not counted: ${noReference}`)
  tellDisk({ ...loaded, config }, model.config, model.path)
  model.close()
  reference?.close()
}

/** Prints what the run would need on disk. What a resumed run has written already is subtracted. */
export function tellDisk({ config, resume }: Loaded<RunConfig | SftConfig>, model: ModelConfig, path: string): void {
  const dir = runOf(config, resume)
  const { line, short } = diskLine(config, model, path, dir, resume && existsSync(dir) ? folderBytes(dir) : 0)
  console.log(`# disk: ${line}${short === undefined ? '' : `: ${short} will not fit`}`)
}

/** The run's folder. */
function runOf({ trainer: { args } }: RunConfig | SftConfig, resume: Resume | undefined): string {
  const { output_dir: outputs, run_name: name } = placeOf(resume, args)
  return join(outputs, name)
}

/** Which checkpoint a fork or a resumed run would start from; undefined for other runs. @throws UserError where there is none */
export async function beginLine({ config, fork, resume }: Loaded<RunConfig | SftConfig>): Promise<string | undefined> {
  const warn = (line: string) => console.error(`warning: ${line}`)
  if (fork) {
    const { from, step } = await originOf(fork, warn)
    return `fork of step ${step} of ${from}`
  }
  if (!resume) return undefined
  const run = runOf(config, resume)
  checkRun(run)
  const { dir, broken } = await checkpointToResume(run, resume)
  for (const line of broken) warn(`skipped ${line}`)
  return dir === undefined ? `resumes ${run}, which has no checkpoint yet: from the first step` : `resumes from ${dir}`
}

/**
 * The adapter that a run would take; undefined where there is none.
 * @throws UserError where none has the name that was asked for
 */
export async function bestAdapter(): Promise<ReturnType<typeof adapterWords> | undefined> {
  try {
    const gpu = await Gpu.open()
    gpu.close()
    return adapterWords(gpu)
  } catch (error) {
    if (!(error instanceof UserError) || process.env.DAWN_RL_ADAPTER) throw error
    return undefined
  }
}

/** The model, or why it cannot be opened: the config is printed even where the model is not here yet. */
async function openModelOrWhy(name: string): Promise<{ model?: ModelFiles; problem?: string }> {
  try {
    return { model: await openModel(name) }
  } catch (error) {
    return { problem: messageOf(error) }
  }
}

/** The config with the number for "auto" filled in, or a line that says why there is none. */
export function sized<Config extends RunConfig | SftConfig>(
  loaded: Loaded<Config>,
  model: SizedModel | undefined,
  adapter: Awaited<ReturnType<typeof bestAdapter>>,
): { config: Config; line?: string } {
  if (!loaded.autoMicroBatch) return { config: loaded.config }
  const unknown = `micro_batch_tokens = "auto" cannot be determined without ${model ? 'an adapter' : 'the model'}: the number above is its upper limit`
  return model && adapter ? withMicroBatch(loaded, model, adapter) : { config: loaded.config, line: unknown }
}

/** The line about the vLLM server, where one would sample. */
function samplerLines({ base_url, args, ...config }: VllmConfig, model: string): string[] {
  const memory = 'Its weights and KV cache take memory of their own, which the table does not include'
  if (base_url !== undefined) return [`sampler: the vLLM server at ${base_url}`, `${memory}.`]
  const python = findPython(config.python)
  const { port, ...flags } = args
  const written = Object.keys(flags).length ? `, with ${Object.keys(flags).join(', ')}` : ''
  const missing = existsSync(python) ? '' : ` (not installed yet: bash ${SCRIPTS}/setup-vllm.sh creates .venv-vllm)`
  return [
    `sampler: a vLLM server, started by ${python}${missing} for ${model} on ${port === undefined ? 'a free port' : `port ${show(port)}`}${written}`,
    `${memory}; if it shares the trainer's GPU, gpu_memory_utilization under [inference.args] must leave room for the trainer.`,
  ]
}
