/** Brings a model's files onto the GPU: frozen, with a LoRA adapter, or to be trained whole. */
import type { Projection } from '../../autograd/ops/linear.ts'
import type { Norm } from '../../autograd/ops/norm.ts'
import { pad, ParameterStore, type Parameter, type TrainedValues } from '../../autograd/parameters.ts'
import { UserError } from '../../common/errors.ts'
import { hashSeed } from '../../common/random.ts'
import type { Gpu } from '../../gpu/gpu.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { holdUnits } from '../../kernels/attention/units-check.ts'
import { checkF16Range, useMatrixUnits } from '../../kernels/common/matrix-units.ts'
import { allocateWeight, releaseWeight, writeWeight, type Weight } from '../../kernels/common/weight.ts'
import { floatsOf, roundToBf16, widenBf16 } from '../bf16.ts'
import { headShape, type AttentionPart } from './attention-layer.ts'
import { RotaryCache, type Decoder, type DecoderLayer } from './decoder.ts'
import type { ConvPart } from './conv-layer.ts'
import type { DeltaPart } from './delta-layer.ts'
import { kaimingUniform, loraScale, paddedRank, type Adapter } from '../files/peft.ts'
import { Placement } from './placement.ts'
import { checkQuantization, heldFormat, readBlocks, rowsOf, type Matrix } from './quantise.ts'
import {
  DELTA_PART,
  fusedOf,
  lastNormPath,
  layerPath,
  linearPath,
  mixerOf,
  qkNormChannels,
  rowsOfParts,
  type LinearModule,
} from './shapes.ts'
import { refuseOtherHead } from './tied-head.ts'
import type { ModelConfig, Quantization, Qwen35Config, TensorData, TensorSource } from '../types.ts'
import { Uploads } from './uploads.ts'

export interface LoadOptions {
  /** Round float32 weights to bf16; else they stay float32 where bf16 does not hold them exactly. */
  round?: boolean
  /** Train every weight. Masters in float32, the working copy in the dtype of the files. */
  full?: boolean
  /** A fresh adapter: A Kaiming-uniform as in PEFT, B zero. `targetModules`: last parts of paths in files (`adapterModules`). */
  lora?: { rank: number; alpha: number; dropout: number; targetModules: string[]; seed: number }
  /** An adapter read from a folder, to run or to go on training. */
  adapter?: Adapter
  /** Hold the layers' matrices in blocks of few bits (quantise.ts). Not with `full`. */
  quantization?: Quantization
  /** Run large products on the adapter's matrix units, in f16 (kernels/matmul/units.ts). */
  matrixUnits?: boolean
  /** Called after each tensor with the share that is done, 0 to 1. */
  progress?: (share: number) => void
}

/** A model's name, shape and tensors; `ModelFiles` is one. */
export interface ModelTensors {
  name: string
  config: ModelConfig
  tensors: TensorSource
}

/**
 * Loads a model, or leaves nothing of it on the device.
 * @throws UserError for files that are missing or broken, for matrix units that the adapter has not or a model does not fit, and for a quantization that the
 *   model does not have; GpuError where the adapter has no room
 */
export async function loadDecoder(gpu: Gpu, files: ModelTensors, options: LoadOptions = {}): Promise<Decoder> {
  if (options.quantization) {
    if (options.full)
      throw new UserError('Weights that are trained whole are not quantised: train an adapter, or leave quantization out.')
    checkQuantization(files, options.quantization)
  }
  // Its residuals grow past what f16 holds, 65504 (transformers runs it in bf16 for that), and activations are cut off there without a word.
  if (options.matrixUnits && files.config.family === 'gemma3_text')
    throw new UserError(
      `${files.name} is a Gemma model, whose activations do not fit the f16 of matrix units: leave matrix_units out.`,
    )
  if (options.matrixUnits) useMatrixUnits(gpu)
  const trains = [options.full, options.lora, options.adapter].some(Boolean)
  if (options.matrixUnits && trains && !gpu.facts.software) await holdUnits(gpu, headShape(files.config, 0))
  const loader = new Loader(gpu, files, options)
  try {
    return await loader.load()
  } catch (error) {
    gpu.flush()
    loader.release()
    throw error
  }
}

class Loader {
  readonly #gpu: Gpu
  readonly #files: ModelTensors
  readonly #options: LoadOptions
  readonly #store: ParameterStore
  /** Writes of masters, to be made once the banks are allocated: full training makes the working copy from the master. */
  readonly #fills: (() => void)[] = []
  readonly #owned: (Weight | GpuBuffer)[] = []
  readonly #placement: Placement
  readonly #uploads: Uploads
  /** The norms that give q and k of Gated DeltaNets length 1. */
  #units: Norm[] | undefined
  #read = 0

  constructor(gpu: Gpu, files: ModelTensors, options: LoadOptions) {
    this.#gpu = gpu
    this.#files = files
    this.#options = options
    this.#store = new ParameterStore(gpu)
    this.#uploads = new Uploads(gpu)
    this.#placement = new Placement(gpu, this.#owned)
  }

  async load(): Promise<Decoder> {
    const { config, name, tensors } = this.#files
    await refuseOtherHead(name, config, tensors)
    const embed = await this.#matrix('model.embed_tokens.weight')
    const layers: DecoderLayer[] = []
    for (let i = 0; i < config.layers; i++) layers.push(await this.#layer(i))
    const norm = await this.#norm(lastNormPath(config), config.hiddenSize)
    const head = config.tieWordEmbeddings ? embed : await this.#matrix('lm_head.weight')
    this.#store.allocate()
    // A write holds its tensor's data, and the decoder holds this loader: writes that were made are dropped.
    for (let done = 1; this.#fills.length > 0; done++) {
      this.#fills.shift()!()
      if (done % 8 === 0) await this.#gpu.sync('loading')
    }
    await this.#uploads.done()
    const rotary = new RotaryCache(this.#gpu, config)
    const trained = this.#store.parameters.length > 0
    const trainedOf = (m: { weight: Weight; parameter?: Parameter }) => ({
      weight: m.weight,
      trained: m.parameter && { store: this.#store, weight: m.parameter },
    })
    return {
      gpu: this.#gpu,
      name,
      config,
      embedding: { ...trainedOf(embed), scale: config.embeddingScale && embeddingScale(config, embed.weight.bf16) },
      layers,
      norm,
      head: { ...trainedOf(head), scale: config.logitsScaling && 1 / config.logitsScaling },
      store: trained ? this.#store : undefined,
      rotary,
      release: () => {
        this.release()
        rotary.release()
      },
    }
  }

  release(): void {
    for (const owned of this.#owned) {
      if ('slices' in owned) releaseWeight(owned)
      else owned.release()
    }
    this.#store.release()
  }

  async #layer(index: number): Promise<DecoderLayer> {
    const { config } = this.#files
    const norm = (part: string) => this.#norm(layerPath(config, index, part), config.hiddenSize)
    const [before, after] = [config.norms !== 'after', config.norms !== undefined]
    const inputNorm = before ? await norm('input_layernorm') : undefined
    const mixer = await this.#mixer(index)
    const oNorm = after ? await norm('post_attention_layernorm') : undefined
    const postNorm = before ? await norm(`${after ? 'pre_feedforward' : 'post_attention'}_layernorm`) : undefined
    const [gate, up] = await this.#projections(index, ['gate_proj', 'up_proj'], false)
    const [down] = await this.#projections(index, ['down_proj'], false)
    const downNorm = after ? await norm('post_feedforward_layernorm') : undefined
    return { inputNorm, mixer, oNorm, postNorm, gate, up, down, downNorm }
  }

  #mixer(index: number): Promise<DecoderLayer['mixer']> {
    const { config } = this.#files
    const kind = mixerOf(config, index)
    if (kind === 'conv') return this.#conv(index)
    return kind === 'delta' ? this.#delta(index, config.qwen35!) : this.#attention(index)
  }

  async #attention(index: number): Promise<AttentionPart> {
    const { config } = this.#files
    const path = (part: string) => layerPath(config, index, `self_attn.${part}`)
    const [q, k, v] = await this.#projections(index, ['q_proj', 'k_proj', 'v_proj'], config.qkvBias)
    const [o] = await this.#projections(index, ['o_proj'], config.outputBias)
    const [ofQ, ofK] = qkNormChannels(config)
    const qNorm = config.qkNorm ? await this.#norm(path('q_norm'), ofQ) : undefined
    const kNorm = config.qkNorm ? await this.#norm(path('k_norm'), ofK) : undefined
    return { kind: 'attention', q, k, v, o, qNorm, kNorm }
  }

  async #conv(index: number): Promise<ConvPart> {
    const [gates] = await this.#projections(index, ['in_proj'], false)
    const [out] = await this.#projections(index, ['out_proj'], false)
    const conv = await this.#values(layerPath(this.#files.config, index, 'conv.conv.weight'))
    return { kind: 'conv', gates, out, conv }
  }

  async #delta(index: number, { keyDim, valueDim }: Qwen35Config): Promise<DeltaPart> {
    const path = layerPath(this.#files.config, index, DELTA_PART)
    const [qkv, z, b, a] = await this.#projections(index, ['in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a'], false)
    const [out] = await this.#projections(index, ['out_proj'], false)
    const [conv, aLog, dtBias] = [
      await this.#values(`${path}.conv1d.weight`),
      await this.#values(`${path}.A_log`),
      await this.#values(`${path}.dt_bias`),
    ]
    const norm = await this.#norm(`${path}.norm`, valueDim, false)
    this.#units ??= [1 / keyDim, 1 / Math.sqrt(keyDim)].map((gain, i) => this.#unit('qk'[i], keyDim, gain))
    const [qUnit, kUnit] = this.#units
    return { kind: 'delta', qkv, z, b, a, out, conv, aLog, dtBias, qUnit, kUnit, norm }
  }

  /** A norm that gives vectors of a length: x / sqrt(|x|^2 + 1e-6), times `gain` and the root of the channels. */
  #unit(name: string, channels: number, value: number): Norm {
    const gain = this.#gpu.upload(new Float32Array(channels).fill(value), `unit ${name}`, { exact: true })
    this.#owned.push(gain)
    return { name: `unit ${name}`, gain, channels, eps: 1e-6 / channels }
  }

  /** Values that are no matrix and no norm: few, so they stay as the files have them. */
  async #values(name: string): Promise<TrainedValues> {
    const read = await this.#tensor(name, false)
    const data = floatsOf(read)
    const buffer = this.#gpu.upload(data, name, { exact: true })
    this.#owned.push(buffer)
    const values: TrainedValues = { name, values: buffer }
    if (this.#options.full) {
      const rows = read.shape.length > 1 ? read.shape[0] : 1
      const parameter = this.#store.declare(name, rows, data.length / rows, { shape: read.shape, decay: rows > 1 })
      this.#fills.push(() => {
        this.#store.write(parameter, data)
        values.values = this.#store.value(parameter)
      })
      values.trained = { store: this.#store, parameter }
    }
    return values
  }

  /** Projections of one input: weights, and biases, side by side where the kernels can read them so (kernels/matmul/group.ts). */
  async #projections(layer: number, modules: LinearModule[], withBias: boolean): Promise<Projection[]> {
    const { config } = this.#files
    const whole = fusedOf(config, modules[0])
    if (whole) return await this.#parts(linearPath(config, layer, whole), [...rowsOfParts(config, whole).values()])
    const names = modules.map((module) => linearPath(config, layer, module))
    const matrices: Matrix[] = []
    const biases: Float32Array[] = []
    for (const name of names) {
      matrices.push(await this.#matrixOf(`${name}.weight`))
      if (withBias) biases.push(floatsOf(await this.#tensor(`${name}.bias`)))
    }
    const weights = this.#placement.matrices(names, matrices)
    const places = withBias ? this.#placement.vectors(biases, `${names[0]}.bias`) : []
    return names.map((name, i) => {
      const [projection, matrix]: [Projection, Matrix] = [{ name, weight: weights[i], bias: places[i] }, matrices[i]]
      if (this.#options.full && !('format' in matrix)) {
        const weight = this.#master(`${name}.weight`, matrix)
        const bias = withBias ? this.#vectorMaster(`${name}.bias`, biases[i]) : undefined
        projection.trained = { store: this.#store, weight, bias }
        if (bias) this.#fills.push(() => (projection.bias = this.#store.value(bias)))
      }
      projection.lora = this.#lora(name, weights[i])
      return projection
    })
  }

  /** Projections that files have as one matrix: what is trained, or its adapter, is that matrix's, and each takes its rows of it. */
  async #parts(name: string, parts: { firstRow: number; rows: number }[]): Promise<Projection[]> {
    const whole = await this.#matrixOf(`${name}.weight`)
    const [outputs, columns] = whole.shape
    const matrices = parts.map(({ firstRow, rows }) => rowsOf(whole, firstRow, rows))
    const names = parts.map(() => name)
    const weights = this.#placement.matrices(names, matrices)
    const store = this.#store
    const master = this.#options.full && !('format' in whole) ? this.#master(`${name}.weight`, whole) : undefined
    const lora = this.#lora(name, { rows: outputs, columns })
    return parts.map(({ firstRow, rows }, i) => ({
      name,
      firstRow,
      weight: weights[i],
      trained: master && { store, weight: store.part(master, firstRow, rows) },
      lora: lora && { ...lora, b: store.part(lora.b, firstRow, rows) },
    }))
  }

  /** The adapter of a projection: from a folder, or a fresh one. */
  #lora(name: string, weight: Pick<Weight, 'rows' | 'columns'>): Projection['lora'] {
    const { lora, adapter } = this.#options
    const pair = adapter?.tensors.get(name)
    const module = name.slice(name.lastIndexOf('.') + 1)
    if (!pair && (adapter || !lora?.targetModules.includes(module))) return undefined
    const r = pair?.r ?? lora!.rank
    const rank = paddedRank(r)
    const a = this.#store.declare(`${name}.lora_A.weight`, rank, weight.columns, { shape: [r, weight.columns] })
    const b = this.#store.declare(`${name}.lora_B.weight`, weight.rows, rank, { shape: [weight.rows, r] })
    this.#fills.push(() => {
      this.#store.write(a, pad(pair?.A ?? kaimingUniform(r, weight.columns, hashSeed(lora!.seed, name)), a))
      if (pair) this.#store.write(b, pad(pair.B, b))
    })
    const scale = pair?.scale ?? loraScale(lora!.alpha, r, false)
    return { store: this.#store, a, b, rank, scale, dropout: lora?.dropout ?? adapter?.config.loraDropout ?? 0 }
  }

  async #matrix(name: string): Promise<{ weight: Weight; parameter?: Parameter }> {
    const read = await this.#tensor(name)
    const data = this.#staysFloat32(name) ? ({ ...read, dtype: 'f32', data: floatsOf(read) } as const) : read
    const [rows, columns] = data.shape
    const weight = allocateWeight(this.#gpu, name, rows, columns, data.dtype === 'bf16')
    this.#owned.push(weight)
    writeWeight(this.#gpu, weight, data.data)
    return { weight, parameter: this.#options.full ? this.#master(name, data) : undefined }
  }

  /** An embedding in float32 whose scale is rounded stays so, where others are held in bf16 if it is exact: its scale has the file's dtype, and so has a checkpoint. */
  #staysFloat32(name: string): boolean {
    const { config, tensors } = this.#files
    return !!config.embeddingScaleRounded && !this.#options.round && tensors.dtype?.(name) === 'F32'
  }

  /** The float32 master of a matrix that is trained. */
  #master(name: string, data: TensorData): Parameter {
    const [rows, columns] = data.shape
    const parameter = this.#store.declare(name, rows, columns)
    this.#fills.push(() => this.#store.write(parameter, floatsOf(data)))
    return parameter
  }

  #vectorMaster(name: string, data: Float32Array): Parameter {
    const parameter = this.#store.declare(name, 1, data.length, { shape: [data.length], decay: false })
    this.#fills.push(() => this.#store.write(parameter, data))
    return parameter
  }

  /** @param fromOne whether it multiplies with 1 + its weight */
  async #norm(name: string, channels: number, fromOne = !!this.#files.config.normsFromOne): Promise<Norm> {
    const { rmsNormEps: eps } = this.#files.config
    const data = floatsOf(await this.#tensor(`${name}.weight`))
    const gain = this.#gpu.upload(gained(data, fromOne), `${name}.weight`, { exact: true })
    this.#owned.push(gain)
    const norm: Norm = { name, gain, fromOne, channels, eps }
    if (this.#options.full) {
      const parameter = this.#vectorMaster(`${name}.weight`, data)
      norm.trained = { store: this.#store, gain: parameter }
      // Kernels read the master itself, unless the gain is 1 + the weight.
      if (!fromOne) this.#fills.push(() => (norm.gain = this.#store.value(parameter)))
    }
    return norm
  }

  /** A layer's matrix, in blocks where it is held so. */
  async #matrixOf(name: string): Promise<Matrix> {
    const { quantization, matrixUnits } = this.#options
    const { tensors } = this.#files
    const format = quantization && heldFormat(tensors, name, quantization)
    if (!format) return await this.#tensor(name)
    await this.#uploads.room()
    if (matrixUnits) checkF16Range(name, (await tensors.read(name, { round: true })).data)
    const matrix = await readBlocks(tensors, name, format)
    this.#uploads.add(matrix.data.byteLength)
    this.#options.progress?.(++this.#read / tensors.names().length)
    return matrix
  }

  async #tensor(name: string, round = this.#options.round): Promise<TensorData> {
    await this.#uploads.room()
    const data = await this.#files.tensors.read(name, { round })
    this.#uploads.add(data.data.byteLength)
    if (this.#options.matrixUnits) checkF16Range(name, data.data)
    this.#options.progress?.(++this.#read / this.#files.tensors.names().length)
    return data
  }
}

/** A norm's gain from its weight in the files; in float32, as transformers' `1.0 + weight.float()`. */
export const gained = (weight: Float32Array, fromOne = false): Float32Array => (fromOne ? weight.map((w) => 1 + w) : weight)

/** What embeddings are multiplied by, in float32; in their dtype where transformers rounds it so (a factor that is a tensor of the model). */
export function embeddingScale({ embeddingScale: scale = 1, embeddingScaleRounded }: ModelConfig, bf16: boolean): number {
  const exact = new Float32Array([scale])
  return bf16 && embeddingScaleRounded ? widenBf16(roundToBf16(exact))[0] : exact[0]
}
