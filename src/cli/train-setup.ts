/** Builds a run from its inputs: folder, device, weights, engine, orchestrator, trainer, monitor. All bad input is refused here. */
import { join } from 'node:path'
import { FAILED_STEP, whenThereIsRoom } from '../common/faults.ts'
import type { Metrics, SamplingParams, TrainingBatch } from '../common/types.ts'
import { keepsReference, spareGroups } from '../config/algorithm-schema.ts'
import { batchLine, type Loaded } from '../config/load.ts'
import type { RunConfig } from '../config/schema.ts'
import { PolicyClient, type Environment } from '../environments/index.ts'
import type { DeviceLostError } from '../gpu/errors.ts'
import { Gpu } from '../gpu/gpu.ts'
import { loadDecoder, type LoadOptions } from '../model/decoder/load.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import type { ModelFiles } from '../model/files/open.ts'
import type { Adapter } from '../model/files/peft.ts'
import { ownBlocks, wordsOfBlocks } from '../model/decoder/quantise.ts'
import { weightCount } from '../model/decoder/shapes.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { gainsByWideVectors } from '../model/decoder/wide-vectors.ts'
import { formatBytes, formatCount } from '../monitor/format.ts'
import { readMetrics } from '../monitor/metrics-writer.ts'
import { Monitor } from '../monitor/monitor.ts'
import type { RunFolder } from '../monitor/run-folder.ts'
import type { LoopOptions, LoopParts } from '../orchestrator/loop.ts'
import { Orchestrator } from '../orchestrator/orchestrator.ts'
import { trainerTokens } from '../orchestrator/samples.ts'
import { evaluatedRows, isTrained, type RunEnvironment } from '../orchestrator/tasks.ts'
import type { CheckpointState, WeightsAbout } from '../trainer/checkpoint.ts'
import { loadOtherReference, loadReference } from '../trainer/reference.ts'
import { ReferenceSync } from '../trainer/reference-sync.ts'
import { Trainer } from '../trainer/trainer.ts'
import { closeEnvironments } from './environments.ts'
import { firstPrompts } from './first-prompt.ts'
import { adapterWords, limitMemory, tellMemory, withMicroBatch } from './gpu-memory.ts'
import { closeAll, giveUp } from './opening.ts'
import { toolCallParser } from './tool-calls.ts'
import { adapterConfig, trainerOptions, whatToTrain } from './trainer-options.ts'
import { dataChanges, originOf, RunCheckpoints } from './train-checkpoints.ts'
import { keepConfig, openFolder, tellDisk } from './train-folder.ts'
import { openInputs, type Inputs } from './train-inputs.ts'
import { openSampler } from './train-sampler.ts'

/** An open run: its parts, and what the loop needs; `close` frees everything. */
export interface Run {
  config: RunConfig
  folder: RunFolder
  /** Name of the GPU adapter. */
  adapter: string
  parts: LoopParts
  /** Why the device was lost; undefined while it works. */
  lost: () => DeviceLostError | undefined
  loop: Omit<LoopOptions, 'stop'>
  close(): Promise<void>
}

/**
 * Opens a run, fresh or resumed.
 * @throws UserError for any mistake of the user's; a new folder is then removed again
 */
export async function openRun(loaded: Loaded<RunConfig>): Promise<Run> {
  const inputs = await openInputs(loaded)
  const { environments, loss, algorithm, model, tokenizer, template, adapter, refModel } = inputs
  const opened: { close(): unknown }[] = [
    model,
    ...(refModel ? [refModel] : []),
    { close: () => closeEnvironments(environments) },
  ]
  let folder: RunFolder | undefined
  try {
    // Before the folder is made, as its config.toml has the number for micro_batch_tokens = "auto".
    const gpu = await Gpu.open({ wideVectors: takesWideVectors(loaded.config, inputs) })
    opened.push(gpu)
    limitMemory(gpu, loaded.config.trainer.args.gpu_memory)
    const { config, line } = withMicroBatch(loaded, { ...model, reference: refModel }, adapterWords(gpu))
    const { args } = config.trainer
    const skipped: string[] = []
    const origin = loaded.fork && (await originOf(loaded.fork, (line) => skipped.push(line)))
    folder = openFolder(config, loaded, origin)
    opened.push(folder)
    const monitor = new Monitor({
      folder,
      maxSteps: args.max_steps,
      mixture: environments.filter(isTrained).length > 1,
      watch: {
        maxTokens: args.max_tokens,
        rewardFunctions: environments.filter(isTrained).flatMap(({ env }) => namesWithWeight(env)),
      },
      linesEvery: args.logging_steps,
      samplesEvery: args.log_completions ? args.log_completions_steps : 0,
      samplesCount: args.num_completions_to_print,
    })
    opened.push(monitor)
    for (const line of skipped) monitor.console.warn(line)
    monitor.console.gpuBytes = () => gpu.pool.bytesInUse
    announce(monitor, loaded, gpu, folder, inputs.notices)
    monitor.console.dim(...firstPrompts(environments, inputs))
    if (line) monitor.console.print(`micro    ${line}`)
    tellDisk(config, model, folder, monitor.console)
    const { decoder, reference } = await load(gpu, inputs, config, monitor)
    const { beta, entropy_coef: entropyCoef, num_iterations: iterations } = args
    const trainer = new Trainer(decoder, { ...trainerOptions(args, loss, folder), reference, beta, entropyCoef, iterations })
    const weights = aboutWeights(config, adapter, model, tokenizer)
    const about = { policy: decoder, about: weights, runFolder: folder.path, every: args.ref_model_sync_steps }
    // A teacher always has the weights of its files, whatever reference a checkpoint had.
    const moving = reference && !refModel ? new ReferenceSync({ ...about, reference }) : undefined
    const checkpoints = new RunCheckpoints({
      folder,
      trainer,
      reference: moving,
      weights,
      ckpt: config.trainer.ckpt,
      rewind: (step) => monitor.rewind(step),
      settle: () => monitor.settle(),
      print: (text) => monitor.console.print(text),
      warn: (text) => monitor.console.warn(text),
    })
    const state = await checkpoints.begin(loaded)
    const firstStep = state?.step ?? 0
    if (state) for (const change of dataChanges(state.extra, dataOf(config, environments))) monitor.console.warn(change)
    const sampler = await openSampler({ config, decoder, inputs, folder, monitor, weights }, firstStep)
    opened.push(sampler)
    // The device reports only now that an allocation failed.
    await gpu.sync('start')
    await startEnvironments(environments, folder, monitor)
    const holds = config.inference.backend === 'embedded' ? 'weights, Adam, KV cache' : 'weights, Adam'
    monitor.console.print(`memory   ${formatBytes(gpu.pool.bytesInUse)} of GPU buffers before the first step (${holds})`)
    const orchestrator = new Orchestrator({
      environments,
      client: new PolicyClient(sampler.generator, template, {
        maxPromptTokens: args.max_prompt_len,
        maxSeqTokens: args.max_seq_len,
        strategy: args.trajectory_strategy,
        parseTools: toolCallParser(args.tool_call_parser, tokenizer, template),
      }),
      sampling: samplingOf(config),
      seed: args.seed,
      shuffle: args.shuffle_dataset,
      groupsPerStep: args.batch_size / args.rollouts_per_example,
      done: state && { step: firstStep, tasks: tasksDone(state, config) },
      rolloutsPerExample: args.rollouts_per_example,
      evalRolloutsPerExample: args.eval_strategy === 'no' ? undefined : args.eval_rollouts_per_example,
      spareGroups: spareGroups(args.batch_size / args.rollouts_per_example, args.oversampling_factor),
      zeroTruncated: args.zero_truncated_completions,
      maxConcurrent: args.max_concurrent,
      maxSampling: config.inference.max_num_seqs,
      maxOffPolicySteps: args.max_off_policy_steps,
      generationTimeoutSeconds: args.generation_timeout,
      rolloutTimeoutSeconds: args.rollout_timeout,
      rewardTimeoutSeconds: args.reward_timeout,
      vocabulary: model.config.vocabSize,
      algorithm,
      progress: monitor.progress,
      // A fork is a new run, often of another environment.
      again: { ...FAILED_STEP, hopeless: () => gpu.lost !== undefined || sampler.gone(), worked: firstStep > 0 && !loaded.fork },
      warn: (line) => monitor.console.warn(line),
    })
    const evaluated = args.eval_strategy === 'no' ? [] : environments.filter((source) => evaluatedRows(source).length > 0)
    const begin = firstStep === 0 ? evaluated : missedEvals(evaluated, firstStep, config, folder)
    if (firstStep > 0) await dropEvaluations(folder, firstStep, begin, monitor)
    const parts: LoopParts = {
      orchestrator,
      monitor,
      train: (batch, published) => trainOn(trainer, batch, published, { monitor, moving, isFirst: batch.step === firstStep + 1 }),
      publish: (version) => sampler.publish(version),
      isBest: (step, row) => checkpoints.isBest(step, row),
      save: (step, row) => {
        const data = { ...dataOf(config, environments), tasks_done: orchestrator.tasksBefore(step + 1) }
        const work = () => monitor.progress.run('saving', { limitMs: 3_600_000 }, () => checkpoints.save(step, row, data))
        return whenThereIsRoom(`the checkpoint of step ${step}`, work, (line) => monitor.console.warn(line))
      },
      lost: () => gpu.lost,
      evaluated: { begin, steps: evaluated },
    }
    const loop = loopOptions(config, firstStep)
    await keepConfig(folder, monitor.console)
    return { config, folder, adapter: gpu.facts.name, parts, lost: () => gpu.lost, loop, close: () => closeAll(opened) }
  } catch (error) {
    await giveUp(opened)
    folder?.discard()
    throw tellMemory(error)
  }
}

/** Removes the answers of evaluations that are made again. */
async function dropEvaluations(folder: RunFolder, step: number, again: readonly RunEnvironment[], { console: out }: Monitor) {
  const names = again.map(({ name }) => name)
  await whenThereIsRoom(`what is kept of the rollouts of step ${step}`, () => folder.dropEvaluations(step, names), (line) => out.warn(line)) // prettier-ignore
}

/** Environments that need a process of their own (Python's) start it before the first rollout. */
async function startEnvironments(environments: readonly RunEnvironment[], folder: RunFolder, monitor: Monitor): Promise<void> {
  const logs = join(folder.path, 'logs')
  const warn = (line: string) => monitor.console.warn(line)
  const start = async ({ name, env }: RunEnvironment) => {
    if (env.open) await monitor.progress.run(`starting ${name}`, { limitMs: 3_600_000 }, () => env.open!({ logs, name, warn }))
  }
  await Promise.all(environments.map(start))
}

/** Whether 512-bit vectors pay for the policy and its reference, which share the process. */
function takesWideVectors({ trainer, inference }: RunConfig, { model, refModel }: Inputs): boolean {
  const kvCacheDtype = inference.backend === 'embedded' ? inference.kv_cache_dtype : undefined
  const models = [model.config, ...(refModel ? [refModel.config] : [])]
  return gainsByWideVectors(models, { trains: true, matrixUnits: trainer.args.matrix_units, kvCacheDtype })
}

function announce(monitor: Monitor, loaded: Loaded<RunConfig>, gpu: Gpu, folder: RunFolder, notices: readonly string[]): void {
  const { config } = loaded
  for (const notice of notices) monitor.console.warn(notice)
  const software = gpu.facts.software ? ' (software: no GPU was found, so this is slow)' : ''
  monitor.console.print(`adapter  ${gpu.facts.name}${software}`)
  monitor.console.print(`run      ${folder.path}`)
  monitor.console.print(`batch    ${batchLine(config)}`)
  if (loaded.changed.length > 0) monitor.logger.info({ changed: loaded.changed }, 'keys that are not at their default')
  monitor.console.legend()
}

async function load(
  gpu: Gpu,
  { model, adapter, refModel }: Inputs,
  config: RunConfig,
  monitor: Monitor,
): Promise<{ decoder: Decoder; reference?: Decoder }> {
  const { args } = config.trainer
  const wait = monitor.progress.wait(`loading ${model.name}`, { limitMs: 3_600_000 })
  try {
    const progress = (share: number) => wait.update(`${Math.round(share * 100)}%`)
    const options: LoadOptions = {
      round: args.bf16,
      quantization: args.quantization,
      matrixUnits: args.matrix_units,
      progress,
      ...whatToTrain(args, model.config, adapter),
    }
    const decoder = await loadDecoder(gpu, model, options)
    // Before a checkpoint replaces the weights that the run began with.
    let reference: Decoder | undefined
    if (refModel) reference = await loadOtherReference(gpu, refModel, options)
    else if (keepsReference(args)) reference = await loadReference(decoder, model, options, args.ref_model_sync_steps > 0)
    const trained = args.use_lora
      ? `a LoRA adapter of ${formatCount(decoder.store!.size)} (rank ${args.lora_rank})`
      : 'all of them'
    monitor.console.print(
      `model    ${model.name}: ${formatCount(weightCount(model.config))} weights${wordsOfBlocks(model, args.quantization)}; trained: ${trained}`,
    )
    if (refModel) {
      const { name, config: shape } = refModel
      const blocks = wordsOfBlocks(refModel, ownBlocks(refModel))
      monitor.console.print(`reference ${name}: ${formatCount(weightCount(shape))} weights${blocks}, frozen`)
    }
    return { decoder, reference }
  } finally {
    wait.done()
  }
}

function samplingOf(config: RunConfig): SamplingParams {
  const { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, max_tokens, stop } =
    config.trainer.args
  const drawn = { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty }
  return { ...drawn, max_tokens, stop, stop_token_ids: [], seed: 0 }
}

function loopOptions(config: RunConfig, firstStep: number): Omit<LoopOptions, 'stop'> {
  const { args } = config.trainer
  return {
    firstStep,
    maxSteps: args.max_steps,
    maxAsyncLevel: args.max_async_level,
    evalSteps: args.eval_steps,
    evalExamples: args.eval_examples,
    evalRolloutsPerExample: args.eval_rollouts_per_example,
    evalTemperature: args.eval_temperature,
    saveSteps: config.trainer.ckpt.interval,
  }
}

/** The environments whose evaluation was due after a step and is missing from its row, because the run was stopped first. */
export function missedEvals(
  evaluated: readonly RunEnvironment[],
  step: number,
  { trainer: { args } }: RunConfig,
  { metricsPath }: RunFolder,
): RunEnvironment[] {
  if (step !== args.max_steps && step % args.eval_steps !== 0) return []
  const rows = readMetrics(metricsPath).filter((row) => row.step === step)
  // An exact key, as there may be environments named `a` and `a/b`.
  const isThere = (name: string) => rows.some((row) => Object.hasOwn(row, `eval/${name}/policy_version`))
  // A fork has no row for the step that it begins with.
  return rows.length === 0 ? [] : evaluated.filter(({ name }) => !isThere(name))
}

async function trainOn(
  trainer: Trainer,
  batch: TrainingBatch,
  published: (share: number) => void,
  { monitor, moving, isFirst }: { monitor: Monitor; moving?: ReferenceSync; isFirst: boolean },
): Promise<{ metrics: Metrics }> {
  const wait = monitor.progress.wait(`training step ${batch.step}`, { limitMs: 24 * 3_600_000 })
  let begun = false
  try {
    const compiles = isFirst ? 'the first one, for which the driver compiles the kernels' : ''
    const progress = (done: number, total: number) =>
      wait.update(total > 1 ? `micro-batch ${Math.min(done + 1, total)} of ${total}` : compiles)
    if (moving?.isDue(trainer.step)) await moveReference(moving, trainer.step, monitor)
    const hooks = { progress, warn: (line: string) => monitor.console.warn(line) }
    const updated = (share: number): void => {
      begun = true
      published(share)
    }
    const result = await trainer.trainStep(batch, { ...hooks, published: updated })
    monitor.noteTokens(trainerTokens(batch, result.samples))
    return result
  } catch (error) {
    // Without an update the step does not count: a checkpoint saved now is the step before it.
    if (!begun) trainer.step = batch.step - 1
    throw error
  } finally {
    wait.done()
  }
}

async function moveReference(moving: ReferenceSync, step: number, { console: out, progress }: Monitor): Promise<void> {
  const work = () => progress.run('updating the reference model', { limitMs: 3_600_000 }, () => moving.follow())
  await whenThereIsRoom('the weights of the reference model', work, (line) => out.warn(line))
  out.print(`reference updated to the weights of step ${step}`)
}

function aboutWeights(config: RunConfig, adapter: Adapter | undefined, model: ModelFiles, tokenizer: Tokenizer): WeightsAbout {
  const lora = adapterConfig(config.trainer.args, model.config, adapter, model.ref)
  const { rawGenerationConfig, tensors } = model
  const dtypeOf = (name: string) => tensors.dtype?.(name)
  return { lora, rawConfig: lora ? {} : model.rawConfig(), rawGenerationConfig, dtypeOf, tokenizer }
}

/** The data as a checkpoint records it: order, samples and rollouts follow from it, so no other random state is kept. */
function dataOf({ trainer: { args } }: RunConfig, environments: readonly RunEnvironment[]) {
  return {
    seed: args.seed,
    shuffle_dataset: args.shuffle_dataset,
    rollouts_per_example: args.rollouts_per_example,
    environments: environments.filter(isTrained).map(({ name, weight, env }) => ({ name, weight, rows: env.dataset.length })),
  }
}

/** How many tasks a run has played; for a checkpoint of format 1 it follows from the step. */
const tasksDone = ({ step, extra }: CheckpointState, { trainer: { args } }: RunConfig): number =>
  typeof extra.tasks_done === 'number' ? extra.tasks_done : (step * args.batch_size) / args.rollouts_per_example

const namesWithWeight = (env: Environment): string[] =>
  Object.entries(env.rubric.weights ?? {}).flatMap(([name, weight]) => (weight ? name : []))
