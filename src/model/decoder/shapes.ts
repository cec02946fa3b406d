/** The tensors that a model of the supported families has, by their Hugging Face names, with shapes (rows are outputs). */
import { UserError } from '../../common/errors.ts'
import { families } from '../config/families/index.ts'
import type { FusedModule, ModelConfig, Qwen35Config, TensorData, TensorSource } from '../types.ts'

/** Linear layers of the parts of a decoder layer, as LoRA's `target_modules` names them. */
const ATTENTION = ['q_proj', 'k_proj', 'v_proj', 'o_proj'] as const
const MLP = ['gate_proj', 'up_proj', 'down_proj'] as const
/** Those of a Gated DeltaNet (Qwen3.5), which stands in the place of attention. */
const DELTA_MODULES = ['in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a', 'out_proj'] as const
/** Those of a gated short convolution (LFM2), likewise. */
const CONV_MODULES = ['in_proj', 'out_proj'] as const
/** What each matrix holds in which files of some families (`fused`) have several, row by row. */
const PARTS = { qkv_proj: ['q_proj', 'k_proj', 'v_proj'], gate_up_proj: ['gate_proj', 'up_proj'] } as const
/** The seven that a layer of most models has. */
export const LINEAR_MODULES = [...ATTENTION, ...MLP] as const
export type LinearModule =
  | (typeof LINEAR_MODULES)[number]
  | (typeof DELTA_MODULES)[number]
  | (typeof CONV_MODULES)[number]
  | FusedModule

const isOf = (modules: readonly LinearModule[], module: LinearModule): boolean => modules.includes(module)

/** What stands in a layer in the place of attention: its path below the layer, its linear layers, and those of them that get an adapter where all do. */
const MIXERS = {
  attention: { path: 'self_attn', modules: ATTENTION, adapted: ATTENTION },
  delta: { path: 'linear_attn', modules: DELTA_MODULES, adapted: ['in_proj_qkv', 'in_proj_z', 'out_proj'] },
  conv: { path: 'conv', modules: CONV_MODULES, adapted: CONV_MODULES },
} as const satisfies Record<string, { path: string; modules: readonly LinearModule[]; adapted: readonly LinearModule[] }>
type MixerKind = keyof typeof MIXERS
export const DELTA_PART = MIXERS.delta.path

/** What mixes tokens in a layer. */
export function mixerOf({ qwen35, shortConv }: ModelConfig, layer: number): MixerKind {
  if (qwen35?.deltaLayers.includes(layer)) return 'delta'
  return shortConv?.layers.includes(layer) ? 'conv' : 'attention'
}

/** Layers that keep a state of each sequence in place of keys and values. */
export const statefulLayers = ({ qwen35, shortConv }: ModelConfig): readonly number[] =>
  qwen35?.deltaLayers ?? shortConv?.layers ?? []

/** Layers that have keys and values. */
export const attentionLayers = (config: ModelConfig): number => config.layers - statefulLayers(config).length

/** Tokens of a page of a KV cache, unless somebody asks for others. */
export const CACHE_PAGE = 16

/** Bytes of a token's keys in one layer's cache; its values take as many. */
const keyBytes = ({ kvHeads, headDim }: ModelConfig, f16: boolean): number => kvHeads * headDim * (f16 ? 2 : 4)

/** Bytes of a token's keys and values in the caches of all layers. */
export const cacheTokenBytes = (config: ModelConfig, f16: boolean): number => 2 * attentionLayers(config) * keyBytes(config, f16)

/** The most pages of a KV cache, of which a layer's keys are one binding. One more page is for padding rows. */
export const bindablePages = (
  config: ModelConfig,
  maxBinding: number,
  { f16, pageSize = CACHE_PAGE }: { f16: boolean; pageSize?: number },
): number => Math.floor(maxBinding / (keyBytes(config, f16) * pageSize)) - 1

/** The path in files of a layer's part, which most families call `part`: of `mlp.down_proj` or `input_layernorm`. */
export const layerPath = (config: ModelConfig, layer: number, part: string): string =>
  `model.layers.${layer}.${ownName(config, part)}`

const ownName = ({ family }: ModelConfig, part: string): string => families[family].names?.[part] ?? part

/** The path of the norm behind the last layer. */
export const lastNormPath = (config: ModelConfig): string => `model.${ownName(config, 'norm')}`

/** Path of a linear layer inside the model: `model.layers.0.self_attn.q_proj`. */
export function linearPath(config: ModelConfig, layer: number, module: LinearModule): string {
  const mlp = module === 'gate_up_proj' || isOf(MLP, module)
  return layerPath(config, layer, `${mlp ? 'mlp' : MIXERS[mixerOf(config, layer)].path}.${module}`)
}

/** The linear layers of a decoder layer, in the order of the forward pass. */
function linearModules(config: ModelConfig, layer: number): LinearModule[] {
  const modules = [...MIXERS[mixerOf(config, layer)].modules, ...MLP]
  return config.fused ? [...new Set(modules.map((module) => fusedOf(config, module) ?? module))] : modules
}

/** The matrix of the files that has `module` as some of its rows. */
export const fusedOf = ({ fused }: ModelConfig, module: LinearModule): FusedModule | undefined =>
  fused?.find((whole) => isOf(PARTS[whole], module))

/** Where the rows of its parts lie in such a matrix, by their names. */
export function rowsOfParts(config: ModelConfig, whole: FusedModule): Map<LinearModule, { firstRow: number; rows: number }> {
  const shapes = moduleShapes(config)
  let firstRow = 0
  return new Map(
    PARTS[whole].map((part) => {
      const [rows] = shapes[part]
      firstRow += rows
      return [part, { firstRow: firstRow - rows, rows }]
    }),
  )
}

/** What the norms of q and of k go over, where there are some: a head, or all of them. */
export const qkNormChannels = ({ qkNormWhole, heads, kvHeads, headDim }: ModelConfig): [number, number] =>
  qkNormWhole ? [heads * headDim, kvHeads * headDim] : [headDim, headDim]

/**
 * The modules that get an adapter, as files call them, of those that are asked for by these names or by the usual seven. All seven stand for "all", so the large ones
 * of what a model has in the place of attention are then among them, and matrices that hold several of the seven.
 * Modules that the model lacks are left out, as in PEFT: one list may serve models of several families.
 * @throws UserError where such a matrix is asked for by only some of its parts, or no layer has any of the modules
 */
export function adapterModules(config: ModelConfig, asked: readonly string[]): string[] {
  const all = LINEAR_MODULES.every((module) => asked.includes(module))
  const own = (module: string): string => {
    const part = isOf(ATTENTION, module as LinearModule) ? MIXERS.attention.path : 'mlp'
    return ownName(config, `${part}.${module}`).split('.').at(-1)!
  }
  const named = asked.map((module) => {
    const whole = fusedOf(config, module as LinearModule)
    if (whole && !all)
      throw new UserError(
        `lora_target_modules names ${module}, and this model's files have ${PARTS[whole].join(', ')} as one matrix, ${own(whole)}. Name that.`,
      )
    return own(whole ?? module)
  })
  const there = new Set([...linearShapes(config).keys()].map((path) => path.split('.').at(-1)!))
  if (!named.some((module) => there.has(module)))
    throw new UserError(
      `lora_target_modules names ${asked.join(', ')}, but no layer of this model has such a module. Choose from ${Array.from(there).join(', ')}.`,
    )
  const more = all ? statefulLayers(config).flatMap((layer) => MIXERS[mixerOf(config, layer)].adapted) : []
  return [...new Set([...named, ...more])]
}

/** [outputs, inputs] of every linear layer of the decoder layers, by path without `.weight`, in the order of the forward pass. */
export function linearShapes(config: ModelConfig): Map<string, [number, number]> {
  const shapes = moduleShapes(config)
  const out = new Map<string, [number, number]>()
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of linearModules(config, layer)) out.set(linearPath(config, layer, module), shapes[module])
  }
  return out
}

function moduleShapes(config: ModelConfig): Record<LinearModule, [number, number]> {
  const { hiddenSize: hidden, intermediateSize: wide, headDim, qwen35 } = config
  const q = config.heads * headDim
  const kv = config.kvHeads * headDim
  return {
    in_proj: [3 * hidden, hidden],
    q_proj: [qwen35 ? 2 * q : q, hidden],
    k_proj: [kv, hidden],
    v_proj: [kv, hidden],
    o_proj: [hidden, q],
    gate_proj: [wide, hidden],
    up_proj: [wide, hidden],
    down_proj: [hidden, wide],
    qkv_proj: [q + 2 * kv, hidden],
    gate_up_proj: [2 * wide, hidden],
    ...deltaShapes(config),
  }
}

/** Channels of q, k and v, which a Gated DeltaNet convolves. */
export function deltaWidths({ keyHeads, valueHeads, keyDim, valueDim }: Qwen35Config): [number, number, number] {
  return [keyHeads * keyDim, keyHeads * keyDim, valueHeads * valueDim]
}

function deltaShapes({ hiddenSize: hidden, qwen35 }: ModelConfig): Record<(typeof DELTA_MODULES)[number], [number, number]> {
  const [q, k, v] = qwen35 ? deltaWidths(qwen35) : [0, 0, 0]
  const heads = qwen35?.valueHeads ?? 0
  return {
    in_proj_qkv: [q + k + v, hidden],
    in_proj_z: [v, hidden],
    in_proj_b: [heads, hidden],
    in_proj_a: [heads, hidden],
    out_proj: [hidden, qwen35 ? v : hidden],
  }
}

/** Every tensor of a model with its shape. `lm_head.weight` only where the head is not tied to the embedding. */
export function tensorShapes(config: ModelConfig): Map<string, number[]> {
  const out = new Map<string, number[]>([['model.embed_tokens.weight', [config.vocabSize, config.hiddenSize]]])
  const linears = linearShapes(config)
  for (let layer = 0; layer < config.layers; layer++) {
    const set = (part: string, shape: number[]) => out.set(layerPath(config, layer, part), shape)
    const norm = (part: string, channels: number) => out.set(`${layerPath(config, layer, part)}.weight`, [channels])
    if (config.norms !== 'after') norm('input_layernorm', config.hiddenSize)
    for (const module of linearModules(config, layer)) {
      const linear = linearPath(config, layer, module)
      const shape = linears.get(linear) as [number, number]
      out.set(`${linear}.weight`, shape)
      const isQkv = module === 'q_proj' || module === 'k_proj' || module === 'v_proj'
      if ((isQkv && config.qkvBias) || (module === 'o_proj' && config.outputBias)) out.set(`${linear}.bias`, [shape[0]])
    }
    const kind = mixerOf(config, layer)
    if (kind === 'delta') {
      const { taps, valueHeads, valueDim } = config.qwen35!
      const channels = deltaWidths(config.qwen35!).reduce((a, b) => a + b, 0)
      set(`${DELTA_PART}.conv1d.weight`, [channels, 1, taps])
      for (const name of ['A_log', 'dt_bias']) set(`${DELTA_PART}.${name}`, [valueHeads])
      norm(`${DELTA_PART}.norm`, valueDim)
    } else if (kind === 'conv') {
      set('conv.conv.weight', [config.hiddenSize, 1, config.shortConv!.taps])
    } else if (config.qkNorm) {
      const [q, k] = qkNormChannels(config)
      norm('self_attn.q_norm', q)
      norm('self_attn.k_norm', k)
    }
    norm('post_attention_layernorm', config.hiddenSize)
    for (const side of { around: ['pre', 'post'], after: ['post'], none: [] }[config.norms ?? 'none'])
      norm(`${side}_feedforward_layernorm`, config.hiddenSize)
  }
  out.set(`${lastNormPath(config)}.weight`, [config.hiddenSize])
  if (!config.tieWordEmbeddings) out.set('lm_head.weight', [config.vocabSize, config.hiddenSize])
  return out
}

/** Weights of a model: its matrices and vectors counted. */
export function weightCount(config: ModelConfig): number {
  return [...tensorShapes(config).values()].reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0)
}

/** Checks that the files hold every tensor with the shape that the config asks for; UserError naming tensor and shapes. */
export function checkTensors(config: ModelConfig, tensors: TensorSource, where: string): void {
  for (const [name, shape] of tensorShapes(config)) {
    if (!tensors.has(name))
      throw new UserError(`Tensor ${name} is missing in ${where}, and its config asks for one of shape [${shape.join(', ')}].`)
    const found = tensors.shape(name)
    if (found.length !== shape.length || found.some((size, i) => size !== shape[i])) {
      throw new UserError(
        `Tensor ${name} in ${where} has shape [${found.join(', ')}], and its config asks for [${shape.join(', ')}].`,
      )
    }
  }
}

/** The tensors of a model that is in no file: `make` makes one as it is read. */
export function madeTensors(
  config: ModelConfig,
  make: (name: string, shape: number[], options: { round?: boolean }) => TensorData,
): TensorSource {
  const shapes = tensorShapes(config)
  const shape = (name: string): number[] => shapes.get(name)!
  return {
    names: () => [...shapes.keys()],
    has: (name) => shapes.has(name),
    shape,
    read: (name, options = {}) => Promise.resolve(make(name, shape(name), options)),
    close: () => {},
  }
}
