/** The tensors that a model of the supported families has, by their Hugging Face names, with shapes (rows are outputs). */
import { UserError } from '../common/errors.ts'
import type { ModelConfig, Qwen35Config, TensorData, TensorSource } from './types.ts'

/** Linear layers of the parts of a decoder layer, as LoRA's `target_modules` names them. */
const ATTENTION = ['q_proj', 'k_proj', 'v_proj', 'o_proj'] as const
const MLP = ['gate_proj', 'up_proj', 'down_proj'] as const
/** Those of a Gated DeltaNet (Qwen3.5), which stands in the place of attention. */
const DELTA_MODULES = ['in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a', 'out_proj'] as const
/** The seven that a layer of most models has. */
export const LINEAR_MODULES = [...ATTENTION, ...MLP] as const
export type LinearModule = (typeof LINEAR_MODULES)[number] | (typeof DELTA_MODULES)[number]

const isOf = (modules: readonly LinearModule[], module: LinearModule): boolean => modules.includes(module)

/** Path of a linear layer inside the model: `model.layers.0.self_attn.q_proj`. */
export function linearPath(layer: number, module: LinearModule): string {
  const part = isOf(ATTENTION, module) ? 'self_attn' : isOf(DELTA_MODULES, module) ? DELTA_PART : 'mlp'
  return `model.layers.${layer}.${part}.${module}`
}

export const DELTA_PART = 'linear_attn'

/** Whether a layer is a Gated DeltaNet. */
export const isDelta = ({ qwen35 }: ModelConfig, layer: number): boolean => !!qwen35?.deltaLayers.includes(layer)

/** The linear layers of a decoder layer, in the order of the forward pass. */
function linearModules(config: ModelConfig, layer: number): LinearModule[] {
  return [...(isDelta(config, layer) ? DELTA_MODULES : ATTENTION), ...MLP]
}

/** What the norms of q and of k go over, where there are some: a head, or all of them. */
export const qkNormChannels = ({ qkNormWhole, heads, kvHeads, headDim }: ModelConfig): [number, number] =>
  qkNormWhole ? [heads * headDim, kvHeads * headDim] : [headDim, headDim]

/** Layers that have keys and values. */
export const attentionLayers = ({ layers, qwen35 }: ModelConfig): number => layers - (qwen35?.deltaLayers.length ?? 0)

/** The modules that get an adapter. All seven of most models stand for "all", so they include the large ones of a Gated DeltaNet. */
export function adapterModules({ qwen35 }: ModelConfig, asked: readonly string[]): string[] {
  const all = LINEAR_MODULES.every((module) => asked.includes(module))
  const more = ['in_proj_qkv', 'in_proj_z', 'out_proj'] as const satisfies LinearModule[]
  return [...new Set([...asked, ...(qwen35 && all ? more : [])])]
}

/** [outputs, inputs] of every linear layer of the decoder layers, by path without `.weight`, in the order of the forward pass. */
export function linearShapes(config: ModelConfig): Map<string, [number, number]> {
  const { hiddenSize: hidden, intermediateSize: wide, headDim, qwen35 } = config
  const q = config.heads * headDim
  const kv = config.kvHeads * headDim
  const shapes: Record<LinearModule, [number, number]> = {
    q_proj: [qwen35 ? 2 * q : q, hidden],
    k_proj: [kv, hidden],
    v_proj: [kv, hidden],
    o_proj: [hidden, q],
    gate_proj: [wide, hidden],
    up_proj: [wide, hidden],
    down_proj: [hidden, wide],
    ...deltaShapes(config),
  }
  const out = new Map<string, [number, number]>()
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of linearModules(config, layer)) out.set(linearPath(layer, module), shapes[module])
  }
  return out
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
    out_proj: [hidden, v],
  }
}

/** Every tensor of a model with its shape. `lm_head.weight` only where the head is not tied to the embedding. */
export function tensorShapes(config: ModelConfig): Map<string, number[]> {
  const out = new Map<string, number[]>([['model.embed_tokens.weight', [config.vocabSize, config.hiddenSize]]])
  const linears = linearShapes(config)
  for (let layer = 0; layer < config.layers; layer++) {
    const path = `model.layers.${layer}`
    if (config.norms !== 'after') out.set(`${path}.input_layernorm.weight`, [config.hiddenSize])
    for (const module of linearModules(config, layer)) {
      const linear = linearPath(layer, module)
      const shape = linears.get(linear) as [number, number]
      out.set(`${linear}.weight`, shape)
      const isQkv = module === 'q_proj' || module === 'k_proj' || module === 'v_proj'
      if ((isQkv && config.qkvBias) || (module === 'o_proj' && config.outputBias)) out.set(`${linear}.bias`, [shape[0]])
    }
    if (config.qwen35 && isDelta(config, layer)) {
      const { taps, valueHeads, valueDim } = config.qwen35
      const channels = deltaWidths(config.qwen35).reduce((a, b) => a + b, 0)
      out.set(`${path}.${DELTA_PART}.conv1d.weight`, [channels, 1, taps])
      for (const name of ['A_log', 'dt_bias']) out.set(`${path}.${DELTA_PART}.${name}`, [valueHeads])
      out.set(`${path}.${DELTA_PART}.norm.weight`, [valueDim])
    } else if (config.qkNorm) {
      const [q, k] = qkNormChannels(config)
      out.set(`${path}.self_attn.q_norm.weight`, [q])
      out.set(`${path}.self_attn.k_norm.weight`, [k])
    }
    out.set(`${path}.post_attention_layernorm.weight`, [config.hiddenSize])
    for (const norm of { around: ['pre', 'post'], after: ['post'], none: [] }[config.norms ?? 'none'])
      out.set(`${path}.${norm}_feedforward_layernorm.weight`, [config.hiddenSize])
  }
  out.set('model.norm.weight', [config.hiddenSize])
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
