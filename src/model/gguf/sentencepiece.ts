/**
 * SentencePiece's BPE in a GGUF file (`tokenizer.ggml.model` "llama"), as Gemma has it: no space before a text, and spaces that a text begins or ends with stay. The
 * file has a score of each token, and a tokenizer.json the merges that follow from them.
 */
import { UserError } from '../../common/errors.ts'
import { bpeModel } from '../tokenizer/form.ts'
import type { GgufFile } from './gguf.ts'
import { metadataReader } from './metadata.ts'

type Json = Record<string, unknown>

const NORMAL = 1
const SPACE = '\u2581'

export const SENTENCEPIECE_NORMALIZER: Json = { type: 'Replace', pattern: { String: ' ' }, content: SPACE }
export const SENTENCEPIECE_DECODER: Json = {
  type: 'Sequence',
  decoders: [{ type: 'Replace', pattern: { String: SPACE }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }],
}

/** Tokens as the vocabulary spells them: the converter writes spaces in those that are found in a text as they are (Gemma's runs of spaces). */
export const withSigns = (tokens: string[]): string[] => tokens.map((token) => token.replaceAll(' ', SPACE))

/** Whether an added token is found once spaces have become signs. */
export const isNormalized = (token: string): boolean => token.includes(SPACE)

/** @throws UserError for a tokenizer that adds spaces to a text or takes some away, of which readers disagree, and for one without scores */
export function sentencePieceModel(file: GgufFile, vocab: Record<string, number>, tokens: string[], types: number[]): Json {
  const meta = metadataReader(file)
  if (meta.flag('tokenizer.ggml.add_space_prefix') !== false)
    throw new UserError(
      `${file.path}: its tokenizer is SentencePiece ("llama") with a space before a text (tokenizer.ggml.add_space_prefix), and only the kind without one, Gemma's, is supported. Use the model's Hugging Face folder.`,
    )
  if (meta.flag('tokenizer.ggml.remove_extra_whitespaces'))
    throw new UserError(`${file.path}: tokenizer.ggml.remove_extra_whitespaces is true, which is not supported.`)
  const scores = meta.numbers('tokenizer.ggml.scores')
  if (scores?.length !== tokens.length || types.length !== tokens.length)
    throw new UserError(
      `${file.path} lacks tokenizer.ggml.scores or tokenizer.ggml.token_type, or has not one for each token. Is the file a complete model?`,
    )
  const unknown = tokens[meta.tokenId('unknown_token_id') ?? -1]
  return {
    ...bpeModel(vocab, mergesOf(tokens, scores, types), false),
    byte_fallback: true,
    ...(unknown !== undefined && { unk_token: unknown, fuse_unk: true }),
  }
}

/** Every way to make a token of two others, those of a higher score first, as transformers' `generate_merges` orders them. */
function mergesOf(tokens: string[], scores: number[], types: number[]): string[][] {
  const known = new Set(tokens.filter((_, id) => types[id] === NORMAL))
  const merges: { pair: [string, string]; score: number; lengths: [number, number] }[] = []
  for (const [id, token] of tokens.entries()) {
    if (types[id] !== NORMAL) continue
    const letters = Array.from(token)
    for (let i = 1, at = letters[0]?.length ?? 0; i < letters.length; at += letters[i++].length) {
      const pair: [string, string] = [token.slice(0, at), token.slice(at)]
      if (pair.every((part) => known.has(part))) merges.push({ pair, score: scores[id], lengths: [i, letters.length - i] })
    }
  }
  merges.sort((a, b) => b.score - a.score || b.lengths[0] - a.lengths[0] || b.lengths[1] - a.lengths[1])
  return merges.map(({ pair }) => pair)
}
