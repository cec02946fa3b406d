/**
 * The tokenizer of a GGUF file, as the tokenizer.json that the model had before it was converted. A GGUF names its way of splitting text
 * with one word (`tokenizer.ggml.pre`); a word that is not known here is refused, because a wrong split is silent.
 */
import { UserError } from '../../common/errors.ts'
import type { GgufFile } from './gguf.ts'
import { metadataReader } from './metadata.ts'
import { bpeModel } from '../tokenizer/form.ts'
import { isNormalized, SENTENCEPIECE_DECODER, SENTENCEPIECE_NORMALIZER, sentencePieceModel, withSigns } from './sentencepiece.ts'
import type { TokenizerParts } from '../tokenizer/tokenizer.ts'

type Json = Record<string, unknown>

const byteLevel = (useRegex: boolean): Json => ({
  type: 'ByteLevel',
  add_prefix_space: false,
  trim_offsets: true,
  use_regex: useRegex,
})
const sequence = (...pretokenizers: Json[]): Json => ({ type: 'Sequence', pretokenizers })
const split = (regex: string): Json => ({ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false })
/** The split of Llama 3 and Qwen 2; they differ in how many digits go together. */
const wordSplit = (digits: string) =>
  split(
    String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|` +
      digits +
      String.raw`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
  )

interface Kind {
  preTokenizer: Json | null
  normalizer: Json | null
  ignoreMerges: boolean
  addBos: boolean
  /** Tokens that end a turn although the file's eos_token_id is another, as in the models' generation_config.json. */
  alsoEos: string[]
}

const QWEN2: Kind = {
  preTokenizer: sequence(wordSplit(String.raw`\p{N}`), byteLevel(false)),
  normalizer: { type: 'NFC' },
  ignoreMerges: false,
  addBos: false,
  alsoEos: ['<|im_end|>', '<|endoftext|>'],
}
const LLAMA3: Kind = {
  preTokenizer: sequence(wordSplit(String.raw`\p{N}{1,3}`), byteLevel(false)),
  normalizer: null,
  ignoreMerges: true,
  addBos: true,
  alsoEos: ['<|eot_id|>', '<|eom_id|>', '<|end_of_text|>'],
}
/** Digits one by one, then GPT-2's split. transformers' own conversion of GGUF files forgets the digits. */
const SMOLLM: Kind = {
  preTokenizer: sequence({ type: 'Digits', individual_digits: true }, byteLevel(true)),
  normalizer: null,
  ignoreMerges: false,
  addBos: false,
  alsoEos: [],
}
const GPT2: Kind = { ...SMOLLM, preTokenizer: byteLevel(true) }
/** The split of Llama 3 with all merges (Granite 4, OLMo 2, Olmo 3, Phi-4). */
const DBRX: Kind = { ...LLAMA3, ignoreMerges: false, addBos: false, alsoEos: ['<|im_end|>', '<|endoftext|>'] }
/** Qwen 2's tokenizer with other special tokens. */
const R1_QWEN: Kind = { ...QWEN2, addBos: true, alsoEos: [] }
/** One split after the other, each of what the one before left. */
const DEEPSEEK_CODER: Kind = {
  preTokenizer: sequence(
    ...[
      String.raw`[\r\n]`,
      String.raw`\s?\p{L}+`,
      String.raw`\s?\p{P}+`,
      '[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+',
      String.raw`\p{N}`,
    ].map(split),
    byteLevel(false),
  ),
  normalizer: null,
  ignoreMerges: false,
  addBos: true,
  alsoEos: [],
}
const [CAPITAL, SMALL] = [String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`]
const ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
const BEFORE_WORD = String.raw`[^\r\n\p{L}\p{N}]?`
/** Mistral's since Nemo: a word is capitals and then small letters, of which either may be missing. */
const TEKKEN: Kind = {
  preTokenizer: sequence(
    split(
      `${BEFORE_WORD}${CAPITAL}*${SMALL}+|${BEFORE_WORD}${CAPITAL}+${SMALL}*|` +
        String.raw`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
    ),
    byteLevel(false),
  ),
  normalizer: null,
  ignoreMerges: true,
  addBos: true,
  alsoEos: [],
}
/** Phi-4-mini's, of GPT-4o: as Tekken, with an apostrophe's ending in the word, and three digits together. */
const GPT4O: Kind = {
  preTokenizer: sequence(
    split(
      `${BEFORE_WORD}${CAPITAL}*${SMALL}+${ENDING}|${BEFORE_WORD}${CAPITAL}+${SMALL}*${ENDING}|` +
        String.raw`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
    ),
    byteLevel(false),
  ),
  normalizer: null,
  ignoreMerges: false,
  addBos: false,
  alsoEos: ['<|end|>', '<|endoftext|>'],
}
/** SentencePiece's, which splits nothing. */
const GEMMA: Kind = {
  preTokenizer: null,
  normalizer: SENTENCEPIECE_NORMALIZER,
  ignoreMerges: false,
  addBos: true,
  alsoEos: ['<end_of_turn>', '<eos>'],
}
const KINDS: Record<string, Kind> = {
  smollm: SMOLLM,
  'gpt-2': GPT2,
  qwen2: QWEN2,
  'deepseek-r1-qwen': R1_QWEN,
  'deepseek-coder': DEEPSEEK_CODER,
  'llama-bpe': LLAMA3,
  // As files of other converters name the same, and llama.cpp reads them.
  llama3: LLAMA3,
  'llama-v3': LLAMA3,
  tekken: TEKKEN,
  lfm2: LLAMA3,
  // Granite 3's, which is StarCoder's.
  refact: SMOLLM,
  dbrx: DBRX,
  'gpt-4o': GPT4O,
}

/** The kind of a file's tokenizer, where it is known. */
function kindOf(file: GgufFile): Kind | undefined {
  const meta = metadataReader(file)
  if (meta.string('tokenizer.ggml.model') === 'llama') return GEMMA
  const pre = meta.string('tokenizer.ggml.pre') ?? ''
  return Object.hasOwn(KINDS, pre) ? KINDS[pre] : undefined
}

/** Token types of the file. */
const UNKNOWN = 2
const CONTROL = 3
const USER_DEFINED = 4
const UNUSED = 5

/** The parts of the tokenizer in a GGUF file. Throws UserError for a kind that is not known or metadata that is missing. */
export function ggufTokenizerParts(file: GgufFile): TokenizerParts {
  const meta = metadataReader(file)
  const model = meta.string('tokenizer.ggml.model')
  if (model === undefined)
    throw new UserError(`${file.path} has no tokenizer (tokenizer.ggml.model). Use a GGUF file that includes one.`)
  const pieces = model === 'llama'
  if (model !== 'gpt2' && !pieces)
    throw new UserError(
      `${file.path}: its tokenizer is of the kind "${model}", but only byte-level BPE ("gpt2") and SentencePiece ("llama") are supported.`,
    )
  const kind = kindOf(file)
  if (!kind) {
    const pre = meta.string('tokenizer.ggml.pre') ?? ''
    const known = Object.keys(KINDS).join(', ')
    throw new UserError(`${file.path}: its pre-tokenizer (tokenizer.ggml.pre) "${pre}" is not supported; ${known} are.`)
  }
  const written = meta.strings('tokenizer.ggml.tokens')
  const tokens = pieces && written ? withSigns(written) : written
  const merges = meta.strings('tokenizer.ggml.merges')
  if (!tokens || !(merges || pieces))
    throw new UserError(`${file.path} lacks tokenizer.ggml.tokens or tokenizer.ggml.merges. Is the file a complete model?`)
  const types = meta.numbers('tokenizer.ggml.token_type') ?? []
  const added = pieces ? [UNKNOWN, CONTROL, USER_DEFINED] : [CONTROL, USER_DEFINED]
  const special = tokens.flatMap((content, id) =>
    added.includes(types[id]) ? [addedToken(id, content, types[id] !== USER_DEFINED, pieces && isNormalized(content))] : [],
  )
  const vocab = Object.fromEntries(tokens.flatMap((token, id) => (types[id] === UNUSED ? [] : [[token, id]])))
  const tokenOf = (key: string) => tokens[meta.tokenId(key) ?? -1]
  const bos = tokenOf('bos_token_id')
  const addBos = (meta.flag('tokenizer.ggml.add_bos_token') ?? kind.addBos) && bos !== undefined
  const chatTemplate = meta.string('tokenizer.chat_template') ?? null
  const toolTemplate = meta.string('tokenizer.chat_template.tool_use')
  const named = Object.entries({ default: chatTemplate, tool_use: toolTemplate }).map(([name, template]) => ({ name, template }))
  const tokenizerJson: Json = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: special,
    normalizer: kind.normalizer,
    pre_tokenizer: kind.preTokenizer,
    post_processor: addBos ? bosTemplate(bos, tokens.indexOf(bos)) : pieces ? null : { ...byteLevel(false), trim_offsets: false },
    decoder: pieces ? SENTENCEPIECE_DECODER : { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: pieces
      ? sentencePieceModel(file, vocab, tokens, types)
      : bpeModel(
          vocab,
          merges!.map((merge) => merge.split(' ', 2)),
          kind.ignoreMerges,
        ),
  }
  return {
    label: file.path,
    tokenizerJson,
    tokenizerConfig: {
      tokenizer_class: 'PreTrainedTokenizerFast',
      ...definedOnly({ bos_token: bos, eos_token: tokenOf('eos_token_id'), pad_token: tokenOf('padding_token_id') }),
      clean_up_tokenization_spaces: false,
      model_max_length: meta.number(`${meta.string('general.architecture')}.context_length`) ?? 1e30,
      ...(chatTemplate !== null && { chat_template: toolTemplate === undefined ? chatTemplate : named }),
    },
    chatTemplate,
    toolTemplate,
    eosTokenIds: ggufEosTokenIds(file),
  }
}

/** Tokens that end a completion: those that the metadata names, and those that the family's own configs add. */
export function ggufEosTokenIds(file: GgufFile): number[] {
  const meta = metadataReader(file)
  const ids = new Set<number>()
  for (const key of ['eos_token_id', 'eot_token_id', 'eom_token_id']) {
    const id = meta.tokenId(key)
    if (id !== undefined) ids.add(id)
  }
  const tokens = meta.strings('tokenizer.ggml.tokens') ?? []
  const types = meta.numbers('tokenizer.ggml.token_type') ?? []
  for (const token of kindOf(file)?.alsoEos ?? []) {
    const id = tokens.indexOf(token)
    if (id >= 0 && types[id] === CONTROL) ids.add(id)
  }
  return [...ids]
}

function addedToken(id: number, content: string, special: boolean, normalized: boolean): Json {
  return { id, content, single_word: false, lstrip: false, rstrip: false, normalized, special }
}

const text = (name: string): Json => ({ Sequence: { id: name, type_id: 0 } })

/** Puts the bos token before a text that is encoded with special tokens. */
function bosTemplate(bos: string, id: number): Json {
  const token = { SpecialToken: { id: bos, type_id: 0 } }
  return {
    type: 'TemplateProcessing',
    single: [token, text('A')],
    pair: [token, text('A'), token, text('B')],
    special_tokens: { [bos]: { id: bos, ids: [id], tokens: [bos] } },
  }
}

function definedOnly(values: Record<string, string | undefined>): Json {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined))
}
