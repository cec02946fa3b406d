/** Parts of @huggingface/tokenizers' tokenizer, made to do what Python's do where no rewritten tokenizer.json (form.ts) has it. */
import { charsmapOf } from './charsmap.ts'

interface Decoder {
  config: { type?: string }
  decoders?: Decoder[]
  text_decoder?: unknown
}

interface Normalizer {
  config: { type?: string; precompiled_charsmap?: string | null }
  normalizers?: (Normalizer | null)[]
  normalize(text: string): string
}

interface Model {
  config: { type?: string; byte_fallback?: boolean }
  tokens_to_ids: Map<string, number>
  encode(words: string[]): string[]
}

/** Changes the parts of a tokenizer that was just made. */
export function correct(tokenizer: { decoder: unknown; normalizer: unknown; model: unknown }): void {
  keepByteOrderMarks(tokenizer.decoder as Decoder | null)
  readCharsmaps(tokenizer.normalizer as Normalizer | null)
  fallBackToBytes(tokenizer.model as Model)
}

/** SentencePiece's bytes become text by a decoder that drops U+FEFF, which a model may write as any other letter. */
function keepByteOrderMarks(decoder: Decoder | null): void {
  for (const part of decoder?.decoders ?? []) keepByteOrderMarks(part)
  if (decoder?.config.type === 'ByteFallback') decoder.text_decoder = new TextDecoder('utf-8', { ignoreBOM: true })
}

/** The library has one table of letters, near that of nmt_nfkc, in place of the file's own. */
function readCharsmaps(normalizer: Normalizer | null): void {
  for (const part of normalizer?.normalizers ?? []) readCharsmaps(part)
  if (normalizer?.config.type === 'Precompiled') normalizer.normalize = charsmapOf(normalizer.config.precompiled_charsmap ?? '')
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
