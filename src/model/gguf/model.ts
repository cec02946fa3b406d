/**
 * A GGUF file as a Hugging Face model: its config, and its tensors under Hugging Face names, rounded to bf16.
 *  - llama.cpp stores llama's Q and K rows permuted (its rotary pairs are neighbours); they are put back, for llama, smollm3 and granite alone.
 *  - LFM2's convolutions lack the middle dimension, of 1; its last norm is called token_embd_norm, and output_norm in Ollama's files.
 *  - A missing output.weight means a head tied to the embedding.
 */
import { UserError } from '../../common/errors.ts'
import { isQuantised, type QuantisedFormat } from '../../kernels/quantised/quantised.ts'
import { MOST_LAYERS } from '../config/keys.ts'
import { familyNames } from '../config/families/index.ts'
import type { GgufFile, GgufValue } from './gguf.ts'
import { readYarn } from '../config/yarn.ts'
import { lfm2Layers } from './lfm2.ts'
import { lastNormPath, layerPath, tensorShapes } from '../decoder/shapes.ts'
import type { ModelConfig, ModelFamily, RopeScaling, TensorBlocks, TensorData, TensorSource } from '../types.ts'

/** By general.architecture; Mistral's files say llama, and those of Granite 4 with attention in every layer say granite. */
const ARCHITECTURES: readonly string[] = ['llama', 'smollm3', 'qwen2', 'qwen3', 'lfm2', 'granite']
/** Those whose Q and K are permuted. */
const PERMUTED: readonly string[] = ['llama', 'smollm3', 'granite']
const architectureNames = new Intl.ListFormat('en-GB').format(ARCHITECTURES)
/** Hugging Face's names by those of a GGUF, as most families have them. */
const GLOBAL_NAMES = new Map([
  ['token_embd', 'model.embed_tokens'],
  ['output', 'lm_head'],
])
const LAYER_NAMES = new Map([
  ['attn_norm', 'input_layernorm'],
  ['ffn_norm', 'post_attention_layernorm'],
  ['attn_q', 'self_attn.q_proj'],
  ['attn_k', 'self_attn.k_proj'],
  ['attn_v', 'self_attn.v_proj'],
  ['attn_output', 'self_attn.o_proj'],
  ['attn_q_norm', 'self_attn.q_norm'],
  ['attn_k_norm', 'self_attn.k_norm'],
  ['ffn_gate', 'mlp.gate_proj'],
  ['ffn_up', 'mlp.up_proj'],
  ['ffn_down', 'mlp.down_proj'],
  ['shortconv.conv', 'conv.conv'],
  ['shortconv.in_proj', 'conv.in_proj'],
  ['shortconv.out_proj', 'conv.out_proj'],
])

/** The Hugging Face name of a GGUF tensor, or null for one that has none (rope_freqs.weight). */
function hfName(ggufName: string, config: ModelConfig): string | null {
  const [, layer, part, kind] = /^(?:blk\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(ggufName) ?? []
  if (part === undefined) return null
  if (layer === undefined) {
    const isLastNorm = part === 'output_norm' || (part === 'token_embd_norm' && config.family === 'lfm2')
    const name = isLastNorm ? lastNormPath(config) : GLOBAL_NAMES.get(part)
    return name === undefined ? null : `${name}.${kind}`
  }
  const name = LAYER_NAMES.get(part)
  return name === undefined ? null : `${layerPath(config, Number(layer), name)}.${kind}`
}

const isNumber = (value: GgufValue): value is number => typeof value === 'number'
const isString = (value: GgufValue): value is string => typeof value === 'string'
const isFlag = (value: GgufValue): value is boolean => typeof value === 'boolean'
const isStrings = (value: GgufValue): value is string[] => Array.isArray(value) && value.every(isString)
const isNumbers = (value: GgufValue): value is number[] => Array.isArray(value) && value.every(isNumber)
const isNumberOrNumbers = (value: GgufValue): value is number | number[] =>
  isNumber(value) || (isNumbers(value) && value.length > 0)

/** Reads metadata keys with errors that name the file and the key. */
export function metadataReader(file: GgufFile) {
  const get = <T>(key: string, is: (value: GgufValue) => value is T & GgufValue, what: string): T | undefined => {
    const value = file.metadata.get(key)
    if (value === undefined) return undefined
    if (!is(value)) throw new UserError(`${file.path}: ${key} must be ${what}.`)
    return value
  }
  const above0 = (key: string, otherwise?: number): number => {
    const value = get<number>(key, isNumber, 'a number') ?? otherwise
    if (value === undefined) throw new UserError(`${file.path}: the metadata has no ${key}. Is the file a complete model?`)
    if (!(value > 0 && value < Infinity)) throw new UserError(`${file.path}: ${key} is ${value}; it must be a number above 0.`)
    return value
  }
  return {
    number: (key: string) => get<number>(key, isNumber, 'a number'),
    string: (key: string) => get<string>(key, isString, 'a string'),
    /** The id of a special token. One that the vocabulary does not reach stands for none, as 4294967295 does in some files. */
    tokenId: (name: string): number | undefined => {
      const id = get<number>(`tokenizer.ggml.${name}`, isNumber, 'a number')
      const tokens = file.metadata.get('tokenizer.ggml.tokens')
      const count = Array.isArray(tokens) ? tokens.length : Infinity
      return id !== undefined && Number.isInteger(id) && id >= 0 && id < count ? id : undefined
    },
    flag: (key: string) => get<boolean>(key, isFlag, 'true or false'),
    strings: (key: string) => get<string[]>(key, isStrings, 'a list of strings'),
    numbers: (key: string) => get<number[]>(key, isNumbers, 'a list of numbers'),
    above0,
    /** A number that some files give for each layer. */
    sameInAll: (key: string): number | undefined => {
      const value = get<number | number[]>(key, isNumberOrNumbers, 'a number, or a list of them')
      if (!Array.isArray(value)) return value
      if (value.every((one) => one === value[0])) return value[0]
      throw new UserError(`${file.path}: ${key} is not the same in all layers, which is not supported.`)
    },
    count: (key: string, most = Infinity): number => {
      const value = above0(key)
      if (Number.isInteger(value) && value <= most) return value
      const bounds = most === Infinity ? 'a whole number above 0' : `a whole number from 1 to ${most}`
      throw new UserError(`${file.path}: ${key} is ${value}; it must be ${bounds}.`)
    },
  }
}

/**
 * The shape of the model in a GGUF file. `eosTokenIds` are the tokenizer's. Throws UserError for an architecture, a rope scaling or a
 * feature that the decoder does not have.
 */
export async function ggufConfig(file: GgufFile, eosTokenIds: number[]): Promise<ModelConfig> {
  const meta = metadataReader(file)
  const arch = meta.string('general.architecture') ?? ''
  if (!ARCHITECTURES.includes(arch)) {
    throw new UserError(
      `${file.path}: its architecture "${arch}" is not supported in GGUF files; ${architectureNames} are. Use the model's Hugging Face folder if its model_type is one of ${familyNames}.`,
    )
  }
  if ((meta.number('split.count') ?? 1) > 1) {
    throw new UserError(`${file.path} is one part of a split GGUF; join the parts first (llama-gguf-split --merge).`)
  }
  if ((meta.number(`${arch}.expert_count`) ?? 0) > 0) throw new UserError(`${file.path}: mixtures of experts are not supported.`)
  const hiddenSize = meta.count(`${arch}.embedding_length`)
  const heads = meta.count(`${arch}.attention.head_count`)
  const headDim = meta.number(`${arch}.attention.key_length`) ?? meta.number(`${arch}.rope.dimension_count`) ?? hiddenSize / heads
  const ropeDim = meta.number(`${arch}.rope.dimension_count`) ?? headDim
  if (ropeDim !== headDim)
    throw new UserError(
      `${file.path}: rotary embeddings are applied to ${ropeDim} of the ${headDim} dimensions of a head; only all of them are supported.`,
    )
  const layers = meta.count(`${arch}.block_count`, MOST_LAYERS)
  const ropeTheta = exactDecimal(meta.above0(`${arch}.rope.freq_base`, 10_000))
  return {
    family: arch as ModelFamily,
    hiddenSize,
    intermediateSize: meta.count(`${arch}.feed_forward_length`),
    layers,
    heads,
    ...(arch === 'lfm2'
      ? lfm2Layers(meta, layers, file.path)
      : { kvHeads: meta.sameInAll(`${arch}.attention.head_count_kv`) ?? heads }),
    headDim,
    vocabSize: file.tensor('token_embd.weight').shape[0],
    rmsNormEps: exactDecimal(meta.above0(`${arch}.attention.layer_norm_rms_epsilon`)),
    ropeTheta,
    ropeScaling: await ropeScaling(file, arch, headDim, ropeTheta),
    // No key says it: llama.cpp has the number in its code.
    ...(arch === 'smollm3' && { layersWithoutRope: Array.from({ length: layers }, (_, i) => i).filter((i) => i % 4 === 3) }),
    ...(arch === 'granite' && graniteParts(file)),
    tieWordEmbeddings: !file.tensors.has('output.weight'),
    qkvBias: file.tensors.has('blk.0.attn_q.bias'),
    outputBias: file.tensors.has('blk.0.attn_output.bias'),
    qkNorm: [...file.tensors.keys()].some((name) => name.endsWith('.attn_q_norm.weight')),
    maxPositionEmbeddings: meta.count(`${arch}.context_length`),
    eosTokenIds,
    bosTokenId: meta.tokenId('bos_token_id') ?? null,
    padTokenId: meta.tokenId('padding_token_id') ?? null,
  }
}

/** Granite's factors, of which 0 is none, as llama.cpp reads them. */
function graniteParts(file: GgufFile): Partial<ModelConfig> {
  const meta = metadataReader(file)
  const factor = (key: string): number | undefined => {
    const value = meta.number(`granite.${key}`) ?? 0
    if (!(value >= 0 && value < Infinity))
      throw new UserError(`${file.path}: granite.${key} is ${value}; it must be a number above 0.`)
    return value === 0 ? undefined : exactDecimal(value)
  }
  const unlessOne = (value: number | undefined) => (value === 1 ? undefined : value)
  // Its files say by this whether heads are turned. No config.json of this family says that they are not, so nothing could be written.
  if (meta.flag('granite.rope.scaling.finetuned') === false)
    throw new UserError(
      `${file.path}: granite.rope.scaling.finetuned is false, which means no rotary embedding; Granite's GGUF files are supported only with it. Use the model's Hugging Face folder.`,
    )
  return {
    embeddingScale: unlessOne(factor('embedding_scale')),
    attentionScale: factor('attention.scale'),
    residualScale: unlessOne(factor('residual_scale')),
    logitsScaling: unlessOne(factor('logit_scale')),
  }
}

/** Tensors that a model computes with, but for the angles of old files, which follow from the metadata. */
const COMPUTED = /^(?:blk\.\d+|token_embd\w*|output\w*)\.(?!attn_rot_embd\.)/

/** @throws UserError for a tensor that the decoder has no place for (a bias in the MLP): without it, it would be another model */
export function refuseOtherTensors(file: GgufFile, config: ModelConfig): void {
  const known = tensorShapes(config)
  const other = [...file.tensors.keys()].find((name) => COMPUTED.test(name) && !known.has(hfName(name, config) ?? ''))
  if (other !== undefined)
    throw new UserError(`${file.path}: its tensor ${other} is not supported, and leaving it out would change the model.`)
}

/** The decimal that was meant by a float32 (9.99999974e-06 is 1e-5): the shortest that rounds to it. */
function exactDecimal(value: number): number {
  for (let digits = 1; digits < 10; digits++) {
    const short = Number(value.toPrecision(digits))
    if (Math.fround(short) === value) return short
  }
  return value
}

async function ropeScaling(file: GgufFile, arch: string, headDim: number, theta: number): Promise<RopeScaling> {
  const meta = metadataReader(file)
  // As llama.cpp reads them: linear where no type is said, no factor beside "none", and a factor of 0 is none.
  const type = meta.string(`${arch}.rope.scaling.type`) ?? 'linear'
  const given = meta.number(`${arch}.rope.scaling.factor`) ?? meta.number(`${arch}.rope.scale_linear`)
  const factor = (type === 'linear' && given) || 1
  if (type !== 'none' && type !== 'linear' && type !== 'yarn')
    throw new UserError(`${file.path}: rope scaling "${type}" is not supported; none, linear, llama3 and yarn are.`)
  if (file.tensors.has('rope_factors_long.weight'))
    throw new UserError(`${file.path}: long and short rope factors are not supported.`)
  if (type === 'yarn') return yarn(file, arch)
  if (!file.tensors.has('rope_freqs.weight')) return factor === 1 ? { type: 'default' } : { type: 'linear', factor }
  const factors = await file.readFloat32('rope_freqs.weight')
  if (factors.length !== headDim / 2) {
    throw new UserError(
      `${file.path}: rope_freqs.weight has ${factors.length} factors, but a head of ${headDim} needs ${headDim / 2}.`,
    )
  }
  return KNOWN_LLAMA3.find((known) => isLlama3(known, factors, theta)) ?? { type: 'factors', factors }
}

/** Keys of yarn, below `rope.scaling`, that versions of llama.cpp understand in different ways, with the values that change nothing in any. */
const YARN_AS_IT_IS = {
  attn_factor: 1,
  yarn_ext_factor: 1,
  yarn_attn_factor: 1,
  yarn_beta_fast: 32,
  yarn_beta_slow: 1,
  yarn_log_multiplier: 0,
}

/** With the bounds of YaRN's authors, and their factor of attention: what all versions of llama.cpp compute without other keys. */
function yarn(file: GgufFile, arch: string): RopeScaling {
  const meta = metadataReader(file)
  const path = `${arch}.rope.scaling`
  for (const [name, usual] of Object.entries(YARN_AS_IT_IS)) {
    const value = meta.number(`${path}.${name}`) ?? usual
    if (value !== usual)
      throw new UserError(
        `${file.path}: ${path}.${name} is ${exactDecimal(value)}, but only ${usual} is supported in a GGUF file. Use the model's Hugging Face folder.`,
      )
  }
  if (file.tensors.has('rope_freqs.weight'))
    throw new UserError(`${file.path}: rope scaling "yarn" with factors of its own (rope_freqs.weight) is not supported.`)
  const positions = meta.count(`${arch}.context_length`)
  const original = meta.number(`${path}.original_context_length`) || positions
  return readYarn({ factor: exactDecimal(meta.above0(`${path}.factor`)) }, file.path, original, positions)
}

type Llama3 = Extract<RopeScaling, { type: 'llama3' }>
/** The scalings of the released models (3.1 and 3.3, then 3.2): a GGUF keeps only the factors that come of them. */
const KNOWN_LLAMA3: readonly Llama3[] = [8, 32].map((factor) => ({
  type: 'llama3',
  factor,
  lowFreqFactor: 1,
  highFreqFactor: 4,
  originalMaxPositionEmbeddings: 8192,
}))

/** Whether `factors` are those that the llama3 rule gives: 1 for short wavelengths, `factor` for long ones, smooth between. */
function isLlama3(rule: Llama3, factors: Float32Array, theta: number): boolean {
  const { factor, lowFreqFactor: low, highFreqFactor: high, originalMaxPositionEmbeddings: original } = rule
  return factors.every((found, i) => {
    const wavelength = 2 * Math.PI * theta ** (i / factors.length)
    const smooth = Math.min(1, Math.max(0, (original / wavelength - low) / (high - low)))
    const expected = 1 / ((1 - smooth) / factor + smooth)
    return Math.abs(found - expected) <= 1e-4 * expected
  })
}

/** The tensors of a GGUF file under Hugging Face names. Every one is rounded to bf16, norms too. */
export class GgufTensors implements TensorSource {
  #file: GgufFile
  #config: ModelConfig
  #ggufNames = new Map<string, string>()
  readonly blocks = {
    format: (name: string): QuantisedFormat | undefined => {
      const { format } = this.#file.tensor(this.#ggufName(name))
      return isQuantised(format.name) ? format.name : undefined
    },
    read: async (name: string): Promise<TensorBlocks> => {
      const ggufName = this.#ggufName(name)
      const { format, shape } = this.#file.tensor(ggufName)
      const data = this.#inOrder(name, shape[0], await this.#file.readBytes(ggufName))
      return { format: format.name as QuantisedFormat, shape, data }
    },
  }
  constructor(file: GgufFile, config: ModelConfig) {
    this.#file = file
    this.#config = config
    for (const name of file.tensors.keys()) {
      const hf = hfName(name, config)
      if (hf !== null) this.#ggufNames.set(hf, name)
    }
  }
  names(): string[] {
    return [...this.#ggufNames.keys()]
  }
  has(name: string): boolean {
    return this.#ggufNames.has(name)
  }
  shape(name: string): number[] {
    const { shape } = this.#file.tensor(this.#ggufName(name))
    return name.endsWith('.conv.conv.weight') && shape.length === 2 ? [shape[0], 1, shape[1]] : shape
  }
  #ggufName(name: string): string {
    const found = this.#ggufNames.get(name)
    if (found === undefined) throw new UserError(`Tensor ${name} is missing in ${this.#file.path}.`)
    return found
  }
  async read(name: string): Promise<TensorData> {
    const ggufName = this.#ggufName(name)
    const shape = this.shape(name)
    return { dtype: 'bf16', shape, data: this.#inOrder(name, shape[0], await this.#file.readBf16(ggufName)) }
  }
  /** Rows in Hugging Face's order. */
  #inOrder<Rows extends Uint8Array | Uint16Array>(name: string, rows: number, data: Rows): Rows {
    const permuted = PERMUTED.includes(this.#config.family) && /\.self_attn\.[qk]_proj\./.test(name)
    return permuted ? unpermuteRows(data, rows, this.#config.headDim) : data
  }
  close(): void {
    this.#file.close()
  }
}

/**
 * Undoes llama.cpp's order of the rows of Q and K: inside each head, its row 2 i + j is Hugging Face's row j * headDim / 2 + i (j is 0
 * or 1). `rows` rows of equal length.
 */
function unpermuteRows<Rows extends Uint8Array | Uint16Array>(data: Rows, rows: number, headDim: number): Rows {
  const out = data.slice() as Rows
  const columns = data.length / rows
  const half = headDim / 2
  for (let row = 0; row < rows; row++) {
    const inHead = row % headDim
    const to = row - inHead + (inHead & 1) * half + (inHead >> 1)
    out.set(data.subarray(row * columns, (row + 1) * columns), to * columns)
  }
  return out
}
