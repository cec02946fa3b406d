/** Computes how many pages the engine's KV cache gets. */
import { UserError } from '../common/errors.ts'
import type { Decoder } from '../model/decoder/decoder.ts'
import { rotaryDimOf } from '../model/decoder/rope.ts'
import { bindablePages, CACHE_PAGE, cacheTokenBytes } from '../model/decoder/shapes.ts'
import type { EngineOptions } from './types.ts'

interface CacheSize {
  pages: number
  /** Tokens per page. */
  pageSize: number
  /** Whether keys and values are stored in half precision. */
  f16: boolean
}

/**
 * The number of pages that the options ask for, limited by the adapter's largest binding and by `cacheBytes`.
 * @throws UserError if a sequence of `maxLength` tokens does not fit, or the model does not support an f16 cache
 */
export function cacheOf({ gpu, config }: Decoder, options: EngineOptions): CacheSize {
  const { maxSequences, maxLength, cacheRows, cacheBytes = Infinity, pageSize = CACHE_PAGE } = options
  const f16 = options.kvCacheDtype === 'f16'
  // The rotated part of a head, too, is written eight values at a time.
  const eights = [config.headDim, rotaryDimOf(config)].find((channels) => channels % 8 !== 0)
  if (f16 && eights !== undefined) {
    throw new UserError(
      `A KV cache in f16 needs heads whose size is a multiple of 8, but this model's heads have ${eights} values.`,
    )
  }
  const bindable = bindablePages(config, gpu.facts.limits.maxBinding, { f16, pageSize })
  if (bindable * pageSize < maxLength) {
    throw new UserError(
      `A sequence of ${maxLength} tokens does not fit into a KV cache on this GPU, which has room for at most ${bindable * pageSize}. Lower max_seq_len.`,
    )
  }
  const pagesEach = Math.ceil(maxLength / pageSize)
  const pageBytes = cacheTokenBytes(config, f16) * pageSize
  const affordable = Math.floor(cacheBytes / pageBytes)
  const pages = Math.min(cacheRows ? Math.ceil(cacheRows / pageSize) : maxSequences * pagesEach, bindable, affordable)
  if (affordable < pagesEach) {
    throw new UserError(
      `A KV cache of ${cacheBytes} bytes has room for ${pages * pageSize} tokens, but one sequence may have ${maxLength}: at least ${pagesEach * pageBytes} bytes are needed.`,
    )
  }
  return { pages, pageSize, f16 }
}
