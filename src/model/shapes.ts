/** The tensors that a model of the supported families has, by their Hugging Face names, with shapes (rows are outputs). */
import { UserError } from '../common/errors.ts'
import type { ModelConfig, TensorData, TensorSource } from './types.ts'

/** The seven linear layers of a decoder layer, as LoRA's `target_modules` names them. */
export const LINEAR_MODULES = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const
export type LinearModule = (typeof LINEAR_MODULES)[number]

/** Path of a linear layer inside the model: `model.layers.0.self_attn.q_proj`. */
export function linearPath(layer: number, module: LinearModule): string {
  const part = module === 'q_proj' || module === 'k_proj' || module === 'v_proj' || module === 'o_proj' ? 'self_attn' : 'mlp'
  return `model.layers.${layer}.${part}.${module}`
}

/** [outputs, inputs] of every linear layer of the decoder layers, by path without `.weight`, in the order of the forward pass. */
export function linearShapes(config: ModelConfig): Map<string, [number, number]> {
  const { hiddenSize: hidden, intermediateSize: wide, headDim } = config
  const q = config.heads * headDim
  const kv = config.kvHeads * headDim
  const shapes: Record<LinearModule, [number, number]> = {
    q_proj: [q, hidden],
    k_proj: [kv, hidden],
    v_proj: [kv, hidden],
    o_proj: [hidden, q],
    gate_proj: [wide, hidden],
    up_proj: [wide, hidden],
    down_proj: [hidden, wide],
  }
  const out = new Map<string, [number, number]>()
  for (let layer = 0; layer < config.layers; layer++) {
    for (const module of LINEAR_MODULES) out.set(linearPath(layer, module), shapes[module])
  }
  return out
}

/** Every tensor of a model with its shape. `lm_head.weight` only where the head is not tied to the embedding. */
export function tensorShapes(config: ModelConfig): Map<string, number[]> {
  const out = new Map<string, number[]>([['model.embed_tokens.weight', [config.vocabSize, config.hiddenSize]]])
  const linears = linearShapes(config)
  for (let layer = 0; layer < config.layers; layer++) {
    const path = `model.layers.${layer}`
    out.set(`${path}.input_layernorm.weight`, [config.hiddenSize])
    for (const module of LINEAR_MODULES) {
      const linear = linearPath(layer, module)
      const shape = linears.get(linear) as [number, number]
      out.set(`${linear}.weight`, shape)
      const isQkv = module === 'q_proj' || module === 'k_proj' || module === 'v_proj'
      if ((isQkv && config.qkvBias) || (module === 'o_proj' && config.outputBias)) out.set(`${linear}.bias`, [shape[0]])
    }
    if (config.qkNorm) {
      out.set(`${path}.self_attn.q_norm.weight`, [config.headDim])
      out.set(`${path}.self_attn.k_norm.weight`, [config.headDim])
    }
    out.set(`${path}.post_attention_layernorm.weight`, [config.hiddenSize])
    if (config.gemma)
      for (const norm of ['pre', 'post']) out.set(`${path}.${norm}_feedforward_layernorm.weight`, [config.hiddenSize])
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
