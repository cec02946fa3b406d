/** The inputs of a run that need no device: environments, loss, algorithm, model files. Opened and checked first, so that mistakes show at once. */
import { UserError } from '../common/errors.ts'
import type { Message, ToolDefinition } from '../common/types.ts'
import { BUILT_IN, keepsReference } from '../config/algorithm-schema.ts'
import type { Loaded } from '../config/load.ts'
import type { EnvConfig, RunConfig } from '../config/schema.ts'
import type { SftConfig } from '../config/sft-schema.ts'
import { ArgsError, ChatTemplate, hookResolve, loadEnvironment, type Row } from '../environments/index.ts'
import { refuseLonger } from '../model/config/longrope.ts'
import { openModel, type ModelFiles } from '../model/files/open.ts'
import { checkAdapter, modulesOf, readAdapter, type Adapter } from '../model/files/peft.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { adapterModules, linearShapes } from '../model/decoder/shapes.ts'
import type { Algorithm } from '../orchestrator/algorithm.ts'
import { loadAlgorithm, tryAlgorithm } from '../orchestrator/plugins.ts'
import { evaluatedRows, isTrained, membersOf, type RunEnvironment } from '../orchestrator/tasks.ts'
import { checkLossShape } from '../trainer/losses/check.ts'
import { loadLoss, type Loss } from '../trainer/losses/index.ts'
import { checkSameTokens } from '../trainer/reference.ts'
import { loadOptionsOf } from './environments.ts'
import { unreadNotices, watchArgs } from './watched-args.ts'

/** Everything that a run reads before it opens the device. */
export interface Inputs {
  environments: RunEnvironment[]
  loss: Loss
  algorithm: Algorithm
  model: ModelFiles
  tokenizer: Tokenizer
  template: ChatTemplate
  /** Messages to token ids, with the start of the assistant's turn. */
  encode: (messages: Message[], tools?: readonly ToolDefinition[]) => number[]
  /** The adapter that training starts from. */
  adapter?: Adapter
  /** Another model as the reference. */
  refModel?: ModelFiles
  /** Remarks, one line each. */
  notices: string[]
}

/** Opens and checks all inputs. @throws UserError for any mistake in them */
export async function openInputs(loaded: Pick<Loaded<RunConfig>, 'config' | 'at'>): Promise<Inputs> {
  const { config } = loaded
  const { args } = config.trainer
  const environments = await openEnvironments(loaded)
  hookResolve() // Losses and other files of the user need it even if all environments are in Python.
  const loss = await loadLoss(args.loss, args, args.loss_args)
  const algorithm = await loadAlgorithm(args)
  const unread = tryPlugins(loss, algorithm, environments.find(isTrained)!, keepsReference(args))
  const model = await openModel(config.model.name)
  let refModel: ModelFiles | undefined
  try {
    const tokenizer = await model.tokenizer()
    refModel = args.ref_model === undefined ? undefined : await openReference(args.ref_model, { ...model, tokenizer })
    for (const files of [model, refModel]) if (files) refuseLonger(files, args.max_seq_len, maxSeqLenIs(args))
    const adapter = config.model.adapter ? await openAdapter(config, model) : undefined
    const template = new ChatTemplate(tokenizer, args.chat_template_kwargs)
    const encode: Inputs['encode'] = (messages, tools) => template.prompt(messages, tools).ids
    const notices = [...unread, ...environments.flatMap((source) => checkPrompts(source, template, args))]
    if (environments.some(({ env }) => env.tools && env.tools.length > 0) && !template.showsTools)
      notices.push(
        "the model's chat template does not render tools: they are described in the system message, in the Hermes format.",
      )
    if (tokenizer.eosTokenIds.length === 0)
      notices.push(
        'the model has no end-of-sequence token, so every answer is cut off at max_tokens: add its eos_token_id to generation_config.json.',
      )
    if (args.eval_strategy === 'steps' && !environments.some((source) => evaluatedRows(source).length > 0))
      notices.push('eval_strategy is "steps", but no environment has held-out tasks: nothing is evaluated.')
    return { environments, loss, algorithm, model, tokenizer, template, encode, adapter, refModel, notices }
  } catch (error) {
    model.close()
    refModel?.close()
    throw error
  }
}

/** For messages. */
export const maxSeqLenIs = ({ max_seq_len: tokens }: { max_seq_len: number }): string => `trainer.args.max_seq_len is ${tokens}`

/** Opens ref_model. @throws UserError if it is not a model, or its tokens differ from the policy's */
async function openReference(ref: string, policy: Parameters<typeof checkSameTokens>[0]): Promise<ModelFiles> {
  let files: ModelFiles | undefined
  try {
    files = await openModel(ref)
    checkSameTokens(policy, { ...files, tokenizer: await files.tokenizer() })
    return files
  } catch (error) {
    files?.close()
    if (error instanceof UserError) throw new UserError(`trainer.args.ref_model: ${error.message}`)
    throw error
  }
}

async function openEnvironments({ config, at }: Pick<Loaded<RunConfig>, 'config' | 'at'>): Promise<RunEnvironment[]> {
  const open = async (wanted: EnvConfig, index: number) => {
    try {
      const env = await loadEnvironment(wanted.id, wanted.args, loadOptionsOf(wanted))
      return membersOf({ name: wanted.name, weight: wanted.weight, env })
    } catch (error) {
      // Errors about a file of rows already name that file.
      if (!(error instanceof UserError && error.message.startsWith('environment '))) throw error
      const key = error instanceof ArgsError ? ['args', ...error.path] : ['id']
      throw new UserError(`${at(['env', String(index), ...key])}: ${error.message}`, { cause: error })
    }
  }
  const environments = (await Promise.all(config.env.map(open))).flat()
  const names = environments.map(({ name }) => name)
  const twice = names.find((name, i) => names.indexOf(name) < i)
  if (twice !== undefined)
    throw new UserError(`Two environments are named ${twice}. Give one of them another name: [[env]] name = "...".`)
  const empty = environments.find(({ env }) => env.dataset.length === 0)
  if (empty) throw new UserError(`The environment ${empty.name} has no rows to train on.`)
  return environments
}

/**
 * Tries the user's loss, advantage and filters before anything else is loaded. Returns remarks, one line each.
 * @throws UserError where one fails
 */
function tryPlugins(loss: Loss, algorithm: Algorithm, source: RunEnvironment, reference: boolean): string[] {
  const { advantage, filters } = algorithm
  const [ofLoss, ofAdvantage, ofFilters] = [loss.args, advantage.args, filters[0]?.args ?? {}].map(watchArgs)
  if (!loss.kernel) checkLossShape({ ...loss, args: ofLoss.args }, reference)
  const watched = { ...algorithm, advantage: { ...advantage, args: ofAdvantage.args } }
  tryAlgorithm({ ...watched, filters: filters.map((filter) => ({ ...filter, args: ofFilters.args })) }, exampleOf(source))
  const files = filters.filter(({ name }) => !BUILT_IN.filters.includes(name)).map(({ name }) => name)
  return [
    ...(loss.kernel ? [] : unreadNotices(ofLoss, 'trainer.args.loss_args.', loss.name)),
    ...unreadNotices(ofAdvantage, 'trainer.args.advantage_args.', advantage.name),
    ...(files.length > 0 ? unreadNotices(ofFilters, 'trainer.args.filter_args.', files.join(' and ')) : []),
  ]
}

/** The fields that all made-up rollouts of the first task share; advantage and filters are tried on them. */
function exampleOf({ name, env }: RunEnvironment) {
  const { prompt, answer, info } = env.dataset[0]
  return { env: name, prompt, answer, info, metrics: Object.fromEntries((env.rubric.names ?? []).map((metric) => [metric, 0.5])) }
}

/**
 * Reads the adapter that training starts from.
 * @throws UserError if it is not an adapter, belongs to another model, or has other settings than the config
 */
export async function openAdapter(config: RunConfig | SftConfig, model: Pick<ModelFiles, 'name' | 'config'>): Promise<Adapter> {
  const { args } = config.trainer
  const adapter = await readAdapter(config.model.adapter!)
  checkAdapter(adapter, model.config, model.name)
  const { r, loraAlpha } = adapter.config
  const modules = modulesOf(adapter.tensors.keys()).toSorted()
  const there = modulesOf(linearShapes(model.config).keys())
  const asked = adapterModules(model.config, args.lora_target_modules).filter((module) => there.includes(module))
  const differs = [
    r !== args.lora_rank && `lora_rank = ${r}`,
    loraAlpha !== args.lora_alpha && `lora_alpha = ${loraAlpha}`,
    modules.join() !== asked.toSorted().join() && `lora_target_modules = [${modules.map((module) => `"${module}"`).join(', ')}]`,
  ].filter(Boolean)
  if (differs.length === 0) return adapter
  throw new UserError(
    `The adapter ${config.model.adapter} was made with ${differs.join(', ')}, but this config says otherwise. Write these values under [trainer.args].`,
  )
}

/** Prompts of up to twice this many tokens (or twice max_prompt_len) are counted exactly; counting megabytes of text to the end would take minutes. */
const COUNTED = 2048

/** Checks the first rows for prompts that are too long, which would otherwise fail one by one during the run. */
function checkPrompts(source: RunEnvironment, template: ChatTemplate, args: RunConfig['trainer']['args']): string[] {
  const { name, env } = source
  const limit = args.max_prompt_len
  const trained = isTrained(source) ? env.dataset.slice(0, 200) : []
  const prompts = [...trained, ...evaluatedRows(source).slice(0, 50)].map((row: Row) => {
    const { ids, cut } = template.with(row.variables).prompt(row.prompt, env.tools, Math.max(limit, COUNTED))
    return { length: ids.length, cut }
  })
  const tooLong = prompts.filter(({ length }) => length > limit).length
  if (tooLong === 0) return []
  const longest = Math.max(...prompts.map(({ length }) => length))
  const whole = longest + args.max_tokens
  const room = whole > args.max_seq_len ? ` and trainer.args.max_seq_len to ${whole}` : ''
  const cut = prompts.some((prompt) => prompt.cut)
  const mend = cut
    ? `Some have more than ${longest} tokens: shorten them, or leave them out.`
    : `Set trainer.args.max_prompt_len to ${longest}${room} or more.`
  if (tooLong === prompts.length) {
    const size = cut ? 'too long' : `up to ${longest} tokens long`
    throw new UserError(`The prompts of ${name} are ${size} and max_prompt_len is ${limit}: none fits. ${mend}`)
  }
  return [
    `${tooLong} of the first ${prompts.length} prompts of ${name} are longer than max_prompt_len (${limit}); their rollouts will fail. ${mend}`,
  ]
}
