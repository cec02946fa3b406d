/**
 * Estimates before training what a run will need on disk: for its checkpoints, and for what it logs at each step.
 *
 * Checkpoints, for n trained parameters: an adapter takes 4 n bytes (float32, with the rank as written), a whole model 2 or 4 bytes per weight. The
 * optimizer takes 8 n; with optim = "adamw_8bit" 2 n and a scale for every 256 values of each moment of a matrix (vectors keep 8 n). Full fine-tuning
 * adds 4 n for the float32 masters. The tokenizer's files are copied. Every name in a file costs about 130 bytes. With ref_model_sync_steps, each
 * checkpoint has at most one more adapter or model: the reference, which checkpoints between two syncs share.
 *
 * Rollouts, metrics and logs are estimated: every prompt and answer is assumed to have the maximum length, with bytes per token measured in runs
 * (models/tiny, SmolLM2; test/cli/kill.test.ts compares the estimate with a run).
 */
import { readdirSync, statfsSync, statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { adapterModules, linearShapes, tensorShapes } from '../model/decoder/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { counted, formatBytes } from '../monitor/format.ts'
import { keepsReference, spareGroups } from './algorithm-schema.ts'
import { leastCommonMultiple } from './ckpt-checks.ts'
import type { RunConfig } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

const TOKENIZER_FILES = [
  'tokenizer.json',
  'tokenizer_config.json',
  'vocab.json',
  'merges.txt',
  'tokenizer.model',
  'special_tokens_map.json',
  'chat_template.jinja',
]
/** Bytes of a token and its merge in tokenizer.json, used if there is no such file (GGUF). */
const BYTES_A_WORD = 32
/** Bytes of a tensor's name, type, shape and offsets in the header of a safetensors file. */
const HEAD_BYTES = 130
const BLOCK = 256

/** Bytes of a rollout's names, numbers and times in its two rows, and of the text and id of a prompt token. */
const ROLLOUT_BYTES = 850
const PROMPT_TOKEN_BYTES = 10
/** Bytes of an answer token: its text, id, version and the sampler's log-probability. If it is trained on, the trainer's numbers are added. */
const SAMPLED_TOKEN_BYTES = 30
const TRAINED_TOKEN_BYTES = 50
/** Bytes of a step (its row of metrics and its log lines; an evaluation of an environment takes as much) and of a timeline span, and numbers of spans. */
const STEP_BYTES = 4000
const SPAN_BYTES = 90
const ROLLOUT_SPANS = 4
const STEP_SPANS = 20
const SPANS_AT_MOST = 400

/** The parts of a config that matter here. */
type DiskConfig = Pick<RunConfig | SftConfig, 'trainer'> & { env?: readonly unknown[] }

/** Bytes of one checkpoint. `path`: the model, for the tokenizer's files. */
export function checkpointBytes({ trainer: { args } }: DiskConfig, model: ModelConfig, path: string): number {
  const shapes = args.use_lora ? adapterShapes(args, model) : [...tensorShapes(model).values()]
  const width = args.use_lora || !args.bf16 ? 4 : 2
  const masters = args.use_lora ? 0 : 4
  const moved = 'beta' in args && keepsReference(args) && args.ref_model_sync_steps > 0
  let bytes = 0
  for (const shape of shapes) {
    const n = shape.reduce((a, b) => a * b, 1)
    const is8bit = args.optim === 'adamw_8bit' && shape.length > 1
    const moments = is8bit ? 2 * n + 8 * Math.ceil(n / BLOCK) : 8 * n
    const names = 1 + (is8bit ? 4 : 2) + (masters ? 1 : 0)
    bytes += (width + masters) * n + moments + names * HEAD_BYTES + (moved ? width * n + HEAD_BYTES : 0)
  }
  return bytes + tokenizerBytes(model, path)
}

function adapterShapes(args: DiskConfig['trainer']['args'], model: ModelConfig): number[][] {
  const modules = new Set<string>(adapterModules(model, args.lora_target_modules))
  return [...linearShapes(model)].flatMap(([name, [outputs, inputs]]) =>
    modules.has(name.split('.').at(-1) ?? '')
      ? [
          [args.lora_rank, inputs],
          [outputs, args.lora_rank],
        ]
      : [],
  )
}

function tokenizerBytes(model: ModelConfig, path: string): number {
  const sizes = TOKENIZER_FILES.map((name) => statSync(join(path, name), { throwIfNoEntry: false })?.size ?? 0)
  return sizes.reduce((a, b) => a + b, 0) || BYTES_A_WORD * model.vocabSize
}

/** The maximum number of checkpoints that exist at once, including the one being written, and the number of each kind in words. */
export function checkpointsKept({ trainer: { args, ckpt } }: DiskConfig): { count: number; words: string } {
  const { interval, keep_last: last, keep_interval: every, keep_best: best } = ckpt
  // Computed without a loop, as a run without an end has max_steps of a billion.
  const saved = interval > 0 ? Math.ceil(args.max_steps / interval) : 1
  const newest = Math.min(last, saved)
  const divided =
    every === undefined ? 0 : Math.floor(((saved - newest) * interval) / (leastCommonMultiple(interval, every) || 1))
  const parts: [number, string][] = [
    [newest, `${newest} newest`],
    [divided, `${divided} of every ${every} steps`],
    [best === undefined ? 0 : 1, 'the best'],
    [1, 'one being written'],
  ]
  const there = parts.filter(([count]) => count > 0)
  return { count: there.reduce((sum, [count]) => sum + count, 0), words: there.map(([, words]) => words).join(' + ') }
}

/** About how many bytes rollouts (not of `sft`), metrics, logs and timeline of a whole run take at most, and in words what was counted. */
export function recordBytes(config: DiskConfig): { bytes: number; words: string } {
  const { args } = config.trainer
  const steps = args.max_steps
  const ofSteps = (rollouts: number) =>
    steps * (STEP_BYTES + SPAN_BYTES * Math.min(SPANS_AT_MOST, STEP_SPANS + ROLLOUT_SPANS * rollouts))
  if (!('rollouts_per_example' in args)) return { bytes: ofSteps(0), words: `metrics and logs of ${counted(steps, 'step')}` }
  const { max_prompt_len: prompt, max_tokens: answer } = args
  const { rollouts_per_example: group } = args
  const batch_size = args.batch_size + group * spareGroups(args.batch_size / group, args.oversampling_factor)
  const one = ROLLOUT_BYTES + PROMPT_TOKEN_BYTES * prompt
  const evaluations = args.eval_strategy === 'no' ? 0 : 1 + Math.ceil(steps / args.eval_steps)
  const environments = config.env?.length ?? 1
  const played = evaluations * environments * args.eval_examples * args.eval_rollouts_per_example
  const trained = steps * batch_size * (one + TRAINED_TOKEN_BYTES * answer)
  return {
    bytes:
      trained + played * (one + SAMPLED_TOKEN_BYTES * answer) + ofSteps(batch_size) + evaluations * environments * STEP_BYTES,
    words: `${steps} x ${batch_size} rollouts${played > 0 ? ` and ${played} of evaluations` : ''}, metrics and logs, with ${prompt} + ${answer} tokens each`,
  }
}

/**
 * Describes the need for disk space: "12.3 MiB a checkpoint, 61.5 MiB in all (3 newest + the best + one being written); up to about 1.2 GiB of ...
 * (an estimate); 52.0 GiB are free".
 * @param written bytes that a resumed run already has on disk
 * @returns `short`: what does not fit, undefined if everything does
 */
export function diskLine(
  config: DiskConfig,
  model: ModelConfig,
  path: string,
  dir: string,
  written = 0,
): { line: string; short?: string } {
  const one = checkpointBytes(config, model, path)
  const { count, words } = checkpointsKept(config)
  const records = recordBytes(config)
  const free = freeBytes(dir)
  const line = `${formatBytes(one)} a checkpoint, ${formatBytes(one * count)} in all (${words}); up to about ${formatBytes(records.bytes)} beside them (an estimate: ${records.words})`
  if (free === undefined) return { line }
  const room = free + written
  const short =
    one * count > room
      ? 'the checkpoints'
      : one * count + records.bytes > room
        ? 'the checkpoints and, with prompts and answers of full length, rollouts, metrics and logs'
        : undefined
  return { line: `${line}; ${formatBytes(free)} are free`, short }
}

/** Total size in bytes of all files below a folder. */
export function folderBytes(dir: string): number {
  const files = readdirSync(dir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  return files.reduce(
    (sum, { parentPath, name }) => sum + (statSync(join(parentPath, name), { throwIfNoEntry: false })?.size ?? 0),
    0,
  )
}

/** Free bytes on the disk of a folder that may not exist yet. Undefined if the system does not report it. */
export function freeBytes(dir: string): number | undefined {
  let at = resolve(dir)
  while (!statSync(at, { throwIfNoEntry: false }) && dirname(at) !== at) at = dirname(at)
  try {
    const { bavail, bsize } = statfsSync(at)
    return bavail * bsize
  } catch {
    return undefined
  }
}
