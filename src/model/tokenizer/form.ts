/**
 * A tokenizer.json in the form that @huggingface/tokenizers reads as Python's tokenizers read the file. What that library would silently
 * do otherwise is rewritten here, or refused: a text that is split in another way is other tokens than the model was trained on.
 */

type Json = Record<string, unknown>

/** The model of a tokenizer.json that is byte-level BPE. */
export const bpeModel = (vocab: Record<string, number>, merges: string[][], ignoreMerges: boolean): Json => ({
  type: 'BPE',
  dropout: null,
  unk_token: null,
  continuing_subword_prefix: null,
  end_of_word_suffix: null,
  fuse_unk: false,
  byte_fallback: false,
  ignore_merges: ignoreMerges,
  vocab,
  merges,
})

/**
 * The rewritten file, with the added tokens as tokenizer_config.json has them.
 * @throws Error that says what the library has not
 */
export function exactForm(tokenizerJson: Json, tokenizerConfig: Json): Json {
  const added = addedTokens(tokenizerJson, tokenizerConfig)
  const word = added.find((token) => token.single_word)
  if (word) throw new Error(`its added token ${JSON.stringify(word.content)} is marked as single_word, which is not supported`)
  const { continuing_subword_prefix: prefix, type } = (tokenizerJson.model ?? {}) as Json
  if (prefix && type === 'BPE')
    throw new Error(`its continuing_subword_prefix is ${JSON.stringify(prefix)}; BPE models are supported only without one`)
  return {
    normalizer: null,
    ...tokenizerJson,
    added_tokens: added,
    post_processor: exactPostProcessor((tokenizerJson.post_processor ?? null) as Json | null, contentsOf(tokenizerJson, added)),
    pre_tokenizer: exactPreTokenizer((tokenizerJson.pre_tokenizer ?? null) as Json | null),
    decoder: exactDecoder((tokenizerJson.decoder ?? null) as Json | null),
  }
}

interface AddedToken {
  id: number
  content?: string
  single_word?: boolean
  special?: boolean
  normalized?: boolean
}

/** The keys of tokenizer_config.json that name one special token, or several. */
const NAMED = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((name) => `${name}_token`)
const SEVERAL = ['additional_special_tokens', 'extra_special_tokens']

/**
 * All added tokens, as transformers makes them: `added_tokens_decoder` says how they are found, whatever tokenizer.json says, and special tokens with
 * names are added ones where tokenizer.json has them among other words.
 */
function addedTokens({ added_tokens, model }: Json, config: Json): AddedToken[] {
  const added = [...((added_tokens ?? []) as AddedToken[])]
  const place = new Map(added.map(({ content }, i) => [content, i]))
  const known = new Set(added.map((token) => token.id))
  const { vocab = {} } = (model ?? {}) as { vocab?: Record<string, number> | [string, number][] }
  const idOf = (content: string): number | undefined => {
    if (!Array.isArray(vocab)) return Object.hasOwn(vocab, content) ? vocab[content] : undefined
    const at = vocab.findIndex(([word]) => word === content)
    return at < 0 ? undefined : at
  }
  for (const [id, token] of Object.entries((config.added_tokens_decoder ?? {}) as Record<string, AddedToken>)) {
    const at = place.get(token.content)
    // Once special, always so: skipped in decoding.
    if (at !== undefined) added[at] = { ...token, id: added[at].id, special: Boolean(token.special || added[at].special) }
    else if (!known.has(Number(id))) place.set(token.content, added.push({ ...token, id: Number(id) }) - 1)
  }
  for (const { content, ...flags } of namedTokens(config)) {
    if (typeof content !== 'string' || place.has(content)) continue
    const id = idOf(content)
    if (id !== undefined) place.set(content, added.push({ normalized: false, ...flags, content, id, special: true }) - 1)
  }
  return added
}

/** The special tokens that have names, as far as they were written: strings, or objects with `content`. */
function namedTokens(config: Json): Partial<AddedToken>[] {
  const several = SEVERAL.flatMap((key) => Object.values((config[key] ?? {}) as object) as unknown[])
  const written = [...NAMED.map((key) => config[key]), ...several]
  return written.map((token) => (typeof token === 'string' ? { content: token } : ((token ?? {}) as Partial<AddedToken>)))
}

/**
 * added_tokens.json (ids by content) as the `added_tokens_decoder` that took its place in tokenizer_config.json, without what tokenizer.json has as added
 * tokens itself.
 */
export function addedTokensDecoder(ids: Json, { added_tokens }: Json, config: Json): Json {
  const known = new Set(((added_tokens ?? []) as AddedToken[]).map(({ content }) => content))
  const named = new Set(namedTokens(config).map(({ content }) => content))
  const missing = Object.entries(ids).filter(([content]) => !known.has(content))
  return Object.fromEntries(
    missing.map(([content, id]) => {
      const special = named.has(content)
      return [String(id), { content, lstrip: false, rstrip: false, single_word: false, normalized: !special, special }]
    }),
  )
}

/** A token's content by its id. */
function contentsOf({ model }: Json, added: AddedToken[]): (id: number) => string {
  const { vocab = {} } = (model ?? {}) as { vocab?: Record<string, number> | [string, number][] }
  return (id) => {
    const known = () => (Array.isArray(vocab) ? vocab[id]?.[0] : Object.keys(vocab).find((content) => vocab[content] === id))
    const content = added.find((token) => token.id === id)?.content ?? known()
    if (content === undefined) throw new Error(`its post_processor adds the token ${id}, which it does not have`)
    return content
  }
}

/** A template's special tokens have names and ids. The library takes the names for tokens; Python adds the ids. */
function exactPostProcessor(post: Json | null, contentOf: (id: number) => string): Json | null {
  if (post?.type === 'Sequence')
    return { ...post, processors: ((post.processors ?? []) as Json[]).map((part) => exactPostProcessor(part, contentOf)) }
  if (post?.type !== 'TemplateProcessing') return post
  const named = (post.special_tokens ?? {}) as Record<string, { ids?: number[] } | undefined>
  const written = (parts: unknown) =>
    ((parts ?? []) as { SpecialToken?: { id: string } }[]).flatMap((part) => {
      const { SpecialToken: token } = part
      const ids = token && named[token.id]?.ids
      return ids ? ids.map((id) => ({ SpecialToken: { ...token, id: contentOf(id) } })) : [part]
    })
  return { ...post, single: written(post.single), pair: written(post.pair) }
}

/** GPT-2's split, as Rust's ByteLevel has it built in. */
const GPT2_SPLIT = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
/** Rust's \w. */
const WORD = String.raw`\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d`
const PUNCTUATION = String.raw`[\p{P}!-\/:-@\[-\`{-~]`

const split = (regex: string, behavior = 'Isolated', invert = false): Json => ({
  type: 'Split',
  pattern: { Regex: regex },
  behavior,
  invert,
})
const literally = (text: string) => text.replaceAll(/[.*+?^${}()|[\]\\]/gu, String.raw`\$&`)

/**
 * The library's `Digits` has JavaScript's \d, which is ASCII (Rust's is_numeric is all of \p{N}), its `Whitespace` likewise \w, and its
 * ByteLevel and `WhitespaceSplit` JavaScript's \s, which has U+FEFF and lacks U+0085; `Metaspace` never splits there, and `Punctuation` and `Split` have only
 * one or two of the behaviours. As `Split` with a regex all are read alike.
 */
function exactPreTokenizer(pre: Json | null): Json | null {
  switch (pre?.type) {
    case 'Sequence':
      return { ...pre, pretokenizers: ((pre.pretokenizers ?? []) as Json[]).map((part) => exactPreTokenizer(part)) }
    case 'Digits':
      return split(pre.individual_digits ? String.raw`\p{N}` : String.raw`\p{N}+`)
    case 'Whitespace':
      return split(String.raw`[${WORD}]+|[^${WORD}\s]+`, 'Removed', true)
    case 'WhitespaceSplit':
      return split(String.raw`\s+`, 'Removed')
    case 'Punctuation':
      return exactSplit(split(PUNCTUATION, (pre.behavior as string | undefined) ?? 'Isolated'))
    case 'Split':
      return exactSplit(pre)
    case 'Metaspace': {
      if (pre.split === false) return pre
      const space = literally((pre.replacement as string | undefined) ?? '\u2581')
      return { type: 'Sequence', pretokenizers: [pre, split(`${space}(?:(?!${space})[\\s\\S])*`)] }
    }
    case 'ByteLevel':
      if (pre.use_regex === false || pre.add_prefix_space) return pre
      return { type: 'Sequence', pretokenizers: [split(GPT2_SPLIT), { ...pre, use_regex: false }] }
  }
  return pre
}

/** Letters beyond ASCII that are an s or a k where case is left out: the long s and the sign of kelvins. The library's (?i:) has ASCII's alone. */
const FOLDED = new Map([
  ['s', '\u017f'],
  ['k', '\u212a'],
])
const withFolded = (letters: string): string => letters + Array.from(letters.toLowerCase(), (l) => FOLDED.get(l) ?? '').join('')

/** Groups without case, of words and of letters in brackets ('(?i:[sdmt]|ll|ve|re)), with these letters. */
const foldedGroups = (regex: string): string =>
  regex.replaceAll(
    /\(\?i:(?:[^()[\]\\]|\[[a-z]+\])*\)/giu,
    (group) =>
      `(?i:${group.slice(4).replaceAll(/\[([a-z]+)\]|[sk]/giu, (found, inside?: string) => `[${withFolded(inside ?? found)}]`)}`,
  )

/** A Split whose behaviour the library has. */
function exactSplit(pre: Json): Json {
  const { Regex: regex, String: text } = pre.pattern as { Regex?: string; String?: string }
  const found = regex === undefined ? literally(text ?? '') : foldedGroups(regex)
  const between = `(?:(?!${found})[\\s\\S])+`
  switch (`${pre.invert ? 'inverted ' : ''}${String(pre.behavior)}`) {
    case 'Isolated':
    case 'inverted Isolated':
      return split(found)
    case 'Removed':
      return split(found, 'Removed')
    case 'inverted Removed':
      return split(found, 'Removed', true)
    case 'Contiguous':
      return split(`(?:${found})+`)
    case 'MergedWithPrevious':
      return split(`${between}(?:${found})?|${found}`)
    case 'MergedWithNext':
      return split(`(?:${found})${between}|${found}`)
  }
  throw new Error(
    `its pre-tokenizer's Split with behavior ${String(pre.behavior)} and invert ${String(pre.invert)} is not supported`,
  )
}

/** The library's Metaspace takes a space off the beginning of a text, whether one was put there or not. */
function exactDecoder(decoder: Json | null): Json | null {
  if (decoder?.type === 'Sequence')
    return { ...decoder, decoders: ((decoder.decoders ?? []) as Json[]).map((part) => exactDecoder(part)) }
  if (decoder?.type !== 'Metaspace' || decoder.prepend_scheme !== 'never') return decoder
  return { type: 'Replace', pattern: { String: decoder.replacement ?? '\u2581' }, content: ' ' }
}
