/** The models of Granite 4 that have attention in every layer and no experts (350M, 1B, Micro): Granite 3 with gate and up in one matrix, with or without rotary embedding. */
import { UserError } from '../../../common/errors.ts'
import { keyReader, type Json } from '../keys.ts'
import { eightsOfParts, siluKeys, siluWithoutBias, type Family } from './family.ts'
import { multiplierKeys, multipliers } from './granite.ts'

/** GraniteMoeHybridConfig's. */
const DEFAULTS = { experts: 8, intermediateSize: 1024 }
const DENSE = 'only the dense models of Granite 4, with attention in every layer and no experts (350M, 1B, Micro), are supported'
/** Old and new words for a layer with attention. */
const ATTENTION = ['attention', 'full_attention']

export const granite4: Family = {
  architecture: 'GraniteMoeHybrid',
  names: { 'mlp.gate_up_proj': 'shared_mlp.input_linear', 'mlp.down_proj': 'shared_mlp.output_linear' },
  leftOut: ['time_step_limit', 'router_aux_loss_coef'],
  refuse(raw, refuse) {
    siluWithoutBias(raw, refuse)
    const { position_embedding_type: positions = null } = raw
    if (![null, 'rope', 'nope'].includes(positions as null))
      throw refuse('position_embedding_type', 'and only rope, nope and null are supported')
  },
  read(raw, file, { layers, hiddenSize }) {
    const experts = raw.num_local_experts ?? DEFAULTS.experts
    if (experts !== 0) throw new UserError(`${file}: num_local_experts is ${JSON.stringify(experts)}, and ${DENSE}.`)
    // Without the key all are Mamba's.
    const types = (raw.layer_types ?? raw.layers_block_type ?? Array.from({ length: layers }, () => 'mamba')) as unknown
    if (!Array.isArray(types) || types.length !== layers)
      throw new UserError(`${file}: layer_types must be a list of ${layers} words, each attention.`)
    const other = types.findIndex((type) => !ATTENTION.includes(type as string))
    if (other >= 0) throw new UserError(`${file}: layer ${other} is of the type ${JSON.stringify(types[other])}, and ${DENSE}.`)
    const intermediateSize = keyReader(raw, file).optionalCount('shared_intermediate_size') ?? DEFAULTS.intermediateSize
    eightsOfParts({ hidden_size: hiddenSize, shared_intermediate_size: intermediateSize }, file)
    const turns = raw.position_embedding_type === 'rope'
    return {
      ...multipliers(raw, file),
      intermediateSize,
      fused: ['gate_up_proj'],
      ...(!turns && { layersWithoutRope: Array.from({ length: layers }, (_, layer) => layer) }),
    }
  },
  write: (config): Json => ({
    ...siluKeys,
    attention_bias: config.qkvBias,
    ...multiplierKeys(config),
    shared_intermediate_size: config.intermediateSize,
    position_embedding_type: config.layersWithoutRope ? 'nope' : 'rope',
    layer_types: Array.from({ length: config.layers }, () => 'attention'),
    num_local_experts: 0,
    num_experts_per_tok: 0,
    // Of no layer, but transformers checks that it divides the hidden size.
    mamba_n_heads: 1,
  }),
}
