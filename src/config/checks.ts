/**
 * Checks that involve several keys (mistakes), and notices, which the schema of a single key cannot express. A check names the keys it reads. It is
 * skipped if one of them is already known to be wrong, so that each mistake is reported only once.
 */
import { existsSync } from 'node:fs'
import { CLI } from '../common/commands.ts'
import { messageOf, nearest } from '../common/errors.ts'
import { FLOAT32_RANGE, isFloat32 } from '../common/float32.ts'
import { resolveEnvironment } from '../environments/load.ts'
import { needPython, pythonKnows } from '../environments/python/bridge.ts'
import { counted } from '../monitor/format.ts'
import { ckptChecks, ckptNotices, sftCkptChecks } from './ckpt-checks.ts'
import { filtersOf, inferenceChecks, inferenceNotices, withoutEffect } from './inference-checks.ts'
import { show, templateProblem } from './problems.ts'
import { BUILT_IN, keepsReference, spareGroups } from './algorithm-schema.ts'
import type { RunConfig } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

/** What a check can find out about the config as it was written. */
export interface Written {
  /** Whether the key was set by a file or the command line. */
  isSet(key: string): boolean
  /** Whether the key was set to something other than its default. */
  isChanged(key: string): boolean
  /** The value as written, before defaults are filled in. */
  value(key: string): unknown
}

/** A check that involves one or more keys. */
export interface Check<Config> {
  /** Dotted keys. The problem is reported at the first one that is set. */
  keys: string[]
  /** Returns complete sentences without their place, or undefined if all is well. */
  find: (config: Config, written: Written) => Found | Found[]
}

/** `key`: where to report the problem, if not at the first of `keys` that is set. */
type Found = string | { key: string; text: string } | undefined

const A = 'trainer.args.'
const looksLikeFile = (name: string) => /[/\\]|\.(ts|js|mjs)$/.test(name)

/** Says what is wrong with the name of a loss, advantage or filter, which must be built-in or an existing file. */
function pluginProblem(kind: keyof typeof BUILT_IN, name: string): string | undefined {
  if (BUILT_IN[kind].includes(name)) return undefined
  const names = BUILT_IN[kind].map(show).join(', ')
  if (looksLikeFile(name))
    return existsSync(name) ? undefined : `${A}${kind} is ${show(name)}, but there is no such file in ${process.cwd()}.`
  const meant = nearest(name, BUILT_IN[kind])
  return `${A}${kind} is ${show(name)}; it must be ${names} or a file such as "./my_${kind}.ts".${meant ? ` Did you mean ${show(meant)}?` : ''}`
}

/** Says what is wrong with the id of an environment, in the words of src/environments, which would load it. */
function environmentProblem(key: string, id: string, about: { python?: boolean; python_path?: string } = {}): Found {
  const { python, python_path } = about
  const isPythons = python ?? (python_path !== undefined || id.endsWith('.py'))
  try {
    if (isPythons) {
      needPython(id, python_path, '.')
      if (id.endsWith('.py') && !existsSync(id))
        return { key, text: `environment ${id}: there is no such file in ${process.cwd()}.` }
    } else resolveEnvironment(id)
    return undefined
  } catch (error) {
    if (!isPythons && python === undefined && pythonKnows(id, '.')) return undefined
    return { key, text: messageOf(error) }
  }
}

const shared: Check<RunConfig | SftConfig>[] = [
  {
    keys: ['trainer.args'],
    find: ({ trainer: { args } }, written) =>
      Object.entries(args)
        .filter(([key, value]) => typeof value === 'number' && !isFloat32(value) && written.isSet(A + key))
        .map(([key, value]) => ({
          key: A + key,
          text: `${A}${key} is ${show(value)}, which float32, the GPU's numbers, cannot hold. Use a number from ${FLOAT32_RANGE}.`,
        })),
  },
  {
    keys: [`${A}chat_template_kwargs`],
    find({ trainer: { args } }) {
      const text = templateProblem(args.chat_template_kwargs)
      return text && `${A}${text}`
    },
  },
  {
    keys: ['micro_batch_tokens', 'max_seq_len', 'micro_batch_size'].map((key) => A + key),
    find: ({ trainer: { args } }) =>
      args.micro_batch_tokens < args.max_seq_len
        ? `${A}micro_batch_tokens is ${args.micro_batch_tokens}, less than one sequence of max_seq_len (${args.max_seq_len}). Raise it to ${args.max_seq_len}, or lower max_seq_len.`
        : undefined,
  },
  {
    keys: [`${A}use_lora`, 'model.adapter'],
    find: ({ trainer, model }) =>
      model.adapter && !trainer.args.use_lora
        ? `model.adapter is set, but trainer.args.use_lora is false: merge the adapter first (\`${CLI} merge\`), or set use_lora = true.`
        : undefined,
  },
  {
    keys: [`${A}quantization`, `${A}use_lora`],
    find: ({ trainer: { args } }) =>
      args.quantization && !args.use_lora
        ? `${A}quantization is ${show(args.quantization)}, but use_lora is false: weights that are trained cannot be quantised. Remove quantization, or set use_lora = true.`
        : undefined,
  },
]

export const rlChecks: Check<RunConfig>[] = [
  {
    keys: [`${A}batch_size`, `${A}rollouts_per_example`],
    find({ trainer: { args } }) {
      const [batch, group] = [args.batch_size, args.rollouts_per_example]
      if (batch % group === 0) return undefined
      const below = batch - (batch % group)
      const use = below > 0 ? `${below} or ${below + group}` : String(group)
      return `${A}batch_size is ${batch}, not a multiple of rollouts_per_example (${group}). Use ${use}.`
    },
  },
  {
    keys: ['max_tokens', 'max_seq_len', 'max_prompt_len'].map((key) => A + key),
    find({ trainer: { args } }) {
      const { max_prompt_len: prompt, max_tokens: tokens, max_seq_len: whole } = args
      if (prompt >= whole)
        return `${A}max_prompt_len is ${prompt}, which leaves nothing of max_seq_len (${whole}) for a completion. Use max_seq_len = ${prompt + Math.max(tokens, 64)}, or a shorter prompt.`
      if (prompt + tokens <= whole) return undefined
      return `${A}max_prompt_len (${prompt}) + max_tokens (${tokens}) is ${prompt + tokens}, more than max_seq_len (${whole}). Use max_tokens = ${whole - prompt}, or max_seq_len = ${prompt + tokens}.`
    },
  },
  {
    keys: [`${A}mask_ratio_low`, `${A}mask_ratio_high`],
    find: ({ trainer: { args } }) =>
      args.mask_ratio_low < args.mask_ratio_high
        ? undefined
        : `${A}mask_ratio_low is ${args.mask_ratio_low}, not below mask_ratio_high (${args.mask_ratio_high}). The range should contain 1.`,
  },
  {
    keys: [`${A}max_off_policy_steps`, `${A}max_async_level`],
    find: ({ trainer: { args } }) =>
      args.max_off_policy_steps >= args.max_async_level
        ? undefined
        : `${A}max_off_policy_steps is ${args.max_off_policy_steps}, less than max_async_level (${args.max_async_level}): every rollout would be dropped. Use ${args.max_async_level} or more.`,
  },
  {
    keys: [`${A}ref_model_sync_steps`, `${A}ref_model`],
    find: ({ trainer: { args } }) =>
      args.ref_model !== undefined && args.ref_model_sync_steps > 0
        ? `${A}ref_model_sync_steps is ${args.ref_model_sync_steps}, but ref_model names another model as the reference, which does not take the policy's weights. Remove one of them.`
        : undefined,
  },
  { keys: [`${A}loss`], find: ({ trainer: { args } }) => pluginProblem('loss', args.loss) },
  { keys: [`${A}advantage`], find: ({ trainer: { args } }) => pluginProblem('advantage', args.advantage) },
  {
    keys: [`${A}filters`],
    find: ({ trainer: { args } }) => args.filters.map((name) => pluginProblem('filters', name)),
  },
  ...(['loss', 'advantage'] as const).map((kind): Check<RunConfig> => ({
    keys: [`${A}${kind}_args`, A + kind],
    find: ({ trainer: { args } }) =>
      Object.keys(args[`${kind}_args`]).length && BUILT_IN[kind].includes(args[kind])
        ? `${A}${kind}_args is set, but the built-in ${kind} ${show(args[kind])} takes none.${kind === 'loss' ? ' Its range is mask_ratio_low and mask_ratio_high.' : ''}`
        : undefined,
  })),
  {
    keys: ['env'],
    find({ env }) {
      const names = env.map((one) => one.name)
      const twice = names.find((name, i) => names.indexOf(name) !== i)
      return twice === undefined
        ? undefined
        : `env: two environments are named ${show(twice)}. Give one of them another \`name\`.`
    },
  },
  {
    keys: ['env'],
    find: ({ env }) =>
      env.every(({ weight }) => weight === 0)
        ? 'env: every environment has weight = 0, which means that it is only evaluated, so none is left to train on. Set a weight above 0 for one.'
        : undefined,
  },
  {
    keys: ['env'],
    find: ({ env }) => env.map(({ id, ...about }, i) => environmentProblem(`env.${i}.id`, id, about)),
  },
  ...(shared as Check<RunConfig>[]),
  ...ckptChecks,
  ...inferenceChecks,
]

export const sftChecks: Check<SftConfig>[] = [
  {
    keys: ['model.name', 'model.new'],
    find({ model }) {
      if (model.name && model.new) return 'model.new describes a new model, but model.name is set too. Keep one of them.'
      if (!model.name && !model.new)
        return 'model is empty. Write model = "folder or hub id", or a [model.new] table for a new one.'
      return model.new && model.adapter ? 'model.adapter cannot be used with model.new. Remove one of them.' : undefined
    },
  },
  {
    keys: [
      'model.new',
      'model.new.hidden_size',
      'model.new.num_attention_heads',
      'model.new.num_key_value_heads',
      'model.new.head_dim',
    ],
    find({ model: { new: fresh } }) {
      if (!fresh) return undefined
      const { num_attention_heads: heads, num_key_value_heads: kv, head_dim } = fresh
      if (heads % kv !== 0)
        return `model.new.num_key_value_heads is ${kv}; num_attention_heads (${heads}) must be a multiple of it.`
      if (head_dim % 2 === 0) return undefined
      return `model.new.hidden_size is ${fresh.hidden_size}; divided by num_attention_heads (${heads}) it gives no even head size. Set model.new.head_dim, or change one of them.`
    },
  },
  {
    keys: ['data.path', 'data.env'],
    find({ data }) {
      if (data.path && data.env) return 'data.path and data.env are both set. Keep one of them.'
      if (!data.path && !data.env) return 'data is empty. Write path = "file.jsonl", or [data.env] with the id of an environment.'
      if (data.env) return environmentProblem('data.env.id', data.env.id)
      return data.path && !existsSync(data.path)
        ? `data.path is ${show(data.path)}, but there is no such file in ${process.cwd()}.`
        : undefined
    },
  },
  ...(shared as Check<SftConfig>[]),
  ...sftCkptChecks,
]

/** One line for each key that was set but has no effect because of another key. */
function idleKeys(args: RunConfig['trainer']['args'] | SftConfig['trainer']['args'], written: Written): string[] {
  const notices: string[] = []
  const idle = (keys: string[], because: string) => notices.push(...withoutEffect(written, A, keys, because))
  if (!args.use_lora) idle(['lora_rank', 'lora_alpha', 'lora_dropout', 'lora_target_modules'], 'use_lora is false')
  if (!args.gradient_checkpointing) idle(['keep_attention'], 'gradient_checkpointing is false, so everything is kept')
  if (args.lr_scheduler_type === 'constant')
    idle(['warmup_steps'], 'lr_scheduler_type is "constant"; write "constant_with_warmup"')
  else if (args.warmup_steps >= args.max_steps)
    notices.push(
      `${A}warmup_steps is ${args.warmup_steps} and max_steps ${args.max_steps}: the learning rate never reaches its peak.`,
    )
  // A resolved config has both keys, with the same meaning. That is not worth a notice.
  if (written.isSet(`${A}micro_batch_tokens`) && written.value(`${A}micro_batch_size`) !== args.micro_batch_size)
    idle(['micro_batch_size'], 'micro_batch_tokens is set')
  return notices
}

/** Notices on an RL config, one line each. */
export function rlNotices(config: RunConfig, written: Written): string[] {
  const { args } = config.trainer
  const notices = [...idleKeys(args, written), ...ckptNotices(config, written), ...inferenceNotices(config, written)]
  const idle = (keys: string[], because: string) => notices.push(...withoutEffect(written, A, keys, because))
  const drawn = filtersOf(args)
  if (drawn.length)
    notices.push(
      `${A}${drawn.join(', ')}: changes which tokens are sampled, but not the log-probability used in training (over the full vocabulary); a value far from neutral biases the importance ratio.`,
    )
  if (args.lora_dropout > 0 && args.use_lora)
    notices.push(
      `${A}lora_dropout above 0: the trainer computes log-probabilities with dropout and the sampler without, so mismatch_kl is ${config.inference.backend === 'vllm' ? 'larger' : 'no longer 0'} on fresh samples.`,
    )
  if (args.eval_strategy === 'no') {
    idle(['eval_steps', 'eval_examples', 'eval_rollouts_per_example'], 'eval_strategy is "no"')
    for (const { name } of config.env.filter(({ weight }) => weight === 0))
      notices.push(`the environment ${name} is only evaluated (weight = 0), but eval_strategy is "no", so it is not played.`)
  }
  if (!args.log_completions) idle(['log_completions_steps', 'num_completions_to_print'], 'log_completions is false')
  if (!BUILT_IN.loss.includes(args.loss))
    idle(['mask_ratio_low', 'mask_ratio_high'], 'the loss is from a file, which takes loss_args instead')
  if (!keepsReference(args)) idle(['ref_model_sync_steps'], 'beta is 0 and use_ref_model false, so there is no reference model')
  const groups = args.batch_size / args.rollouts_per_example
  if (spareGroups(groups, args.oversampling_factor) === 0)
    idle(['oversampling_factor'], `with ${counted(groups, 'group')} per step, it does not allow one more group`)
  if (args.filters.every((name) => BUILT_IN.filters.includes(name)) && Object.keys(args.filter_args).length)
    notices.push(`${A}filter_args has no effect: no filter is a file.`)
  if (args.rollouts_per_example < 4 && args.filters.includes('zero_variance'))
    notices.push(
      `${A}rollouts_per_example is ${args.rollouts_per_example}: small groups often have no reward variance and are then dropped; 8 or more are recommended.`,
    )
  return notices
}

/** Notices on an SFT config, one line each. */
export const sftNotices = (config: SftConfig, written: Written): string[] => [
  ...idleKeys(config.trainer.args, written),
  ...ckptNotices(config, written),
]
