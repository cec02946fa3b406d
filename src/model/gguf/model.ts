/**
 * A GGUF file as a Hugging Face model: its config, and its tensors under Hugging Face names, rounded to bf16.
 *  - llama.cpp stores llama's Q and K rows permuted (its rotary pairs are neighbours); they are put back, for llama, smollm3 and granite alone.
 *  - LFM2's convolutions lack the middle dimension, of 1; its last norm is called token_embd_norm, and output_norm in Ollama's files.
 *  - Gemma's norms are stored as what they multiply by, 1 + Hugging Face's weight.
 *  - A missing output.weight means a head tied to the embedding.
 */
import { UserError } from '../../common/errors.ts'
import { isQuantised, type QuantisedFormat } from '../../kernels/quantised/quantised.ts'
import { MOST_LAYERS } from '../config/keys.ts'
import { familyNames } from '../config/families/index.ts'
import { roundToBf16 } from '../bf16.ts'
import { OWN_PARTS } from './families.ts'
import type { GgufFile } from './gguf.ts'
import { lfm2Layers } from './lfm2.ts'
import { exactDecimal, metadataReader } from './metadata.ts'
import { ropeScaling } from './rope.ts'
import { lastNormPath, layerPath, tensorShapes } from '../decoder/shapes.ts'
import type { ModelConfig, ModelFamily, TensorBlocks, TensorData, TensorSource } from '../types.ts'

/** By general.architecture; Mistral's files say llama, those of Granite 4 with attention in every layer granite, and those of Olmo 3 olmo2. */
const ARCHITECTURES: readonly string[] = ['llama', 'smollm3', 'qwen2', 'qwen3', 'lfm2', 'granite', 'gemma3', 'olmo2', 'phi3']
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
  ['attn_qkv', 'self_attn.qkv_proj'],
])
/** Those of models whose norms also follow attention and the MLP (`norms`). */
const AFTER_NAMES = new Map([
  ['post_attention_norm', 'post_attention_layernorm'],
  ['ffn_norm', 'pre_feedforward_layernorm'],
  ['post_ffw_norm', 'post_feedforward_layernorm'],
])
/** Of those whose files have gate and up as one. */
const FUSED_NAMES = new Map([['ffn_up', 'mlp.gate_up_proj']])

/** The Hugging Face name of a GGUF tensor, or null for one that has none (rope_freqs.weight). */
function hfName(ggufName: string, config: ModelConfig): string | null {
  const [, layer, part, kind] = /^(?:blk\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(ggufName) ?? []
  if (part === undefined) return null
  if (layer === undefined) {
    const isLastNorm = part === 'output_norm' || (part === 'token_embd_norm' && config.family === 'lfm2')
    const name = isLastNorm ? lastNormPath(config) : GLOBAL_NAMES.get(part)
    return name === undefined ? null : `${name}.${kind}`
  }
  const { norms, fused } = config
  const own = (norms && AFTER_NAMES.get(part)) ?? (fused && FUSED_NAMES.get(part))
  const name = own ?? LAYER_NAMES.get(part)
  return name === undefined ? null : `${layerPath(config, Number(layer), name)}.${kind}`
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
  const turned = arch === 'phi3' ? undefined : meta.number(`${arch}.rope.dimension_count`)
  const headDim = meta.number(`${arch}.attention.key_length`) ?? turned ?? hiddenSize / heads
  const ropeDim = turned ?? headDim
  if (ropeDim !== headDim)
    throw new UserError(
      `${file.path}: rotary embeddings are applied to ${ropeDim} of the ${headDim} dimensions of a head; only all of them are supported.`,
    )
  const layers = meta.count(`${arch}.block_count`, MOST_LAYERS)
  const ropeTheta = exactDecimal(meta.above0(`${arch}.rope.freq_base`, 10_000))
  const intermediateSize = meta.count(`${arch}.feed_forward_length`)
  const attention =
    arch === 'lfm2'
      ? lfm2Layers(meta, layers, file.path)
      : { kvHeads: meta.sameInAll(`${arch}.attention.head_count_kv`) ?? heads }
  const shape = { hiddenSize, intermediateSize, layers, heads, headDim, ropeTheta, ...attention }
  const own = await OWN_PARTS[arch]?.(file, shape)
  return {
    family: arch as ModelFamily,
    ...shape,
    vocabSize: file.tensor('token_embd.weight').shape[0],
    rmsNormEps: exactDecimal(meta.above0(`${arch}.attention.layer_norm_rms_epsilon`)),
    ropeScaling: own?.ropeScaling ?? (await ropeScaling(file, arch, headDim, ropeTheta)),
    // No key says it: llama.cpp has the number in its code.
    ...(arch === 'smollm3' && { layersWithoutRope: Array.from({ length: layers }, (_, i) => i).filter((i) => i % 4 === 3) }),
    tieWordEmbeddings: !file.tensors.has('output.weight'),
    qkvBias: file.tensors.has('blk.0.attn_q.bias'),
    outputBias: file.tensors.has('blk.0.attn_output.bias'),
    qkNorm: [...file.tensors.keys()].some((name) => name.endsWith('.attn_q_norm.weight')),
    maxPositionEmbeddings: meta.count(`${arch}.context_length`),
    eosTokenIds,
    bosTokenId: meta.tokenId('bos_token_id') ?? null,
    padTokenId: meta.tokenId('padding_token_id') ?? null,
    ...own,
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
    if (this.#config.normsFromOne && name.endsWith('norm.weight')) {
      const gains = await this.#file.readFloat32(ggufName)
      return { dtype: 'bf16', shape, data: roundToBf16(gains.map((gain) => gain - 1)) }
    }
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
