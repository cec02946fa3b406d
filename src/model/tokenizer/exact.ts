/** Parts of @huggingface/tokenizers' tokenizer, made to do what Python's do where no rewritten tokenizer.json (form.ts) has it. */
import { charsmapOf } from './charsmap.ts'

interface Decoder {
  config: { type?: string; replacement?: string }
  decode_chain(tokens: string[]): string[]
  decoders?: Decoder[]
  text_decoder?: unknown
}

interface Normalizer {
  config: { type?: string; precompiled_charsmap?: string | null; strip_left?: boolean; strip_right?: boolean }
  normalizers?: (Normalizer | null)[]
  normalize(text: string): string
}

interface Model {
  config: { type?: string; byte_fallback?: boolean }
  tokens_to_ids: Map<string, number>
  encode(words: string[]): string[]
}

/** On which sides of an added token white space is taken away, and whether it is found after those that are not normalized. */
interface Strips {
  lstrip: boolean
  rstrip: boolean
  normalized: boolean
}

/** Finds added tokens in a text. */
interface Splitter {
  split(text: string): string[]
}

/** Parts of the library's tokenizer, whose types call some of them private. */
export interface Parts {
  decoder: Decoder | null
  normalizer: Normalizer | null
  model: Model
  added_tokens_map: Map<string, Strips>
  splitter_unnormalized: Splitter
  splitter_normalized: Splitter
}

/** Changes the parts of a tokenizer that was just made. */
export function correct(tokenizer: Parts): void {
  correctDecoder(tokenizer.decoder)
  correctNormalizer(tokenizer.normalizer)
  fallBackToBytes(tokenizer.model)
  stripAround(tokenizer.added_tokens_map, [tokenizer.splitter_unnormalized, tokenizer.splitter_normalized])
}

/** Rust's white space. JavaScript's lacks U+0085 and has U+FEFF, with which a file in a prompt may begin. */
const WHITE_SPACE = new Set(
  '\t\n\v\f\r \x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000',
)

function stripped(text: string, start: boolean, end: boolean): string {
  let [from, to] = [0, text.length]
  while (start && from < to && WHITE_SPACE.has(text[from])) from++
  while (end && to > from && WHITE_SPACE.has(text[to - 1])) to--
  return text.slice(from, to)
}

/** Takes the white space around added tokens that are marked so (as Phi-3's are) in place of the library. */
function stripAround(added: Map<string, Strips>, splitters: Splitter[]): void {
  const marked = new Map<string, Strips>()
  for (const [content, token] of added) if (token.lstrip || token.rstrip) marked.set(content, { ...token })
  if (marked.size === 0) return
  for (const token of added.values()) token.lstrip = token.rstrip = false
  for (const splitter of splitters) {
    const split = splitter.split.bind(splitter)
    splitter.split = (text) => {
      const parts = split(text)
      return parts.map((part, i) => {
        const [before, after, own] = [marked.get(parts[i - 1]), marked.get(parts[i + 1]), added.get(part)]
        // White space that is a token itself (Gemma's line ends) stays, unless it is found later than the one beside it.
        const gives = (beside: Strips | undefined) => !own || (own.normalized && !beside?.normalized)
        const start = (before?.rstrip ?? false) && gives(before)
        const end = (after?.lstrip ?? false) && gives(after)
        return start || end ? stripped(part, start, end) : part
      })
    }
  }
}

/**
 * SentencePiece's bytes become text by a decoder that drops U+FEFF, which a model may write as any other letter. Of the signs for spaces in a
 * first token, Metaspace drops all, and no real spaces.
 */
function correctDecoder(decoder: Decoder | null): void {
  for (const part of decoder?.decoders ?? []) correctDecoder(part)
  const { type, replacement = '\u2581' } = decoder?.config ?? {}
  if (decoder && type === 'ByteFallback') decoder.text_decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  if (decoder && type === 'Metaspace')
    decoder.decode_chain = (tokens) => tokens.map((token, i) => token.replaceAll(replacement, i === 0 ? '' : ' '))
}

/** The library has one table of letters, near that of nmt_nfkc, in place of the file's own, and JavaScript's white space. */
function correctNormalizer(normalizer: Normalizer | null): void {
  for (const part of normalizer?.normalizers ?? []) correctNormalizer(part)
  const { type, precompiled_charsmap: table, strip_left: start = false, strip_right: end = false } = normalizer?.config ?? {}
  if (normalizer && type === 'Precompiled') normalizer.normalize = charsmapOf(table ?? '')
  if (normalizer && type === 'Strip') normalizer.normalize = (text) => stripped(text, start, end)
}

/** The library's Unigram gives the unknown token for what the vocabulary has only in bytes, be it a line end or an emoji. */
function fallBackToBytes(model: Model): void {
  if (model.config.type !== 'Unigram' || !model.config.byte_fallback) return
  const known = model.tokens_to_ids
  const pieces = model.encode.bind(model)
  model.encode = (words) =>
    pieces(words).flatMap((piece) => {
      if (known.has(piece)) return [piece]
      const bytes = Array.from(Buffer.from(piece), (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`)
      return bytes.every((byte) => known.has(byte)) ? bytes : [piece]
    })
}
