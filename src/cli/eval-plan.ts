/** Turns the arguments of `eval` into a plan: environments and their rows, sampling, and the models that answer. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse } from 'smol-toml'
import { CLI } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { hashSeed, Random } from '../common/random.ts'
import { textOfBytes, textOfFile } from '../common/texts.ts'
import type { SamplingParams } from '../common/types.ts'
import { isTable } from '../config/compose.ts'
import { isConfigFile } from '../config/argv.ts'
import { parseConfig, parseEvalConfig, parseSftConfig } from '../config/load.ts'
import { templateProblem } from '../config/problems.ts'
import type { RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { loadEnvironment, type Environment, type LoadOptions, type Row } from '../environments/index.ts'
import { checkRequest } from '../inference/request.ts'
import type { Quantization } from '../model/types.ts'
import { shellWord } from '../monitor/format.ts'
import { membersOf } from '../orchestrator/tasks.ts'
import { damagedBecause } from '../trainer/checkpoint.ts'
import { closeEnvironments, loadOptionsOf } from './environments.ts'
import { endpointNamed, type Endpoint } from './eval-endpoints.ts'
import { jsonObject } from './options.ts'
import { bestStep, checkpointSteps } from './train-checkpoints.ts'

export interface EvalOptions {
  model?: string
  adapter?: string
  quantization?: Quantization
  baseUrl?: string
  apiKeyVar?: string
  endpoints?: string
  run?: string
  steps?: string
  /** --no-base */
  base: boolean
  numExamples?: number
  rolloutsPerExample?: number
  envArgs?: string
  /** The Python of environments that are named by id. */
  pythonPath?: string
  split: 'eval' | 'train'
  shuffle?: boolean
  maxTokens?: number
  temperature?: number
  samplingArgs?: string
  maxConcurrent: number
  maxSeqLen?: number
  outputDir: string
  resume?: boolean
  seed: number
  solvedAt: number
}

/** One environment and the rows that are played. */
export interface EvalEnvironment {
  name: string
  id: string
  args: Record<string, unknown>
  load?: LoadOptions
  env: Environment
  rows: Row[]
  /** Answers for each example. */
  k: number
}

/** What answers: a model, an endpoint, or the checkpoints of a run. */
export type EvalSource =
  | { kind: 'model'; model: string; adapter?: string; quantization?: Quantization }
  | { kind: 'endpoint'; endpoint: Endpoint; name: string }
  | {
      kind: 'run'
      dir: string
      model: string
      adapter?: string
      quantization?: Quantization
      checkpoints: string[]
      lora: boolean
      rank: number
      base: boolean
    }

type RunSource = Extract<EvalSource, { kind: 'run' }>

/** What an evaluation will do; made by `planEval`. */
export interface EvalPlan {
  environments: EvalEnvironment[]
  source: EvalSource
  sampling: SamplingParams
  /** Further fields of a request, for an endpoint, and chat_template_kwargs. */
  extra: Record<string, unknown>
  maxSeqLen?: number
  maxPromptLen?: number
  toolCallParser: string
  strategy: RunConfig['trainer']['args']['trajectory_strategy']
  generationTimeout: number
  rolloutTimeout?: number
  rewardTimeout: number
  notices: string[]
}

/** An environment as requested by the arguments or the config. */
interface Wanted {
  id: string
  name?: string
  args: Record<string, unknown>
  load?: LoadOptions
  examples?: number
  k?: number
}

/** Defaults of --num-examples, --rollouts-per-example and --max-tokens. */
const EXAMPLES = 32
const ANSWERS = 4
const MAX_TOKENS = 512

/**
 * Reads the arguments and loads the environments, which the caller closes.
 * @throws UserError for anything of the user's that is wrong
 */
export async function planEval(words: readonly string[], options: EvalOptions): Promise<EvalPlan> {
  const asked = readAsked(words, options)
  const { config } = asked
  const args = config?.trainer.args
  const asIs = sourceOf(options, asked)
  const notices = [...(asked.notices ?? [])]
  const source = asIs.kind === 'run' ? await withoutDamaged(asIs, options, notices) : asIs
  const { sampling, extra } = samplingOf(options, asked, source)
  if (asked.wanted.length === 0)
    throw new UserError(
      options.run === undefined
        ? `eval: no environment. Name one (${CLI} eval short-answers -m MODEL), a config (@ FILE) or a run (--run outputs/X).`
        : `eval: ${options.run} was trained on a data file, so it has no environment. Name one: ${CLI} eval ./my_env.ts --run ${shellWord(options.run)}`,
    )
  const environments: EvalEnvironment[] = []
  try {
    for (const wanted of onceEach(asked.wanted, notices)) environments.push(...(await openWanted(wanted, options, args, notices)))
    return {
      environments: namedApart(environments, notices),
      source,
      sampling,
      extra,
      maxSeqLen: options.maxSeqLen ?? args?.max_seq_len,
      maxPromptLen: options.maxSeqLen === undefined ? args?.max_prompt_len : undefined,
      toolCallParser: args?.tool_call_parser ?? 'auto',
      strategy: args?.trajectory_strategy ?? 'interleaved',
      generationTimeout: args?.generation_timeout ?? 600,
      rolloutTimeout: args?.rollout_timeout,
      rewardTimeout: args?.reward_timeout ?? 60,
      notices,
    }
  } catch (error) {
    await closeEnvironments(environments)
    throw error
  }
}

interface Asked {
  wanted: Wanted[]
  config?: RunConfig
  model?: string
  /** Sampling keys of a config, as --sampling-args would hold them. */
  sampling?: Record<string, unknown>
  notices?: string[]
}

function readAsked(words: readonly string[], options: EvalOptions): Asked {
  const envArgs = options.envArgs === undefined ? undefined : jsonObject('eval', '--env-args', options.envArgs)
  const ids: string[] = []
  const files: string[] = []
  for (let i = 0; i < words.length; i++) {
    if (words[i] === '@') files.push(words[++i] ?? '')
    else if (words[i].startsWith('@')) files.push(words[i].slice(1))
    else if (isConfigFile(words[i])) files.push(words[i])
    else ids.push(words[i])
  }
  if (files.length > 1)
    throw new UserError('eval: give at most one config file. Name environments beside it, or evaluate each by itself.')
  if (options.run !== undefined && !existsSync(join(options.run, 'config.toml')))
    throw new UserError(`--run ${options.run}: there is no config.toml in it. Give the folder of a run: outputs/NAME.`)
  const fromFile =
    files.length === 1 ? readFile(files[0]) : options.run ? readFile(join(options.run, 'config.toml')) : { wanted: [] }
  const wanted =
    ids.length > 0 ? ids.map((id) => ({ id, args: envArgs ?? {}, load: { python: options.pythonPath } })) : fromFile.wanted
  if (ids.length === 0 && envArgs) for (const one of wanted) one.args = { ...one.args, ...envArgs }
  return { ...fromFile, wanted }
}

/** The table of a TOML text; empty for a broken one, which reading it as a config will report. */
function tableOf(text: string): Record<string, unknown> {
  try {
    return parse(text)
  } catch {
    return {}
  }
}

/** The one key of [trainer.args] that `samplingOf` takes in the same form as --sampling-args. */
const templateArgs = ({ args: { chat_template_kwargs } }: (RunConfig | SftConfig)['trainer']) => ({ chat_template_kwargs })

const isSft = (table: Record<string, unknown>): boolean => 'data' in table

/** Reads a config of `train` or `sft`, or an eval config of verifiers ([[eval]] with env_id). */
function readFile(file: string): Asked {
  const text = textOfFile(file, file || 'the file after @')
  const table = tableOf(text)
  if (isSft(table)) {
    const { model, data, trainer } = parseSftConfig(text, file).config
    const wanted = data.env ? [{ id: data.env.id, args: data.env.args }] : []
    return { model: model.name, wanted, sampling: templateArgs(trainer) }
  }
  if (!Array.isArray(table.eval)) {
    const { config } = parseConfig(text, file)
    const wanted = config.env.map((env): Wanted => ({ id: env.id, name: env.name, args: env.args, load: loadOptionsOf(env) }))
    return { config, model: config.model.name, wanted, sampling: templateArgs(config.trainer) }
  }
  const { config: read, notices } = parseEvalConfig(text, file)
  const wanted = read.evals.map(
    ({ env_id: id, name, env_args: args, num_examples: examples, rollouts_per_example: k }): Wanted => ({
      id,
      name,
      args,
      examples,
      k,
    }),
  )
  const { model, temperature, max_tokens, sampling_args } = read.evals[0]
  const drawn = { ...(temperature !== undefined && { temperature }), ...(max_tokens !== undefined && { max_tokens }) }
  return { wanted, model, sampling: { ...sampling_args, ...drawn }, notices }
}

/** Drops repeated requests: the same environment with the same arguments would give the same answers again. */
function onceEach(wanted: readonly Wanted[], notices: string[]): Wanted[] {
  const words = wanted.map((one) => JSON.stringify(one))
  const isFirst = (_: Wanted, i: number) => words.indexOf(words[i]) === i
  const twice = new Set(wanted.filter((one, i) => !isFirst(one, i)).map(({ name, id }) => name ?? id))
  for (const name of twice) notices.push(`${name} is named more than once with the same arguments: it is evaluated once.`)
  return wanted.filter(isFirst)
}

/** Adds a number to the name of an environment that comes again with other arguments: the table compares rows of the same name. */
function namedApart(environments: readonly EvalEnvironment[], notices: string[]): EvalEnvironment[] {
  return environments.map((one, i) => {
    const before = environments.slice(0, i).filter(({ name }) => name === one.name).length
    if (before === 0) return one
    const name = `${one.name}#${before + 1}`
    notices.push(`${one.name} is named more than once: with ${JSON.stringify(one.args)} it is called ${name}.`)
    return { ...one, name }
  })
}

async function openWanted(
  wanted: Wanted,
  options: EvalOptions,
  args: RunConfig['trainer']['args'] | undefined,
  notices: string[],
): Promise<EvalEnvironment[]> {
  const examples = options.numExamples ?? wanted.examples ?? args?.eval_examples ?? EXAMPLES
  const k = options.rolloutsPerExample ?? wanted.k ?? ANSWERS
  const env = await loadEnvironment(wanted.id, wanted.args, wanted.load)
  return membersOf({ name: wanted.name ?? wanted.id, env, weight: 1 }).map((member) => {
    const held = options.split === 'eval' && member.env.evalDataset.length > 0
    if (options.split === 'eval' && !held)
      notices.push(`${member.name} has no held-out tasks: its training tasks are used instead.`)
    const all = [...(held ? member.env.evalDataset : member.env.dataset)]
    if (options.shuffle) new Random(hashSeed(options.seed, 'eval order')).shuffle(all)
    const rows = examples === -1 ? all : all.slice(0, examples)
    if (rows.length < examples)
      notices.push(`${member.name} has ${rows.length} tasks in this split, but ${examples} were asked for.`)
    return { name: member.name, id: wanted.id, args: wanted.args, load: wanted.load, env: member.env, rows, k }
  })
}

function sourceOf(options: EvalOptions, { config, model: named }: Asked): EvalSource {
  const { run, model = named, adapter, baseUrl, apiKeyVar } = options
  if (run !== undefined) {
    if (baseUrl !== undefined || adapter !== undefined)
      throw new UserError('eval: --run takes the model and adapters of the run; leave --base-url and --adapter out.')
    return runSource(run, options)
  }
  if (options.steps !== undefined || !options.base)
    throw new UserError(
      `eval: ${options.steps === undefined ? '--no-base' : '--steps'} is for the checkpoints of a run. Name the run with --run.`,
    )
  if (model === undefined)
    throw new UserError(
      'eval: no model. Give a folder, .gguf file, hub id or the name of an endpoint with -m, or a run with --run.',
    )
  const endpoint = baseUrl === undefined ? endpointNamed(model, options.endpoints) : undefined
  const ofEmbedded = { '--adapter': adapter, '--quantization': options.quantization, '--max-seq-len': options.maxSeqLen }
  const idle = Object.entries(ofEmbedded).find(([, given]) => given !== undefined)
  if (idle && (endpoint ?? baseUrl))
    throw new UserError(`eval: ${idle[0]} is for a model that runs here, and this one is an endpoint. Leave it out.`)
  if (baseUrl !== undefined)
    return { kind: 'endpoint', name: model, endpoint: { model, url: baseUrl.replace(/\/+$/u, ''), keyVar: apiKeyVar } }
  if (endpoint) return { kind: 'endpoint', name: model, endpoint: { ...endpoint, keyVar: apiKeyVar ?? endpoint.keyVar } }
  const ofConfig = options.model === undefined ? config : undefined
  const quantization = options.quantization ?? ofConfig?.trainer.args.quantization
  return { kind: 'model', model, adapter: adapter ?? ofConfig?.model.adapter, quantization }
}

function runSource(dir: string, options: EvalOptions): RunSource {
  const file = join(dir, 'config.toml')
  const text = textOfBytes(readFileSync(file), file)
  const { model, trainer } = isSft(tableOf(text)) ? parseSftConfig(text, file).config : parseConfig(text, file).config
  const named = options.model ?? model.name
  // A new model made by sft has no base, only checkpoints.
  const base = options.base && named !== undefined
  const there = checkpointSteps(dir)
  const words = options.steps === undefined || options.steps === 'all' ? there.map(String) : options.steps.split(',')
  const asked = words.map((word) => (word.trim() === 'best' ? String(bestStep(dir) ?? word) : word))
  const missing = asked.find((word) => !there.includes(Number(word)))
  const steps = [...new Set(asked.map(Number))]
  if (missing !== undefined || (steps.length === 0 && !base))
    throw new UserError(
      `--run ${dir}: ${missing === undefined ? 'it has no checkpoints' : `there is no checkpoint of step ${missing.trim()}`}. ${there.length > 0 ? `There are ${there.join(', ')}.` : 'Checkpoints are written at the end, and in between as often as interval under [trainer.ckpt] says.'}`,
    )
  const checkpoints = steps.map((step) => join(dir, 'checkpoints', `step_${step}`))
  const { use_lora: lora, lora_rank: rank } = trainer.args
  // By default the model is held as it was in training.
  const quantization = options.quantization ?? trainer.args.quantization
  return { kind: 'run', dir, model: named ?? checkpoints[0], adapter: model.adapter, quantization, checkpoints, lora, rank, base }
}

/**
 * Leaves out damaged checkpoints, whose weights would be scored as if they were the run's.
 * @throws UserError if --steps names a damaged one, or none is left
 */
async function withoutDamaged(source: RunSource, { steps }: EvalOptions, notices: string[]): Promise<RunSource> {
  const broken: string[] = []
  const checkpoints: string[] = []
  for (const dir of source.checkpoints) {
    const why = await damagedBecause(dir)
    if (why === undefined) checkpoints.push(dir)
    else broken.push(`${dir}: ${why}`)
  }
  const named = steps !== undefined && steps !== 'all'
  if (broken.length > 0 && (named || (checkpoints.length === 0 && !source.base)))
    throw new UserError(`--run ${source.dir}: a checkpoint is damaged. ${broken[0]}.`)
  notices.push(...broken.map((line) => `skipped ${line}.`))
  // An sft run of a new model has the model itself in its checkpoints.
  return { ...source, checkpoints, model: source.model === source.checkpoints[0] ? checkpoints[0] : source.model }
}

/** Sampling fields that the engine has; others in -S go to an endpoint as they are. */
const KNOWN = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'max_tokens', 'stop'] // prettier-ignore

/** OpenAI's Python client puts fields that it does not know into `extra_body`. */
function unfolded(given: Record<string, unknown>): Record<string, unknown> {
  const { extra_body: more, ...rest } = given
  return isTable(more) ? { ...more, ...rest } : given
}

function samplingOf(
  options: EvalOptions,
  { config, sampling: ofFile }: Asked,
  source: EvalSource,
): { sampling: SamplingParams; extra: Record<string, unknown> } {
  const args = config?.trainer.args
  const ofWords = jsonObject('eval', '--sampling-args', options.samplingArgs ?? '{}')
  const { chat_template_kwargs = {}, ...given }: Record<string, unknown> = { ...unfolded(ofFile ?? {}), ...unfolded(ofWords) }
  const wrong = templateProblem(chat_template_kwargs)
  if (wrong) throw new UserError(`Sampling: ${wrong}`)
  const { top_p = 1, top_k = 0, min_p = 0, repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0 } = args ?? {}
  const known = Object.fromEntries(Object.entries(given).filter(([key]) => KNOWN.includes(key)))
  const others = Object.fromEntries(Object.entries(given).filter(([key]) => !KNOWN.includes(key)))
  const unknown = Object.keys(others)
  if (unknown.length > 0 && source.kind !== 'endpoint')
    throw new UserError(
      `Sampling: ${unknown.join(', ')} is not supported by the embedded engine. It supports ${KNOWN.join(', ')} and chat_template_kwargs.`,
    )
  const asked = known.max_tokens
  if (asked !== undefined && !(Number.isSafeInteger(asked) && (asked as number) >= 1))
    throw new UserError(`Sampling: max_tokens is ${JSON.stringify(asked)}; it must be a whole number of 1 or more.`)
  const drawn = { top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, ...known }
  const sampling: SamplingParams = {
    temperature: args?.eval_temperature ?? 1,
    max_tokens: args?.max_tokens ?? MAX_TOKENS,
    stop: args?.stop ?? [],
    ...drawn,
    ...(options.temperature !== undefined && { temperature: options.temperature }),
    ...(options.maxTokens !== undefined && { max_tokens: options.maxTokens }),
    stop_token_ids: [],
    seed: 0,
  }
  if (source.kind !== 'endpoint') checkSampling(sampling)
  const hasTemplateArgs = Object.keys(chat_template_kwargs as object).length > 0
  return { sampling, extra: { ...others, ...(hasTemplateArgs && { chat_template_kwargs }) } }
}

/** @throws UserError for a value that the engine would refuse, once the model is loaded and for each answer */
function checkSampling(sampling: SamplingParams): void {
  try {
    checkRequest({ promptIds: [0], sampling }, { maxLength: Infinity, cacheRows: Infinity, vocabulary: Infinity })
  } catch (error) {
    throw error instanceof UserError ? new UserError(`Sampling: ${error.message}`) : error
  }
}
