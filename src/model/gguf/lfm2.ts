/** What a GGUF file says of LFM2's layers: keys of llama.cpp's architecture lfm2. */
import { UserError } from '../../common/errors.ts'
import type { metadataReader } from './metadata.ts'
import type { ModelConfig } from '../types.ts'

/**
 * The layers without attention have 0 heads of keys and values.
 * @throws UserError for a list of another length, and for layers with different numbers of heads
 */
export function lfm2Layers(
  meta: ReturnType<typeof metadataReader>,
  layers: number,
  path: string,
): Pick<ModelConfig, 'kvHeads' | 'shortConv'> {
  const key = 'lfm2.attention.head_count_kv'
  const counts = meta.numbers(key) ?? []
  const [kvHeads, ...others] = new Set(counts.filter((count) => count !== 0))
  if (counts.length !== layers || kvHeads === undefined || others.length > 0)
    throw new UserError(`${path}: ${key} is [${counts.join(', ')}]; it must be ${layers} numbers, each 0 or the same one.`)
  const taps = meta.count('lfm2.shortconv.l_cache')
  return { kvHeads, shortConv: { layers: counts.flatMap((count, layer) => (count === 0 ? [layer] : [])), taps } }
}
