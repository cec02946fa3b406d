/** Builds a supervised run: model, data, device, folder, trainer. All bad input is refused here. */
import { basename, resolve } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { UserError } from '../common/errors.ts'
import type { TrainingSample } from '../common/types.ts'
import type { Loaded } from '../config/load.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { ChatTemplate, loadEnvironment, readTable, sftRows } from '../environments/index.ts'
import { Gpu } from '../gpu/gpu.ts'
import { refuseLonger } from '../model/config/longrope.ts'
import { loadDecoder } from '../model/decoder/load.ts'
import { writeFolderWhole } from '../model/files/files.ts'
import { openModel } from '../model/files/open.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { gainsByWideVectors } from '../model/decoder/wide-vectors.ts'
import type { ModelConfig, TensorSource } from '../model/types.ts'
import { RunConsole } from '../monitor/terminal/console.ts'
import { counted, formatBytes, formatCount } from '../monitor/format.ts'
import { createLogger } from '../monitor/logger.ts'
import { MetricsWriter, readMetrics } from '../monitor/metrics-writer.ts'
import { Progress } from '../monitor/progress.ts'
import type { RunFolder } from '../monitor/run-folder.ts'
import { writeWeights, type CheckpointState, type WeightsAbout } from '../trainer/checkpoint.ts'
import { negativeLogLikelihood } from '../trainer/losses/index.ts'
import { newModel } from '../trainer/new-model.ts'
import { exampleOf, sampleOf, SftData, type SftTokenizer } from '../trainer/sft.ts'
import { Trainer } from '../trainer/trainer.ts'
import { adapterWords, limitMemory, tellMemory, withMicroBatch } from './gpu-memory.ts'
import { checkModelFolder } from './out-file.ts'
import { closeEnvironments } from './environments.ts'
import { closeAll, giveUp } from './opening.ts'
import { dataChanges, originOf, RunCheckpoints } from './train-checkpoints.ts'
import { keepConfig, openFolder, tellDisk } from './train-folder.ts'
import { openAdapter } from './train-inputs.ts'
import { adapterConfig, trainerOptions, whatToTrain } from './trainer-options.ts'

export type LoadedSft = Loaded<SftConfig>

/** An open supervised run; `close` frees everything. */
export interface SftRun {
  /** The resolved config; "auto" is replaced by its number. */
  config: SftConfig
  folder: RunFolder
  checkpoints: RunCheckpoints
  console: RunConsole
  progress: Progress
  metrics: MetricsWriter
  trainer: Trainer
  data: SftData
  /** Held-out examples; empty for a data file. */
  held: TrainingSample[]
  about: WeightsAbout
  close(): Promise<void>
}

interface Source {
  name: string
  config: ModelConfig
  tensors: TensorSource
  tokenizer: Tokenizer
  rawConfig: Record<string, unknown>
  rawGenerationConfig: Record<string, unknown> | null
  close(): void
}

/** The model that training starts from: from files, or a new one. */
export async function openSource(config: SftConfig): Promise<Source> {
  if (config.model.new) {
    const made = newModel(config.model.new, config.trainer.args.seed)
    const name = config.trainer.args.save_to ? basename(resolve(config.trainer.args.save_to)) : made.name
    return { ...made, name, rawGenerationConfig: null, close: () => {} }
  }
  const files = await openModel(config.model.name!)
  const { name, config: shape, tensors, rawGenerationConfig } = files
  const needsConfig = !config.trainer.args.use_lora
  return {
    name,
    config: shape,
    tensors,
    rawGenerationConfig,
    tokenizer: await files.tokenizer(),
    rawConfig: needsConfig ? files.rawConfig() : {},
    close: () => files.close(),
  }
}

// Not Math.max(...list): a call takes only about 120,000 arguments.
const longestOf = (samples: readonly TrainingSample[]): number => samples.reduce((most, { ids }) => Math.max(most, ids.length), 0)

/** @throws UserError where a tokenizer was given more tokens than its model: a read of a row that the embedding does not have gives some other one's */
function refuseOtherTokens({ name, config, tokenizer }: Source, samples: readonly TrainingSample[]): void {
  const rows = config.vocabSize
  for (const { ids } of samples) {
    const other = ids.find((id) => id >= rows)
    if (other === undefined) continue
    const word = JSON.stringify(tokenizer.idToToken(other))
    throw new UserError(
      `An example has token ${other} (${word}), and ${name} has only ${rows} tokens (vocab_size in its config.json). Its tokenizer was given more than the model: take that token out of the data or the tokenizer, or use a model with a row for it.`,
    )
  }
}

/**
 * Opens a run, fresh or resumed.
 * @throws UserError for any mistake of the user's; a new folder is then removed again
 */
export async function openSft(loaded: LoadedSft): Promise<SftRun> {
  const { save_to: target } = loaded.config.trainer.args
  if (target) checkModelFolder('trainer.args.save_to', target)
  const source = await openSource(loaded.config)
  const { train, held } = await samplesOf(loaded.config, source.tokenizer)
  const adapter = loaded.config.model.adapter ? await openAdapter(loaded.config, source) : undefined
  refuseOtherTokens(source, [...train, ...held])
  const longest = longestOf([...train, ...held])
  refuseLonger(source, longest, `an example has ${longest} tokens`)
  // Before the folder is made, as its config.toml has the number for micro_batch_tokens = "auto".
  const matrixUnits = loaded.config.trainer.args.matrix_units
  const gpu = await Gpu.open({ wideVectors: gainsByWideVectors([source.config], { trains: true, matrixUnits }) })
  limitMemory(gpu, loaded.config.trainer.args.gpu_memory)
  const opened: { close(): void }[] = [source, gpu]
  let folder: RunFolder | undefined
  try {
    const { config, line } = withMicroBatch(loaded, source, adapterWords(gpu))
    const { args } = config.trainer
    const skipped: string[] = []
    const origin = loaded.fork && (await originOf(loaded.fork, (line) => skipped.push(line)))
    folder = openFolder(config, loaded, origin)
    opened.push(folder)
    const logger = createLogger(folder.logPath)
    const progress = new Progress()
    const { max_steps: maxSteps, logging_steps: linesEvery } = args
    const out = new RunConsole({ progress, maxSteps, supervised: true, panel: true, linesEvery, samplesEvery: 0, logger })
    opened.push(logger, out)
    for (const line of skipped) out.warn(line)
    out.gpuBytes = () => gpu.pool.bytesInUse
    out.print(`adapter  ${gpu.facts.name}${gpu.facts.software ? ' (software: no GPU was found, so this is slow)' : ''}`)
    out.print(`run      ${folder.path}`)
    if (line) out.print(`micro    ${line}`)
    tellDisk(config, { config: source.config, path: config.model.name ?? '' }, folder, out)
    const decoder = await progress.run(`loading ${source.name}`, { limitMs: 3_600_000 }, (wait) =>
      loadDecoder(gpu, source, {
        round: args.bf16,
        quantization: args.quantization,
        matrixUnits: args.matrix_units,
        progress: (share) => wait.update(`${Math.round(share * 100)}%`),
        ...whatToTrain(args, source.config, adapter),
      }),
    )
    // The weights are on the GPU. save_to may name the model's folder, which Windows renames only if no file in it is open.
    source.close()
    const trained = `${formatCount(decoder.store!.size)} trained ${args.use_lora ? `(LoRA rank ${args.lora_rank})` : '(all weights)'}`
    out.print(`model    ${source.name}: ${trained}, ${formatBytes(gpu.pool.bytesInUse)} on the GPU`)
    const tokens = train.reduce((sum, s) => sum + s.ids.length, 0)
    out.print(
      `data     ${counted(train.length, 'example')}, ${formatCount(tokens)} tokens; ${counted(args.batch_size, 'example')} a step, ${counted(args.max_steps, 'step')}`,
    )
    const [longestTrained, most] = [longestOf(train), source.config.maxPositionEmbeddings]
    if (longestTrained > most) out.warn(`an example has ${longestTrained} tokens; ${source.name} was made for ${most} at most.`)
    const trainer = new Trainer(decoder, trainerOptions(args, negativeLogLikelihood, folder))
    const { tokenizer, rawConfig, rawGenerationConfig } = source
    const lora = adapterConfig(args, source.config, adapter, config.model.name ?? null)
    const dtypeOf = (name: string) => source.tensors.dtype?.(name)
    const about = { lora, rawConfig, rawGenerationConfig, dtypeOf, tokenizer }
    const checkpoints = new RunCheckpoints({
      folder,
      trainer,
      weights: about,
      ckpt: config.trainer.ckpt,
      rewind: (step) => folder!.rewind(step),
      settle: () => folder!.settle(),
      print: (text) => out.print(text),
      warn: (text) => out.warn(text),
    })
    const state = await checkpoints.begin(loaded)
    if (state) for (const change of changesOf(state, train, args)) out.warn(change)
    // After the resume, which rewinds the file to its step.
    const metrics = new MetricsWriter({ path: folder.metricsPath, onWarning: (message) => out.warn(message) })
    opened.push(metrics)
    out.history = readMetrics(folder.metricsPath)
    await keepConfig(folder, out)
    return {
      config,
      folder,
      checkpoints,
      console: out,
      progress,
      metrics,
      trainer,
      data: new SftData(train, {
        batchSize: args.batch_size,
        seed: args.seed,
        shuffle: args.shuffle_dataset,
        done: state && { step: state.step, examples: examplesDone(state, args.batch_size) },
      }),
      held,
      about,
      close: () => closeAll(opened),
    }
  } catch (error) {
    await giveUp(opened)
    folder?.discard()
    throw tellMemory(error)
  }
}

/** How many examples a run has trained on; for older checkpoints it follows from the step. */
const examplesDone = ({ step, extra }: CheckpointState, batchSize: number): number =>
  typeof extra.examples_done === 'number' ? extra.examples_done : step * batchSize

/** What has changed since the checkpoint of a resumed run, one sentence each. */
function changesOf(
  { extra }: CheckpointState,
  train: readonly TrainingSample[],
  { seed, shuffle_dataset }: SftConfig['trainer']['args'],
): string[] {
  const changes = dataChanges(extra, { seed, shuffle_dataset })
  if (typeof extra.examples === 'number' && extra.examples !== train.length)
    changes.push(
      `the data had ${extra.examples} examples and now has ${train.length}: from here on, they are not those that would have come.`,
    )
  return changes
}

/** Examples to train on, and held-out ones of an environment, as tokens. */
export async function samplesOf(
  config: Pick<SftConfig, 'data' | 'trainer'>,
  tokenizer: Tokenizer,
): Promise<{ train: TrainingSample[]; held: TrainingSample[] }> {
  const { data, trainer } = config
  const { max_seq_len, chat_template_kwargs } = trainer.args
  const chats = asInRollouts(tokenizer, chat_template_kwargs)
  if (data.env) {
    const env = await loadEnvironment(data.env.id, data.env.args)
    const samples = (split: 'train' | 'eval') =>
      encoded(sftRows(env, split).slice(0, split === 'train' ? data.max_examples : 256), (row, at) => sampleOf(row, chats, at), {
        whereOf: (_, i) => `${env.id}, ${split} row ${i}`,
        maxTokens: max_seq_len,
      })
    try {
      const train = await samples('train')
      if (train.length === 0) throw new UserError(`The environment ${data.env.id} has no answers of its own to learn from.`)
      return { train, held: await samples('eval') }
    } finally {
      // Only its rows are needed: a waiting Python or its MCP servers would stay for the whole run.
      await closeEnvironments([{ env }])
    }
  }
  const rows = (await readTable(data.path!)).slice(0, data.max_examples)
  if (rows.length === 0) throw new UserError(`${data.path} has no rows.`)
  const encode = ({ columns, where }: (typeof rows)[number]) =>
    sampleOf(exampleOf(columns, where, tokenizer.hasChatTemplate), chats, where)
  const train = await encoded(rows, encode, { whereOf: ({ where }) => where, maxTokens: max_seq_len })
  return { train, held: [] }
}

/** Milliseconds of encoding after which the event loop gets a turn (Ctrl-C), and after which progress is printed. */
const [HEARD_MS, TOLD_MS] = [100, 10_000]

/**
 * Encodes rows one by one. Many rows take minutes: Ctrl-C must work in between, and progress must be seen.
 * @throws UserError where some are too long, naming the longest: a limit raised to the first one's length might be too small for the next
 */
async function encoded<Row>(
  rows: readonly Row[],
  encode: (row: Row, where: string) => TrainingSample,
  { whereOf, maxTokens }: { whereOf: (row: Row, index: number) => string; maxTokens: number },
): Promise<TrainingSample[]> {
  const samples: TrainingSample[] = []
  let [heard, told] = [performance.now(), performance.now()]
  for (const [i, row] of rows.entries()) {
    samples.push(encode(row, whereOf(row, i)))
    if (performance.now() - heard < HEARD_MS) continue
    await setImmediate()
    heard = performance.now()
    if (heard - told < TOLD_MS) continue
    console.error(`encoding examples: ${i + 1} of ${rows.length}`)
    told = heard
  }
  const long = [...samples.keys()].filter((i) => samples[i].ids.length > maxTokens)
  if (long.length === 0) return samples
  const where = (i: number) => whereOf(rows[i], i)
  const longest = long.reduce((a, b) => (samples[b].ids.length > samples[a].ids.length ? b : a))
  const tokens = samples[longest].ids.length
  throw new UserError(
    long.length === 1
      ? `${where(longest)} has ${tokens} tokens, more than max_seq_len (${maxTokens}); raise it or remove the example.`
      : `${long.length} of ${rows.length} examples have more tokens than max_seq_len (${maxTokens}): the first is ${where(long[0])}, the longest ${where(longest)} with ${tokens}. Raise it to ${tokens} or remove them.`,
  )
}

/** The tokenizer with tools rendered as in rollouts: as text where the chat template shows none. */
function asInRollouts(tokenizer: Tokenizer, variables: Record<string, unknown>): SftTokenizer {
  const template = new ChatTemplate(tokenizer, variables)
  return {
    eosTokenIds: tokenizer.eosTokenIds,
    encode: (text, options) => tokenizer.encode(text, options),
    decode: (ids, options) => tokenizer.decode(ids, options),
    renderChat: (messages, { tools, variables, addGenerationPrompt = true } = {}) =>
      template.with(variables).render(messages, tools, addGenerationPrompt),
  }
}

/** Writes the finished model (bf16) or adapter into its own folder, whole or not at all. */
export async function saveTo(dir: string, { trainer, about }: SftRun): Promise<void> {
  await writeFolderWhole(dir, (aside) => writeWeights(aside, trainer.decoder, about, 'bf16'), { replace: true })
}
