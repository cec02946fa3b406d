/**
 * What the checkpoints of a run will need on disk, worked out from sizes alone before anything is trained.
 *
 * Of n trained parameters: an adapter is 4 n bytes (float32, the rank as it is written), a whole model 2 or 4 bytes a weight; the optimizer 8 n, or
 * 2 n and a scale for every 256 of each moment of a matrix (optim = "adamw_8bit"; vectors keep 8 n), and of full training 4 n for the masters. Beside
 * them the tokenizer's files. Every name in a file costs about 130 bytes. Rollouts and metrics are not counted.
 */
import { statfsSync, statSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { linearShapes, tensorShapes } from '../model/shapes.ts'
import type { ModelConfig } from '../model/types.ts'
import { formatBytes } from './memory.ts'
import type { RunConfig } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

const TOKENIZER_FILES = [
  'tokenizer.json',
  'tokenizer_config.json',
  'vocab.json',
  'merges.txt',
  'special_tokens_map.json',
  'chat_template.jinja',
]
/** Of a word and its merge in tokenizer.json, where there is no file to look at (a GGUF). */
const BYTES_A_WORD = 32
/** A tensor's name, type, shape and place in the head of a safetensors file. */
const HEAD_BYTES = 130
const BLOCK = 256

/** The parts of a config that count. */
export type DiskConfig = Pick<RunConfig | SftConfig, 'trainer'>

/** Bytes of one checkpoint. `path`: of the model, for the tokenizer's files. */
export function checkpointBytes({ trainer: { args } }: DiskConfig, model: ModelConfig, path: string): number {
  const shapes = args.use_lora ? adapterShapes(args, model) : [...tensorShapes(model).values()]
  const width = args.use_lora || !args.bf16 ? 4 : 2
  const masters = args.use_lora ? 0 : 4
  let bytes = 0
  for (const shape of shapes) {
    const n = shape.reduce((a, b) => a * b, 1)
    const is8bit = args.optim === 'adamw_8bit' && shape.length > 1
    const moments = is8bit ? 2 * n + 8 * Math.ceil(n / BLOCK) : 8 * n
    const names = 1 + (is8bit ? 4 : 2) + (masters ? 1 : 0)
    bytes += (width + masters) * n + moments + names * HEAD_BYTES
  }
  return bytes + tokenizerBytes(model, path)
}

function adapterShapes(args: DiskConfig['trainer']['args'], model: ModelConfig): number[][] {
  const modules = new Set<string>(args.lora_target_modules)
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

/** Checkpoints that are there at once at most, with words for each kind; the one that is being written counts. */
export function checkpointsKept({ trainer: { args, ckpt } }: DiskConfig): { count: number; words: string } {
  const { interval, keep_last: last, keep_interval: every, keep_best: best } = ckpt
  const steps: number[] = []
  if (interval > 0) for (let step = interval; step <= args.max_steps; step += interval) steps.push(step)
  if (steps.at(-1) !== args.max_steps) steps.push(args.max_steps)
  const newest = Math.min(last, steps.length)
  const divided = every === undefined ? 0 : steps.slice(0, -newest).filter((step) => step % every === 0).length
  const parts: [number, string][] = [
    [newest, `${newest} newest`],
    [divided, `${divided} of every ${every} steps`],
    [best === undefined ? 0 : 1, 'the best'],
    [1, 'one being written'],
  ]
  const there = parts.filter(([count]) => count > 0)
  return { count: there.reduce((sum, [count]) => sum + count, 0), words: there.map(([, words]) => words).join(' + ') }
}

/** "12.3 MiB a checkpoint, 61.5 MiB in all (3 newest + the best + one being written); 52.0 GiB are free", and whether that fits. */
export function diskLine(config: DiskConfig, model: ModelConfig, path: string, dir: string): { line: string; fits: boolean } {
  const one = checkpointBytes(config, model, path)
  const { count, words } = checkpointsKept(config)
  const free = freeBytes(dir)
  const line = `${formatBytes(one)} a checkpoint, ${formatBytes(one * count)} in all (${words})`
  if (free === undefined) return { line, fits: true }
  return { line: `${line}; ${formatBytes(free)} are free`, fits: one * count <= free }
}

/** Free bytes of the disk that a folder, there or to be, is on; undefined where the system does not tell. */
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
