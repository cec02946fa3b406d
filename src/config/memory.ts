/**
 * Estimates the GPU memory that a run will need, from sizes alone, before anything is loaded (`--dry-run`).
 *
 * Notation: P weights, L layers, hidden size H, MLP size I, query width Q = heads x head size, key width K = KV heads x head size,
 * T = micro_batch_tokens, S = max_num_seqs, N = max_seq_len, vocabulary V, n trained parameters. All activations are float32. Sizes are in bytes.
 * - Weights that kernels read: 2 P in bf16, 4 P in float32. Full fine-tuning adds float32 masters, 4 P. With `quantization`, the weights of layers
 *   take the size of their blocks (8.5 bits a weight in Q8_0, 4.5 to 6.6 in others), and those of one layer 2 bytes each in addition.
 * - A reference model (beta, use_ref_model): nothing if it is the policy without its adapter; 4 n if the run began with an adapter or the reference
 *   is synced; the weights once more in full fine-tuning. For another model (ref_model): its weights, and what one of its layers takes beyond one of
 *   the policy's.
 * - Gradient: 4 n. Adam's two moments: 8 n (optim = "adamw_8bit": 2 n and a scale for every 256 of each, of matrices; gains and biases keep 8 n). The
 *   adapter itself: 4 n (its rank rounded up to 8).
 * - Inside one layer, per token: 4 (4 H + 2 Q + 3 K + Q + K + heads + 3 I). These are residuals and norms; q, k, v as projected (with norms of q and
 *   k, Q + K more); q and k rotated, attention's output and log-sum; gate, up and their product. Norms after attention and MLP add 2 H beside the
 *   usual ones (Gemma), H in their place (OLMo 2). LoRA adds its r intermediates, with dropout also a copy of the input of each projection. The
 *   backward pass adds 4 (2 H + 3 I) for gradients.
 * - Activations: with gradient checkpointing one hidden state per layer (4 T H L) and one layer inside; keep_attention adds 4 T (Q + heads) per
 *   layer. Without it L layers inside, except for the gates' products, which the backward pass recomputes.
 * - Head: logits of up to 512 tokens at a time, at most 48 MiB (never T x V), and a few numbers per token.
 * - KV cache: 2 L S N K float32, exact copies of what the trainer would compute (f16 with kv_cache_dtype), or kv_cache_bytes. None if vLLM samples,
 *   whose memory is separate.
 *   The engine cuts the cache to what the adapter binds (a layer's keys are one binding).
 * - States of layers without a KV cache (Gated DeltaNets of Qwen3.5, convolutions of LFM2): S + 1 for each layer.
 * - Decoding: one layer inside for S tokens and up to B prompt tokens (max_num_batched_tokens - S, or 256), and S x V logits for the sampler, at most
 *   64 MiB. On GPUs, few rows divide their keys among workgroups, whose partial outputs are 4 rows x heads x splits x (head size + 2).
 *
 * Buffer pools round sizes up by as much as an eighth, and drivers add memory of their own. Not included are the textures in which CPU drivers stage
 * what they read repeatedly (at most 4 MiB for each width of a product, and q, k, v and dO of one attention): 8% for a model of 1 M weights,
 * negligible for one of 100 M. The estimate was within 15% of what runs held (test/config/memory-measured.test.ts). The measured peak of a run is
 * perf/peak_memory in metrics.jsonl.
 */
import { blocksOf, ownBlocks } from '../model/decoder/quantise.ts'
import { stateWords } from '../model/decoder/layer-cache.ts'
import {
  adapterModules,
  attentionLayers,
  bindablePages,
  CACHE_PAGE,
  cacheTokenBytes,
  deltaWidths,
  linearShapes,
  statefulLayers,
  tensorShapes,
  weightCount,
} from '../model/decoder/shapes.ts'
import { paddedRank } from '../model/files/peft.ts'
import type { ModelConfig, TensorSource } from '../model/types.ts'
import { formatBytes } from '../monitor/format.ts'
import { keepsReference } from './algorithm-schema.ts'
import type { RunConfig, TrainerArgs } from './schema.ts'
import type { SftConfig } from './sft-schema.ts'

/** The settings of a run that its memory depends on. */
export interface MemoryOptions {
  model: ModelConfig
  useLora: boolean
  loraRank: number
  /** Default 0. */
  loraDropout?: number
  /** Module names such as q_proj. */
  loraTargetModules: readonly string[]
  /** Tokens per micro-batch. */
  microBatchTokens: number
  gradientCheckpointing: boolean
  /** With gradientCheckpointing: attention's outputs are kept as well. */
  keepAttention?: boolean
  bf16: boolean
  /** If the layers' matrices are quantised: how many values and bytes are in blocks, and the formats of the blocks. */
  blocks?: { values: number; bytes: number; formats: string[] }
  /** Default: "adamw". */
  optim?: TrainerArgs['optim']
  /** The reference model, if there is one: the policy's weights ('plain'), the same with an adapter of its own, or another model. */
  reference?: 'plain' | 'adapter' | OtherModel
  /** Number of sequences in the KV cache. 0 if nothing is generated. */
  maxNumSeqs: number
  maxSeqLen: number
  /** Prompt tokens per step of the engine. Default 256. */
  prefillRows?: number
  /** Default: room for maxSeqLen tokens of each sequence. */
  kvCacheBytes?: number
  kvCacheDtype?: 'f32' | 'f16'
  /** Of the adapter. Default: those of a GPU that binds any size. */
  limits?: MemoryLimits
}

/** Another model as the reference; `blocks` as in MemoryOptions. */
interface OtherModel {
  model: ModelConfig
  blocks?: MemoryOptions['blocks']
}

interface MemoryRow {
  name: string
  bytes: number
  /** How the number of bytes is computed. */
  how: string
}

const MIB = 2 ** 20
/** Number of tokens whose logits the trainer's head holds at a time (src/autograd/ops/head.ts). */
export const headRows = (vocabulary: number): number =>
  Math.min(512, Math.max(64, Math.floor((48 * MIB) / (vocabulary * 4) / 64) * 64))
/** Prompt tokens that one step of the engine computes, and bytes of the sampler's logits (src/inference/engine.ts, sampler.ts). */
const PREFILL_ROWS = 256
const SAMPLER_BYTES = 64 * MIB

/** Estimates the memory of a run, part by part. Parts of 0 bytes are left out. */
export function estimateMemory(options: MemoryOptions): MemoryRow[] {
  const { model, microBatchTokens: T, maxNumSeqs: S } = options
  const { hiddenSize: H, intermediateSize: I, layers: L, vocabSize: V } = model
  const weights = weightCount(model)
  const adapter = options.useLora ? adapterParameters(options) : 0
  const trained = options.useLora ? adapter : weights
  const in8bit = options.optim === 'adamw_8bit'
  const ofVectors = [...tensorShapes(model).values()].map(([length, ...more]) => (more.length > 0 ? 0 : length))
  const vectors = options.useLora ? 0 : sum(ofVectors)
  const moments = in8bit ? (trained - vectors) * (2 + 8 / 256) + vectors * 8 : trained * 8
  const loraInner = options.useLora ? sum(options.loraTargetModules.map(productsOf)) * paddedRank(options.loraRank) : 0
  const inner = 4 * (innerWidth(model) + loraInner)
  const beside = 4 * (loraInner + droppedInputs(options))
  const recorded = 4 * innerWidth(model) + beside
  const largest = 4 * innerWidth(model, true) + beside
  const backward = 4 * Math.max(2 * H + 3 * I, mixerBackward(model))
  const logits = Math.min(T, headRows(V))
  const sampled = Math.min(S, Math.max(1, Math.floor(SAMPLER_BYTES / (V * 4))))
  const kept: MemoryRow[] = options.gradientCheckpointing
    ? [
        { name: 'activations kept', bytes: 4 * T * H * L, how: `one hidden state a layer: ${L} layers x ${T} tokens x ${H}` },
        ...(options.keepAttention ? [attentionKept(model, T)] : []),
        { name: 'one layer', bytes: T * (largest + backward), how: `inside one layer, forward and backward, ${T} tokens` },
      ]
    : [
        {
          name: 'activations kept',
          bytes: T * (recorded - 4 * gatedWidth(model)) * L,
          how: `inside ${L} layers all but the gates' products, ${T} tokens (no gradient checkpointing)`,
        },
        { name: 'one layer', bytes: T * backward, how: `gradients that pass through one layer, ${T} tokens` },
      ]
  const prefill = options.prefillRows ?? PREFILL_ROWS
  const splits = splitsHeld(options)
  const { blocks } = options
  const inBlocks = blocks?.values ?? 0
  const rows: MemoryRow[] = [
    { name: 'weights', ...weightsHeld(options) },
    { name: 'widened', bytes: (inBlocks / L) * 2, how: 'matrices of one layer, widened to bf16' },
    { name: 'adapter', bytes: adapter * 4, how: `LoRA rank ${options.loraRank}: ${millions(adapter)} parameters, float32` },
    ...referenceRows(options, adapter, sum(kept.map(({ bytes }) => bytes))),
    { name: 'masters', bytes: options.useLora ? 0 : weights * 4, how: 'the weights that are trained, in float32' },
    { name: 'gradients', bytes: trained * 4, how: `${millions(trained)} trained parameters, float32` },
    { name: 'Adam', bytes: moments, how: `two moments of each, ${in8bit ? '8 bits and a scale for every 256' : 'float32'}` },
    ...kept,
    { name: 'head', bytes: 4 * (logits * V + 2 * T * H + 3 * T), how: `logits of ${logits} tokens at a time x ${V} words` },
    cacheRow(options),
    ...stateRows(model, S),
    {
      name: 'decoding',
      bytes: S > 0 ? (S + prefill) * inner + sampled * 4 * V + splits.bytes : 0,
      how: `one token of each of ${S} completions, ${prefill} prompt tokens, logits of ${sampled}${splits.how}`,
    },
  ]
  return rows.filter((row) => row.bytes > 0)
}

/** The KV cache, as large as asked for, or cut to kv_cache_bytes or to what the adapter binds (src/inference/cache-size.ts). */
function cacheRow({ model, maxNumSeqs: S, maxSeqLen: N, kvCacheBytes, kvCacheDtype, limits }: MemoryOptions): MemoryRow {
  const f16 = kvCacheDtype === 'f16'
  const each = cacheTokenBytes(model, f16)
  const bound = limits ? bindablePages(model, bindable(limits), { f16 }) * CACHE_PAGE * each : Infinity
  const whole = S * N * each
  const bytes = Math.max(0, Math.min(whole, kvCacheBytes ?? Infinity, bound))
  const cut = bytes === kvCacheBytes ? 'kv_cache_bytes' : 'as much as the GPU adapter binds'
  const how =
    bytes < whole
      ? `${cut}, for ${Math.floor(bytes / each)} tokens`
      : `${S} completions x ${N} tokens x ${attentionLayers(model)} layers, ${f16 ? 'f16' : 'float32'}`
  return { name: 'KV cache', bytes: S > 0 ? bytes : 0, how }
}

/** Partial outputs of attention where a GPU divides the keys of a few rows among workgroups (decodeSplits of src/kernels/attention/attention.ts). */
function splitsHeld({ model, maxNumSeqs, maxSeqLen, limits }: MemoryOptions): Pick<MemoryRow, 'bytes' | 'how'> {
  const { heads, kvHeads, headDim } = model
  const splits = Math.ceil(maxSeqLen / 256)
  const together = [4, 3, 2, 1].find((n) => (heads / kvHeads) % n === 0)!
  const few = Math.ceil((512 * together) / heads) - 1
  const bound = limits ? Math.floor(bindable(limits) / (4 * heads * splits * headDim)) : Infinity
  const rows = limits?.software || splits === 1 ? 0 : Math.min(maxNumSeqs, few, bound)
  return { bytes: 4 * rows * heads * splits * (headDim + 2), how: rows > 0 ? `, keys of ${rows} in ${splits} splits` : '' }
}

/**
 * Activation values per token inside one layer, averaged over layers or (`largest`) of the largest: residuals and norms; q, k, v projected and
 * rotated; attention's outputs; the gated MLP's.
 */
const innerWidth = (model: ModelConfig, largest = false): number => {
  const { hiddenSize: H, intermediateSize: I, heads, kvHeads, headDim, qkNorm, norms, qwen35, layers } = model
  const [Q, K] = [heads * headDim, kvHeads * headDim]
  // If a norm follows the MLP, the product before that norm is kept as well.
  const common = (norms ? { around: 6, after: 5 }[norms] : 4) * H + 3 * I
  const attention = 3 * Q + 4 * K + (qkNorm ? Q + K : 0) + heads + (qwen35 ? 4 * Q : 0)
  const attending = attentionLayers(model)
  if (largest && attending < layers) return common + Math.max(attention, statefulWidth(model))
  return common + (attention * attending + statefulWidth(model) * (layers - attending)) / layers
}

/** With keep_attention: outputs and log-sums of attention in each layer. */
function attentionKept(model: ModelConfig, tokens: number): MemoryRow {
  const { heads, headDim } = model
  const layers = attentionLayers(model)
  const how = `attention outputs: ${layers} layers x ${tokens} tokens x ${heads * headDim}`
  return { name: 'attention kept', bytes: 4 * tokens * (heads * headDim + heads) * layers, how }
}

/** The part of `innerWidth` that is products of gates: those of the MLP; in Qwen3.5 also of attention and the Gated DeltaNet. */
function gatedWidth(model: ModelConfig): number {
  const { intermediateSize: I, heads, headDim, qwen35, layers } = model
  if (!qwen35) return I
  const attending = attentionLayers(model)
  return I + (heads * headDim * attending + deltaWidths(qwen35)[2] * (layers - attending)) / layers
}

/**
 * The values of `innerWidth` in a layer without keys. Gated convolution: B, C, x, and the output. Gated DeltaNet: q, k, v projected and convolved, q
 * and k normalised, z, reads and corrections of the state, output normed and gated, numbers per head.
 */
function statefulWidth({ qwen35, shortConv, hiddenSize: H }: ModelConfig): number {
  if (shortConv) return 4 * H
  if (!qwen35) return 0
  const [q, k, v] = deltaWidths(qwen35)
  return 3 * (q + k) + 7 * v + 6 * qwen35.valueHeads
}

/** Values per token that the backward pass of a layer without keys needs in addition to `statefulWidth`. */
function mixerBackward({ qwen35, shortConv, hiddenSize: H }: ModelConfig): number {
  if (shortConv) return 7 * H
  if (!qwen35) return 0
  const [q, k, v] = deltaWidths(qwen35)
  return 2 * H + 2 * (q + k + v) + 3 * v + 3 * qwen35.valueHeads * qwen35.keyDim
}

/** The states of layers without keys: one per sequence, and a spare one. */
function stateRows(model: ModelConfig, sequences: number): MemoryRow[] {
  const layers = statefulLayers(model).length
  if (layers === 0 || sequences === 0) return []
  const { inputs, states } = stateWords(model)
  const what = states > 0 ? 'a matrix a head' : "a convolution's last inputs"
  const how = `${sequences + 1} completions x ${layers} layers, ${what}, float32`
  return [{ name: 'states', bytes: 4 * (sequences + 1) * layers * (inputs + states), how }]
}

/** Bytes of a model's weights in the format that kernels read. */
function weightsHeld({ model, blocks, bf16 }: OtherModel & { bf16: boolean }): Pick<MemoryRow, 'bytes' | 'how'> {
  const weights = weightCount(model)
  const [inBlocks, kind] = [blocks?.values ?? 0, bf16 ? 'bf16' : 'float32']
  return {
    bytes: (weights - inBlocks) * (bf16 ? 2 : 4) + (blocks?.bytes ?? 0),
    how: `${millions(weights)} weights, ${blocks ? `${millions(inBlocks)} in ${blocks.formats.join(', ')}, the others ${kind}` : kind}`,
  }
}

/** @param adapter parameters of the adapter @param held bytes of the policy's activations, which the reference's pass may use too */
function referenceRows(options: MemoryOptions, adapter: number, held: number): MemoryRow[] {
  const { reference, model, bf16, microBatchTokens: T } = options
  const row = (bytes: number, how: string) => [{ name: 'reference', bytes, how }]
  if (reference === undefined) return []
  if (typeof reference === 'object') {
    const { bytes, how } = weightsHeld({ ...reference, bf16 })
    const { model: other, blocks } = reference
    const pass = 4 * T * innerWidth(other) + (2 * (blocks?.values ?? 0)) / other.layers
    const head = 4 * Math.min(T, headRows(other.vocabSize)) * other.vocabSize
    return [
      ...row(bytes, `of another model: ${how}`),
      {
        name: 'its pass',
        bytes: Math.max(0, pass + head - held),
        how: `one of its layers, ${T} tokens, beyond what the policy's take`,
      },
    ]
  }
  if (options.useLora) return row(reference === 'adapter' ? adapter * 4 : 0, 'a frozen copy of the adapter')
  return row(weightsHeld({ model, bf16 }).bytes, 'the weights that the run began with, frozen')
}

/** A model whose memory is estimated. */
export interface SizedModel {
  config: ModelConfig
  /** The model's files, if they are there. They say which tensors are quantised. */
  tensors?: TensorSource
  /** The files of trainer.args.ref_model. */
  reference?: { config: ModelConfig; tensors: TensorSource }
}

/** `estimateMemory` for a resolved config. */
export function memoryOf(config: RunConfig | SftConfig, model: SizedModel, limits?: MemoryLimits): MemoryRow[] {
  const { args } = config.trainer
  const embedded = 'inference' in config && config.inference.backend === 'embedded' ? config.inference : undefined
  return estimateMemory({
    model: model.config,
    useLora: args.use_lora,
    loraRank: args.lora_rank,
    loraDropout: args.lora_dropout,
    loraTargetModules: adapterModules(model.config, args.lora_target_modules),
    microBatchTokens: args.micro_batch_tokens,
    gradientCheckpointing: args.gradient_checkpointing,
    keepAttention: args.keep_attention,
    bf16: args.bf16,
    blocks: args.quantization && model.tensors && blocksOf(model.config, model.tensors, args.quantization),
    optim: args.optim,
    reference: referenceOf(config, model),
    maxNumSeqs: embedded?.max_num_seqs ?? 0,
    maxSeqLen: args.max_seq_len,
    prefillRows: embedded?.max_num_batched_tokens && embedded.max_num_batched_tokens - embedded.max_num_seqs,
    kvCacheBytes: embedded?.kv_cache_bytes,
    kvCacheDtype: embedded?.kv_cache_dtype,
    limits,
  })
}

function referenceOf({ model, trainer: { args } }: RunConfig | SftConfig, { reference }: SizedModel): MemoryOptions['reference'] {
  if (!('beta' in args) || !keepsReference(args)) return undefined
  if (reference) {
    const { config, tensors } = reference
    return { model: config, blocks: ownBlocks(reference) && blocksOf(config, tensors, 'gguf') }
  }
  return model.adapter || args.ref_model_sync_steps > 0 ? 'adapter' : 'plain'
}

/** The limits of a GPU adapter that matter here, in bytes. */
export interface MemoryLimits {
  maxStorageBufferBindingSize: number
  maxBufferSize: number
  /** Whether the adapter is a CPU driver. */
  software?: boolean
}

/** Bytes of the largest binding. */
export const bindable = ({ maxStorageBufferBindingSize, maxBufferSize }: MemoryLimits): number =>
  Math.min(maxStorageBufferBindingSize, maxBufferSize)

/**
 * The table of `--dry-run` with a total. If limits are given, it has a line on the largest matrix. WebGPU does not report how much memory a GPU has,
 * so the total is for the reader to compare.
 */
export function memoryTable(rows: MemoryRow[], model?: ModelConfig, limits?: MemoryLimits): string {
  const all = [...rows, { name: 'total', bytes: sum(rows.map((row) => row.bytes)), how: '' }]
  const nameWidth = Math.max(...all.map((row) => row.name.length))
  const sizes = all.map((row) => formatBytes(row.bytes))
  const sizeWidth = Math.max(...sizes.map((size) => size.length))
  const lines = all.map((row, i) => `  ${row.name.padEnd(nameWidth)}  ${sizes[i].padStart(sizeWidth)}  ${row.how}`.trimEnd())
  if (model && limits) {
    const embedding = model.vocabSize * model.hiddenSize * 2
    const room = bindable(limits)
    const parts = Math.ceil(embedding / room)
    lines.push(
      `  The GPU adapter binds ${formatBytes(room)} at a time; the embedding (${formatBytes(embedding)} in bf16) ` +
        (parts === 1 ? 'fits in one piece.' : `is processed in ${parts} slices.`),
    )
  }
  return lines.join('\n')
}

function adapterParameters({ model, loraRank, loraTargetModules }: MemoryOptions): number {
  return sum(
    [...linearShapes(model)].map(([path, [outputs, inputs]]) =>
      loraTargetModules.some((module) => path.endsWith(`.${module}`)) ? paddedRank(loraRank) * (outputs + inputs) : 0,
    ),
  )
}

/** Values per token that one layer holds as copies of its inputs after dropout. */
function droppedInputs({ model, useLora, loraDropout, loraTargetModules }: MemoryOptions): number {
  if (!useLora || !loraDropout) return 0
  const layer = [...linearShapes({ ...model, layers: 1 })]
  return sum(
    layer.map(([path, [, inputs]]) => {
      const adapted = loraTargetModules.find((module) => path.endsWith(`.${module}`))
      return adapted ? productsOf(adapted) * inputs : 0
    }),
  )
}

/** Number of products that share a module's adapter, each with its own input and LoRA intermediate: those of its parts, where it is several projections in one matrix. */
const productsOf = (module: string): number => ({ qkv_proj: 3, gate_up_proj: 2, input_linear: 2 })[module] ?? 1

const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0)
const millions = (n: number) => (n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : `${(n / 1e3).toFixed(1)} k`)
