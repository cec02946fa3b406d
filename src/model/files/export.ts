/** Writes weights out as a Hugging Face folder, and folds adapters into weights. Tensors are made one at a time. */
import { join } from 'node:path'
import { UserError } from '../../common/errors.ts'
import { floatsOf, roundToBf16, roundToF16 } from '../bf16.ts'
import { jsonText, writeFolderWhole, writeWhole } from './files.ts'
import { INDEX_FILE } from './hub.ts'
import type { ModelFiles } from './open.ts'
import { checkAdapter, checkFinite, type Adapter } from './peft.ts'
import { tensorBytes, writeSafetensors, type TensorToWrite } from './safetensors.ts'
import { tensorShapes } from '../decoder/shapes.ts'
import { refuseOtherHead } from '../decoder/tied-head.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { TensorData } from '../types.ts'

/** Hugging Face loaders map a file whole; 4 GiB is what small machines and file systems take. */
const SHARD_BYTES = 4 * 2 ** 30

/** One tensor to write, made when its turn comes. */
export interface TensorMaker {
  name: string
  dtype: 'bf16' | 'f16' | 'f32'
  shape: readonly number[]
  /** Values of another dtype are rounded or widened. */
  read(): Promise<TensorData> | TensorData
}

interface ModelToWrite {
  /** config.json, as the model came (`ModelFiles.rawConfig()`); its dtype is set to that of the matrices. */
  rawConfig: Record<string, unknown>
  rawGenerationConfig?: Record<string, unknown> | null
  tensors: readonly TensorMaker[]
  tokenizer?: Tokenizer | null
}

interface WriteModelOptions {
  /** Replaces a folder that is there. */
  replace?: boolean
  /** Largest size of one file. */
  shardBytes?: number
  /** Called when all is read and written, before the folder takes its name. */
  written?: () => void
}

/**
 * Writes config.json, generation_config.json, model.safetensors (or shards with their index) and the tokenizer's files into a
 * folder, whole or not at all. Throws UserError where the folder is there already.
 */
export async function writeModelFolder(dir: string, model: ModelToWrite, options: WriteModelOptions = {}): Promise<void> {
  const fill = async (aside: string) => {
    await writeModelFiles(aside, model, options.shardBytes)
    options.written?.()
  }
  await writeFolderWhole(dir, fill, options)
}

/** The files of `writeModelFolder`, into a folder that is there: for a checkpoint, whose own folder is what becomes whole. */
export async function writeModelFiles(dir: string, model: ModelToWrite, shardBytes = SHARD_BYTES): Promise<void> {
  const dtypes = new Set(model.tensors.flatMap((tensor) => (tensor.shape.length === 2 ? [tensor.dtype] : [])))
  const dtype = dtypes.size > 1 ? 'float32' : WORDS[[...dtypes][0] ?? 'bf16']
  const { torch_dtype: _old, quantization_config: _quantization, ...rest } = model.rawConfig
  await writeWhole(join(dir, 'config.json'), [jsonText({ ...rest, dtype, torch_dtype: dtype })])
  // Other servers stop at the ends that are named there alone, and answers were trained to end with the template's.
  const ends = model.tokenizer?.turnEnd == null ? null : { eos_token_id: model.tokenizer.eosTokenIds }
  const generation = ends ? { ...model.rawGenerationConfig, ...ends } : model.rawGenerationConfig
  if (generation) await writeWhole(join(dir, 'generation_config.json'), [jsonText(generation)])
  await writeWeights(dir, model.tensors, shardBytes)
  await model.tokenizer?.saveTo(dir)
}

const WORDS = { bf16: 'bfloat16', f16: 'float16', f32: 'float32' }

const five = (n: number) => String(n).padStart(5, '0')

async function writeWeights(dir: string, tensors: readonly TensorMaker[], shardBytes: number): Promise<void> {
  const shards: Map<string, TensorToWrite>[] = [new Map()]
  let size = 0
  let total = 0
  for (const tensor of tensors) {
    const entry = toWrite(tensor)
    const bytes = tensorBytes(entry)
    if (size > 0 && size + bytes > shardBytes) {
      shards.push(new Map())
      size = 0
    }
    shards[shards.length - 1].set(tensor.name, entry)
    size += bytes
    total += bytes
  }
  if (shards.length === 1) {
    await writeSafetensors(join(dir, 'model.safetensors'), shards[0], { format: 'pt' })
    return
  }
  const weightMap: Record<string, string> = {}
  for (const [i, shard] of shards.entries()) {
    const file = `model-${five(i + 1)}-of-${five(shards.length)}.safetensors`
    await writeSafetensors(join(dir, file), shard, { format: 'pt' })
    for (const name of shard.keys()) weightMap[name] = file
  }
  await writeWhole(join(dir, INDEX_FILE), [jsonText({ metadata: { total_size: total }, weight_map: weightMap })])
}

function toWrite(tensor: TensorMaker): TensorToWrite {
  const { dtype, shape } = tensor
  const data = async () => {
    const made = await tensor.read()
    if (made.dtype === dtype) return made.data
    const values = floatsOf(made)
    return dtype === 'f32' ? values : dtype === 'f16' ? roundToF16(values) : roundToBf16(values)
  }
  return { dtype: dtype.toUpperCase() as Uppercase<typeof dtype>, shape, data }
}

/** W + scale * B A on the CPU: every sum in float64, rounded to float32. `weight` is (outputs, inputs), A (r, inputs), B (outputs, r). */
export function mergeAdapter(weight: TensorData, A: Float32Array, B: Float32Array, scale: number): TensorData {
  const [outputs, inputs] = weight.shape
  const r = A.length / inputs
  const base = floatsOf(weight)
  const row = new Float64Array(inputs)
  const out = new Float32Array(outputs * inputs)
  for (let o = 0; o < outputs; o++) {
    row.set(base.subarray(o * inputs, (o + 1) * inputs))
    for (let k = 0; k < r; k++) {
      const b = B[o * r + k] * scale
      const at = k * inputs
      for (let i = 0; i < inputs; i++) row[i] += b * A[at + i]
    }
    out.set(row, o * inputs)
  }
  return { dtype: 'f32', shape: weight.shape, data: out }
}

/** Values from which on a dtype has only infinity: half a step above its largest number. */
const OVER = { bf16: 2 ** 128 - 2 ** 119, f16: 65_520, f32: Infinity }

/** How many values are not finite once they are written in `dtype`. */
function notFinite(made: TensorData, dtype: TensorMaker['dtype']): number {
  const { data } = made
  const over = OVER[dtype]
  let count = 0
  if (made.dtype === 'bf16' && dtype !== 'f16')
    for (let i = 0; i < data.length; i++) count += Number((data[i] & 0x7f80) === 0x7f80)
  else for (const value of floatsOf(made)) count += Number(!(Math.abs(value) < over))
  return count
}

/** By safetensors' names. */
const DTYPES: Record<string, TensorMaker['dtype']> = { F32: 'f32', F16: 'f16', BF16: 'bf16' }

/**
 * Writes a model, with an adapter folded in where there is one, as a Hugging Face folder. Each tensor keeps the dtype that it has in safetensors, and one
 * that the adapter leaves alone its bits; a GGUF is widened, or rounded, to bf16. A model
 * without a tokenizer is written without one. Throws UserError where the adapter is for another model or not finite, or makes a weight so, where a tied head is another matrix
 * than the embedding, and where `signal` ends the writing between two tensors; nothing is left of it then.
 */
export async function writeMerged(
  dir: string,
  model: ModelFiles,
  adapter: Adapter | null,
  options: WriteModelOptions & { signal?: AbortSignal; warn?: (line: string) => void } = {},
): Promise<void> {
  if (adapter) {
    checkAdapter(adapter, model.config, model.name)
    checkFinite(adapter)
  }
  await refuseOtherHead(model.name, model.config, model.tensors)
  const tensors = [...tensorShapes(model.config)].map(([name, shape]): TensorMaker => {
    const pair = adapter?.tensors.get(name.replace(/\.weight$/, ''))
    const dtype = DTYPES[model.tensors.dtype?.(name) ?? 'BF16'] ?? 'bf16'
    const read = async () => {
      options.signal?.throwIfAborted()
      const weight = await model.tensors.read(name)
      const made = pair ? mergeAdapter(weight, pair.A, pair.B, pair.scale) : weight
      const bad = notFinite(made, dtype)
      const says = `holds ${bad} of ${made.data.length} values that are not finite in ${WORDS[dtype]}`
      if (bad > 0 && pair) throw new UserError(`The merged ${name} ${says}.`)
      if (bad > 0) options.warn?.(`${name} of ${model.name} ${says}; they are written as they are.`)
      return made
    }
    return { name, dtype, shape, read }
  })
  const tokenizer = await model.tokenizerOrNull()
  await writeModelFolder(
    dir,
    { rawConfig: model.rawConfig(), rawGenerationConfig: model.rawGenerationConfig, tensors, tokenizer },
    options,
  )
}
