/** A narrow model's layer over a cache, where it goes in two dispatches beside attention: see autograd/ops/row-block.ts. */
import { attentionOverCache, type RowLayout } from '../../autograd/ops/attention.ts'
import type { LinearsArguments } from '../../autograd/ops/linears.ts'
import { blocksOf, mlpInBlocks, qkvInBlocks, type BlockLayer } from '../../autograd/ops/row-block.ts'
import type { Tape } from '../../autograd/tape.ts'
import type { Tensor } from '../../autograd/tensor.ts'
import type { GpuBuffer } from '../../gpu/pool.ts'
import { headShape, intoCacheOf, layerCache } from './attention-layer.ts'
import type { DecoderLayer } from './decoder.ts'
import type { CacheArguments } from './layer-cache.ts'
import type { ModelConfig } from '../types.ts'

/** The layer's output; undefined where its kernels do not take it. */
export function layerInBlocks(
  tape: Tape,
  config: ModelConfig,
  layer: DecoderLayer,
  x: Tensor,
  layout: RowLayout,
  table: GpuBuffer,
  cache: CacheArguments & { index: number },
  options: LinearsArguments,
): Tensor | undefined {
  const block = blockLayerOf(config, layer)
  if (!block) return undefined
  const into = intoCacheOf(config, table, cache)
  const height = blocksOf(tape, x, block, into, options)
  if (!height) return undefined
  const q = qkvInBlocks(tape, x, block, into, height)
  const attended = attentionOverCache(tape, q, layerCache(cache), layout, headShape(config, cache.index), cache.paged)
  tape.done(q)
  const out = mlpInBlocks(tape, attended, x, block, height)
  tape.done(attended)
  return out
}

function blockLayerOf(config: ModelConfig, layer: DecoderLayer): BlockLayer | undefined {
  const { mixer, inputNorm, postNorm, gate, up, down, oNorm, downNorm } = layer
  const plain = mixer.kind === 'attention' && !config.qwen35 && config.residualScale === undefined
  if (!plain || !inputNorm || !postNorm || oNorm || downNorm) return undefined
  const { q, k, v, o, qNorm, kNorm } = mixer
  if ([q, k, v, o, gate, up, down].some(({ bias }) => bias)) return undefined
  const headNorms: BlockLayer['headNorms'] = qNorm && kNorm && [qNorm, kNorm]
  return { inputNorm, q, k, v, headNorms, o, postNorm, gate, up, down, activation: config.activation ?? 'silu' }
}
