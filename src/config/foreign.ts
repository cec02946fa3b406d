/**
 * Keys of vf-rl, prime-rl, TRL and the Hugging Face Trainer that do not exist here, each with a sentence for the user.
 *
 * - `ignored`: ignoring it changes nothing that is computed. The run continues and says so once.
 * - `refused`: it would change what is computed, or has another name here. The sentence says what to write instead.
 *
 * A key is either listed here or unknown; nothing is guessed. What is said about [inference] depends on the backend.
 */
import { isTable, type Table } from './compose.ts'

interface ForeignKey {
  /** The dotted table that the key is in; '' for the top of the file. */
  table: '' | 'inference' | 'trainer' | 'trainer.args' | 'trainer.ckpt' | 'env' | 'model'
  /** Names, or prefixes that end in *. */
  names: string[]
  verdict: 'ignored' | 'refused'
  /** Completes the sentence "<key> ...". */
  say: string
  /** If given, the verdict applies only to these values, and `otherwise` to all others. */
  when?: (value: unknown) => boolean
  otherwise?: { verdict: 'ignored' | 'refused'; say: string }
  /** If given, the entry applies only to this inference.backend. */
  backend?: Backend
}

type Backend = 'embedded' | 'vllm'

/** The inference backend of a config that has not been validated yet. */
export const backendOf = (raw: Table): Backend =>
  isTable(raw.inference) && raw.inference.backend === 'vllm' ? 'vllm' : 'embedded'

/** Makes the entries of a table from the names of keys, separated by spaces, and the sentence for them. */
const entries =
  (verdict: ForeignKey['verdict']) =>
  (table: ForeignKey['table'], said: Record<string, string>, backend?: Backend): ForeignKey[] =>
    Object.entries(said).map(([names, say]) => ({ table, names: names.split(' '), verdict, say, ...(backend && { backend }) }))
const write = entries('refused')
const ignore = entries('ignored')
const args = 'trainer.args' as const

const oneGpu = {
  verdict: 'refused' as const,
  say: 'asks for several GPUs, but one process trains and generates on one GPU here: remove the key, and set DAWN_RL_ADAPTER to choose the GPU.',
}
const isOne = (value: unknown) => value === 1 || value === 0

/** vLLM flags that prime-rl and others write directly under [inference]. */
const vllmFlags =
  'gpu_memory_utilization max_model_len enforce_eager port dtype tensor_parallel_size data_parallel_size ' +
  'max_loras max_cpu_loras quantization enable_prefix_caching trust_remote_code api_server_count'

export const foreignKeys: ForeignKey[] = [
  // vf-rl and RLTrainer
  {
    table: 'trainer',
    names: ['gpus'],
    verdict: 'ignored',
    say: 'is always 1 here: training and generation share one GPU.',
    when: isOne,
    otherwise: oneGpu,
  },
  {
    table: 'inference',
    names: ['gpus'],
    verdict: 'ignored',
    say: "is not needed: the embedded engine generates on the trainer's GPU.",
    when: isOne,
    otherwise: oneGpu,
    backend: 'embedded',
  },
  {
    table: 'inference',
    names: ['gpus'],
    verdict: 'ignored',
    say: 'is not needed: vLLM uses one GPU; choose it with CUDA_VISIBLE_DEVICES.',
    when: isOne,
    otherwise: {
      verdict: 'refused',
      say: 'is not a key here: write tensor_parallel_size or data_parallel_size under [inference.args].',
    },
    backend: 'vllm',
  },
  ...ignore(
    'inference',
    {
      args: 'are flags of vLLM and are ignored: the embedded engine generates in this process. backend = "vllm" under [inference] would use them.',
    },
    'embedded',
  ),
  ...ignore(args, {
    'use_liger use_liger_kernel': 'is ignored: the output head, the log-probabilities and the loss are always fused.',
    mask_env_responses: 'is ignored: only tokens that the policy sampled are ever trained on.',
  }),
  ...ignore(
    args,
    {
      'vllm_server_* vllm_gpu_* vllm_tensor_* vllm_mode use_vllm':
        'is ignored: the embedded engine generates in this process, without a server.',
    },
    'embedded',
  ),
  ...ignore(
    args,
    {
      'vllm_mode use_vllm': 'is ignored: inference.backend sets it.',
    },
    'vllm',
  ),
  ...write(
    args,
    {
      'vllm_server_*':
        'is not a key here: inference.base_url = "http://HOST:PORT" attaches to a server that is already running; without it, the run starts its own.',
      'vllm_gpu_* vllm_tensor_*':
        'is not a key here: write gpu_memory_utilization or tensor_parallel_size under [inference.args].',
    },
    'vllm',
  ),
  ...ignore(args, {
    'ds3_* ddp_* dataloader_* log_on_each_node local_rank remove_unused_columns':
      'is ignored: there is one process and no data loader.',
    save_only_model: 'is ignored: a checkpoint always holds the optimizer too, so that every one can be resumed.',
    'gradient_checkpointing_kwargs torch_compile* logging_first_step tf32 disable_tqdm':
      'is ignored: it concerns only PyTorch or the Hugging Face Trainer.',
  }),
  ...write(args, {
    'dataset_shuffle shuffle': 'is named shuffle_dataset here.',
    curriculum_sampling: 'is not a key here: shuffle_dataset = false takes rows in the order of the data.',
    lora_r: 'is named lora_rank here.',
    'lora_use_rslora use_rslora': 'is not a key here: for rank-stabilised scaling, set lora_alpha = alpha x sqrt(lora_rank).',
    'lora_modules_to_save lora_config':
      'is not supported: choose layers with lora_target_modules, or train all weights with use_lora = false.',
  }),
  {
    table: args,
    names: ['online_difficulty_filtering'],
    verdict: 'ignored',
    say: 'is ignored: the filter zero_variance, on by default, does the same. oversampling_factor plays other tasks in place of what it drops.',
    when: (v) => v === true,
    otherwise: { verdict: 'refused', say: 'is not a key here: filters = [] keeps every group.' },
  },
  ...write(args, {
    'num_batches_ahead async_level': 'is named max_async_level here.',
    async_generation_timeout: 'is named generation_timeout here.',
    async_max_queue_size: 'is not a key here: max_async_level and max_concurrent bound what is in flight.',
    'vllm_importance_sampling_*': 'is not a key here: mask_ratio_low and mask_ratio_high bound the importance ratio.',
  }),
  // TRL and the Hugging Face Trainer
  ...write(args, {
    'num_generations group_size': 'is named rollouts_per_example here.',
    num_generations_eval: 'is named eval_rollouts_per_example here.',
    'per_device_train_batch_size per_device_eval_batch_size auto_find_batch_size':
      'is named micro_batch_size here, in sequences; it only affects memory.',
    'gradient_accumulation_steps generation_batch_size steps_per_generation':
      'is not a key here: batch_size is the number of rollouts per optimizer step, whatever the micro-batches.',
    'max_completion_length max_new_tokens': 'is named max_tokens here.',
    max_prompt_length: 'is named max_prompt_len here.',
    'max_seq_length max_length seq_len': 'is named max_seq_len here.',
    'kl_beta kl_loss_coef use_kl_loss': 'is named beta here.',
    'kl_coef kl_penalty kl_in_reward':
      'is not a key here: beta adds a KL term to the loss; for one that is subtracted from rewards, see other_kl.ts in docs/algorithms.md.',
    'ref_model_name_or_path ref_model_path teacher_model_name_or_path teacher_model teacher': 'is named ref_model here.',
    'teacher_tau distillation_coef distill_coef':
      'is not a key here: for on-policy distillation, set ref_model, loss = "configs/losses/on-policy-distillation.ts" and its loss_args (docs/algorithms.md).',
    sync_ref_model: 'is not a key here: set ref_model_sync_steps above 0.',
    ref_model_mixup_alpha: "is not supported: after ref_model_sync_steps steps, the reference takes the policy's weights whole.",
    'num_train_epochs num_epochs':
      'is not a key here: max_steps sets the length of a run, and num_iterations the updates per batch.',
    'ppo_epochs num_ppo_epochs mu': 'is named num_iterations here.',
    'epsilon epsilon_high clip_ratio clip_ratio_low clip_ratio_high':
      'is not a key here: for clipping, set loss = "configs/losses/ppo-clip.ts" and loss_args = { clip_low = 0.2, clip_high = 0.28 }. The epsilon_high of CISPO is mask_ratio_high.',
    'delta clip_ratio_c': 'is not a key here: set loss = "configs/losses/ppo-clip.ts" and loss_args = { delta = 4.0 }.',
    'sapo_* vespo_* off_policy_mask_threshold top_entropy_quantile':
      'is not a key here: set trainer.args.loss to a file (sapo.ts, vespo.ts or some_tokens.ts in docs/algorithms.md).',
    'loss_type importance_sampling_level loss_agg_mode':
      'is not a key here: set trainer.args.loss to "cispo", "cispo_mask" or a file; see docs/algorithms.md, "From TRL and prime-rl".',
    scale_rewards:
      'is not a key here: the advantage is reward - group mean, as with false. For "group" or "batch", set trainer.args.advantage to a file (normalised.ts or batch_scaled.ts in docs/algorithms.md).',
    multi_objective_aggregation:
      'is not supported: an advantage function of your own can do it with rollout.metrics (docs/algorithms.md, "From TRL and prime-rl").',
    'reward_weights reward_funcs':
      'is not a key here: rewards and their weights are set in the rubric of the environment (docs/environments.md).',
    'entropy_coeff entropy_loss_coef entropy_bonus ent_coef': 'is named entropy_coef here.',
    'entropy_* use_adaptive_entropy': 'is not supported: entropy_coef adds a bonus for the entropy of all loss tokens.',
    warmup_ratio: 'is not a key here: set warmup_steps = warmup_ratio x max_steps.',
    steps: 'is named max_steps here.',
    eval_interval: 'is named eval_steps here.',
    'skip_first_step eval_base_model': 'is not a key here: an evaluation before the first step is always made.',
    length_penalty:
      "is not a key here: subtract it from the rewards, in an advantage from a file (length_penalty.ts in docs/algorithms.md) or in the environment's rubric.",
    'easy_threshold hard_threshold easy_fraction hard_fraction':
      'is not a key here: a filter from a file drops groups by their rewards, and oversampling_factor plays others in their place (docs/algorithms.md, "A filter").',
    'dppo_mask_low dppo_mask_high kl_tau adv_tau':
      "is not a key here: prime-rl's loss is dppo.ts in docs/algorithms.md, with loss_args.",
    token_batch_size: 'is not a key here: batch_size is in rollouts, and micro_batch_tokens sets memory.',
    'max_inflight max_inflight_rollouts': 'is named max_concurrent here.',
    optimizer: 'is named optim here.',
    'wandb wandb_project': 'is not a key here: report_to = "wandb" sends metrics there, to WANDB_PROJECT.',
    'lr lr_scheduler': 'is not a key here: use learning_rate and lr_scheduler_type.',
    lr_scheduler_kwargs: 'is not supported: constant, constant_with_warmup, linear and cosine take no further arguments.',
  }),
  {
    table: args,
    names: ['eval_on_start'],
    verdict: 'ignored',
    say: 'is ignored: eval_strategy = "steps" always evaluates before the first step.',
    when: (v) => v === true,
    otherwise: { verdict: 'refused', say: 'is not a key here: an evaluation before the first step is always made.' },
  },
  {
    table: args,
    names: ['optim'],
    verdict: 'ignored',
    say: 'is ignored: this value (adamw_torch, adamw_torch_fused, ...) means AdamW in float32, as "adamw" does.',
    when: (v) => typeof v === 'string' && v.startsWith('adamw_') && !v.includes('8bit') && !v.includes('4bit'),
    otherwise: { verdict: 'refused', say: 'must be "adamw" or "adamw_8bit".' },
  },
  {
    table: args,
    names: ['use_bias_correction_kl'],
    verdict: 'ignored',
    say: 'is ignored: it is always false here.',
    when: (v) => v === false,
    otherwise: {
      verdict: 'refused',
      say: 'is not supported: the KL term of beta is not multiplied by the importance ratio. Remove the key, or use other_kl.ts of docs/algorithms.md.',
    },
  },
  {
    table: args,
    names: ['fp16'],
    verdict: 'ignored',
    say: 'is ignored: it is always false here.',
    when: (v) => v === false,
    otherwise: {
      verdict: 'refused',
      say: 'is not supported: arithmetic is float32 over bf16 weights, so no loss scaling is needed. Remove the key.',
    },
  },
  ...write(args, {
    'load_in_4bit load_in_8bit quantization_config':
      'is not a key here: quantization = "q8_0" holds the layers in 8 bits, and quantization = "gguf" as they are in a quantised GGUF file (4 bits: a Q4_K_M file).',
    'deepspeed fsdp fsdp_* accelerator_config parallelism_config':
      'is not supported: one process trains on one GPU. Remove the key.',
    save_steps: 'is the same as interval of [trainer.ckpt], which is also set. Keep one of them.',
    save_total_limit: 'is the same as keep_last of [trainer.ckpt], which is also set. Keep one of them.',
    save_strategy: 'is not a key here: set interval of [trainer.ckpt], in steps (0: only at the end).',
    logging_strategy: 'is not a key here: set logging_steps.',
    resume_from_checkpoint: 'is not a key here: write --resume [latest | step N | folder] on the command line.',
    'push_to_hub hub_*': 'is not supported: checkpoints are PEFT or Hugging Face folders that can be uploaded as they are.',
    'logging_dir overwrite_output_dir': 'is not a key here: a run is written to `<output_dir>/<run_name>`.',
    'load_best_model_at_end metric_for_best_model greater_is_better':
      'is not a key here: `keep_best = "eval/<env>/avg@k"` under [trainer.ckpt] keeps the best checkpoint as checkpoints/best.',
    'wandb_* sampling_args generation_kwargs':
      'is not a key here: see report_to for metrics, and temperature, top_p, max_tokens and the like for sampling.',
    'extra_body enable_thinking':
      'is not a key here: variables for the chat template go in chat_template_kwargs, as { enable_thinking = false }.',
  }),
  // prime-rl and hosted training
  ...write('', {
    model_name: 'is named model here.',
    seq_len: 'is named trainer.args.max_seq_len here.',
    'environment envs': 'is named [env] here, with id and args.',
    'sampling orchestrator optim eval val args': 'is not a table here: its keys go to [trainer.args]',
    'buffer curriculum':
      'is not a table here: filters drop groups by their rewards, oversampling_factor plays others in their place, and shuffle_dataset = false keeps the order of the rows (docs/algorithms.md, "From prime-rl").',
    checkpoints: 'is the table [trainer.ckpt] here.',
    resume: 'is not a key here: write --resume [latest | step N | folder] on the command line.',
    'checkpoint_id adapters':
      'has no meaning here: model.adapter continues from an adapter, --resume continues a run, and --fork starts a new run from a checkpoint of another.',
  }),
  ...write('trainer', {
    'optim model tokenizer data weights': 'is not a table here: its keys go to [trainer.args]',
    scheduler: 'is not a table here: set lr_scheduler_type and warmup_steps of [trainer.args].',
    loss: 'is not a table here: set trainer.args.loss to "cispo", "cispo_mask" or a file; see docs/algorithms.md, "From TRL and prime-rl".',
  }),
  ...write('', {
    ckpt: 'is the table [trainer.ckpt] here.',
  }),
  ...write('trainer.ckpt', {
    resume_step: 'is not a key here: write --resume step N on the command line.',
    'weights weights_only skip_* wait_for_weights_timeout output_dir':
      'is not a key here: a checkpoint holds weights, optimizer and state, in `<output_dir>/<run_name>/checkpoints`.',
  }),
  ...write('', {
    'wandb monitor monitors log':
      'is not a table here: metrics.jsonl in the run folder holds every metric; trainer.args.report_to sends them elsewhere too.',
    'inference_gpu_ids trainer_gpu_ids num_gpus tensor_parallel_size deployment gpus': oneGpu.say,
    'env_file env_files slurm hosted weight_broadcast': 'has no meaning here. Remove it.',
    'teacher teacher_model teacher_inference reference ref_model':
      'is not a table here: set trainer.args.ref_model to a reference model or a teacher; the trainer runs it itself.',
  }),
  ...write(
    'inference',
    {
      [`model server parallel vllm vllm_extra host enable_lora max_lora_rank ${vllmFlags}`]:
        'is a setting of vLLM: the embedded engine takes max_num_seqs, and lengths come from trainer.args.max_seq_len. Remove it, or set backend = "vllm" and write it under [inference.args].',
    },
    'embedded',
  ),
  ...write(
    'inference',
    {
      [vllmFlags]: 'is a flag of vLLM: write it under [inference.args].',
      'model parallel vllm vllm_extra':
        'is not a table here: vLLM serves the `model` of the config, and its flags (dtype, max_model_len, enforce_eager, tensor_parallel_size) are keys of [inference.args]. Move them there.',
      'server host':
        'is not a key here: a server that the run starts listens on this machine only (port goes under [inference.args]). inference.base_url = "http://HOST:PORT" attaches to one that is already running.',
      'enable_lora max_lora_rank': 'is not a key here: trainer.args.use_lora and trainer.args.lora_rank set it.',
    },
    'vllm',
  ),
  ...write('model', {
    'trust_remote_code attn ac lora impl compile revision':
      'is not a key here: model is a folder, a hub id or a .gguf file; training keys are in [trainer.args].',
  }),
  ...write('env', {
    ratio: 'is named weight here.',
    'num_examples rollouts_per_example group_size interval':
      'is the same for all environments here: set eval_examples, eval_rollouts_per_example, rollouts_per_example and eval_steps of [trainer.args].',
    taskset: 'is not a key here: for a taskset of verifiers, write its id as id and its other keys as args.',
    'agent harness': 'goes into extra_env_kwargs for a taskset of verifiers: extra_env_kwargs = { agent = { max_turns = 5 } }.',
  }),
]

/** prime-rl's names for keys of [trainer.args]. '' if the same name has another meaning there (oversampling_factor: requests in flight). */
export const renamed: Record<string, string> = {
  lr: 'learning_rate', rank: 'lora_rank', alpha: 'lora_alpha', dropout: 'lora_dropout',
  target_modules: 'lora_target_modules', max_norm: 'max_grad_norm', betas1: 'adam_beta1', betas2: 'adam_beta2', num_examples: 'eval_examples',
  ac: 'gradient_checkpointing', scheduler: 'lr_scheduler_type', seq_len: 'max_seq_len', group_size: 'rollouts_per_example',
  max_completion_tokens: 'max_tokens', max_inflight: 'max_concurrent', max_inflight_rollouts: 'max_concurrent', oversampling_factor: '',
  enable_thinking: 'chat_template_kwargs',
} // prettier-ignore

/** The same for prime-rl's evaluation tables. Their other keys have no counterpart. */
export const renamedInEval: Record<string, string> = {
  interval: 'eval_steps', num_examples: 'eval_examples', rollouts_per_example: 'eval_rollouts_per_example',
  group_size: 'eval_rollouts_per_example', temperature: 'eval_temperature',
} // prettier-ignore

const environments = 'Environments are [[env]], with id and args.'
/** Sentences about tables inside prime-rl's training tables and evaluation tables. */
export const innerTables: Record<'train' | 'eval', Record<string, string>> = {
  train: {
    env: environments,
    source: environments,
    ...Object.fromEntries(
      ['algo', 'buffer', 'curriculum'].map((key) => [key, `For ${key} see docs/algorithms.md, "From prime-rl".`]),
    ),
  },
  eval: Object.fromEntries(
    ['env', 'source'].map((key) => [
      key,
      'Environments of evaluations are [[env]] too; with weight = 0 they are only evaluated.',
    ]),
  ),
}

/** The entry for a key, or undefined. `table` is dotted, without list indices. */
export function findForeign(table: string, key: string, backend: Backend): ForeignKey | undefined {
  const fits = (name: string) => (name.endsWith('*') ? key.startsWith(name.slice(0, -1)) : key === name)
  return foreignKeys.find((one) => one.table === table && (one.backend ?? backend) === backend && one.names.some(fits))
}

/** The verdict on a foreign key with this value. */
export function judge(foreign: ForeignKey, value: unknown): { verdict: 'ignored' | 'refused'; say: string } {
  return foreign.when && foreign.otherwise && !foreign.when(value) ? foreign.otherwise : foreign
}
