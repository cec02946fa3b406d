/** What the model room knows of a model: its shape, its tensors, its tokenizer. */
import type { QuantisedFormat } from '../kernels/quantised/quantised.ts'

/** The families that the decoder runs: see ./families. */
export const FAMILIES = [
  'llama',
  'mistral',
  'ministral',
  'smollm3',
  'qwen2',
  'qwen3',
  'gemma3_text',
  'qwen3_5_text',
  'olmo2',
  'olmo3',
  'lfm2',
  'granite',
  'granitemoehybrid',
  'phi3',
] as const
export type ModelFamily = (typeof FAMILIES)[number]

/** Rotary embedding frequencies; `llama3` is the scaling of Llama 3.1 and later (transformers' `_compute_llama3_parameters`). */
export type RopeScaling =
  | { type: 'default' }
  | { type: 'linear'; factor: number }
  | { type: 'llama3'; factor: number; lowFreqFactor: number; highFreqFactor: number; originalMaxPositionEmbeddings: number }
  /** See rope-yarn.ts; cos and sin are multiplied by attentionFactor. */
  | {
      type: 'yarn'
      factor: number
      attentionFactor: number
      betaFast: number
      betaSlow: number
      truncate: boolean
      originalMaxPositionEmbeddings: number
    }
  /** See rope-longrope.ts; cos and sin are multiplied by attentionFactor. maxPositionEmbeddings is the file's; the model's is the original. */
  | {
      type: 'longrope'
      shortFactors: number[]
      longFactors: number[]
      attentionFactor: number
      originalMaxPositionEmbeddings: number
      maxPositionEmbeddings: number
    }
  /** Inverse frequency i divided by factors[i] (headDim / 2 of them): the rope_freqs.weight of a GGUF whose rule is not known. */
  | { type: 'factors'; factors: Float32Array }

/**
 * What is special in Qwen3.5: most layers are Gated DeltaNets (arXiv 2412.06464), which keep a matrix for each head in place of keys and values; in the other layers
 * the attention output is multiplied by the sigmoid of a gate, whose projection is part of q_proj.
 */
export interface Qwen35Config {
  /** Layers that are Gated DeltaNets. */
  deltaLayers: number[]
  /** In these layers: number of heads of q and k, of v and the state, and the channels of a head of each. */
  keyHeads: number
  valueHeads: number
  keyDim: number
  valueDim: number
  /** Tokens that their convolution sees, the current one included. */
  taps: number
}

/** Matrices in which files of some families have several of a layer's: q, k and v, or gate and up, each one's rows after the other's. */
export type FusedModule = 'qkv_proj' | 'gate_up_proj'

/**
 * Layers with a gated short convolution in the place of attention (LFM2): of B, C and x, each a projection of the layer's input, they give C times the causal
 * convolution of B * x, each channel by itself, to their last projection.
 */
export interface ShortConvConfig {
  layers: number[]
  /** Tokens that a convolution sees, the current one included. */
  taps: number
}

/** Shape of a decoder-only transformer of the supported families. Sizes in elements. */
export interface ModelConfig {
  family: ModelFamily
  hiddenSize: number
  intermediateSize: number
  layers: number
  heads: number
  kvHeads: number
  headDim: number
  vocabSize: number
  rmsNormEps: number
  ropeTheta: number
  ropeScaling: RopeScaling
  /** How many channels of a head are rotated, from the first on (Qwen3.5, Phi-4-mini). Default: all. */
  rotaryDim?: number
  /** Layers without rotary embedding (NoPE), as in SmolLM3. Default: none. */
  layersWithoutRope?: number[]
  /** Tokens in the sliding window, the current one included. Default: all. */
  slidingWindow?: number
  /** The layers with this window. Default: all, as in Mistral. */
  slidingLayers?: number[]
  /** Rotary base of these layers, unscaled, where they have another rotary embedding than the others (Gemma 3, Olmo 3). */
  localRopeTheta?: number
  tieWordEmbeddings: boolean
  /** q, k, v projections have a bias (Qwen2; Llama, Qwen3 and Granite with attention_bias). */
  qkvBias: boolean
  /** o_proj has a bias (Llama and Granite with attention_bias). */
  outputBias: boolean
  /** RMSNorm over each head of q and k (Qwen3, Qwen3.5, Gemma 3, LFM2). */
  qkNorm: boolean
  /** These norms go over all heads together, as over one (OLMo 2). */
  qkNormWhole?: boolean
  /** Attention scores are multiplied by it. Default: headDim ** -0.5. */
  attentionScale?: number
  /** Embeddings are multiplied by it (Gemma 3: the root of the hidden size; Granite). Default: 1. */
  embeddingScale?: number
  /** That factor has the embedding's dtype, as `embeddingScale` in decoder/load.ts rounds it (Gemma 3). */
  embeddingScaleRounded?: boolean
  /** What attention and the MLP give is multiplied by it before the residual is added (Granite). Default: 1. */
  residualScale?: number
  /** Logits are divided by it, before the temperature (Granite). Default: 1. */
  logitsScaling?: number
  /** Gate of the MLP: GELU in its tanh form (Gemma 3). Default: SiLU. */
  activation?: 'gelu'
  /** Norms follow attention and MLP before the residual is added, and go before them, too (around: Gemma 3) or do not (after: OLMo 2). Default: they only go before. */
  norms?: 'around' | 'after'
  /** Norms multiply by 1 + their weight (Gemma 3; Qwen3.5, but for those after the delta rule). */
  normsFromOne?: boolean
  /** Those that its files have in the place of their parts (Granite 4: gate and up; Phi-3: both). */
  fused?: readonly FusedModule[]
  /** Set for Qwen3.5 only. */
  qwen35?: Qwen35Config
  /** Set for LFM2 only. */
  shortConv?: ShortConvConfig
  maxPositionEmbeddings: number
  /** Tokens that end a completion: config.json's and generation_config.json's, together. */
  eosTokenIds: number[]
  bosTokenId: number | null
  padTokenId: number | null
}

/** A tensor's values as they are kept on the GPU: bf16 bits (exact) or float32. Row-major. */
export type TensorData =
  | { dtype: 'bf16'; shape: number[]; data: Uint16Array }
  | { dtype: 'f32'; shape: number[]; data: Float32Array }

/**
 * How the layers' matrices are held; embedding and head stay as they are.
 * - `gguf`: in the blocks that a GGUF file has them in.
 * - `q8_0`: these, and all others in blocks of 8 bits.
 */
export const QUANTIZATIONS = ['gguf', 'q8_0'] as const
export type Quantization = (typeof QUANTIZATIONS)[number]

/** A matrix in a GGUF file's blocks (kernels/quantised), row by row. */
export interface TensorBlocks {
  format: QuantisedFormat
  shape: number[]
  data: Uint8Array
}

/** Tensors by their Hugging Face names, read one at a time so that a model never needs its whole size in CPU memory. */
export interface TensorSource {
  names(): string[]
  has(name: string): boolean
  shape(name: string): number[]
  /** Of safetensors: the dtype in the file ("F32", "BF16"). */
  dtype?(name: string): string
  /**
   * Reads one tensor. BF16 stays; F16 and F32 become bf16 where every value is exact in it, else float32
   * (`round: true` rounds them to bf16, nearest-even). Throws UserError for a missing tensor, an unsupported dtype or a cut-off file.
   */
  read(name: string, options?: { round?: boolean }): Promise<TensorData>
  /** Of a GGUF file: its matrices as they lie there. */
  blocks?: {
    /** Undefined for a matrix that is not in blocks. */
    format(name: string): QuantisedFormat | undefined
    read(name: string): Promise<TensorBlocks>
  }
  close(): void
}
