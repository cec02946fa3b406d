/** A tokenizer for models trained from scratch: one token for each UTF-8 byte, plus tokens for padding, the chat roles and the end of a message. */
import { byteOfSign } from '../model/tokenizer/token-bytes.ts'
import { bpeModel } from '../model/tokenizer/form.ts'
import { makeTokenizer, type Tokenizer } from '../model/tokenizer/tokenizer.ts'

/** Ids from 256 on. A chat message costs two of these tokens, besides its text. */
const SPECIAL = ['<|pad|>', '<|end|>', '<|system|>', '<|user|>', '<|assistant|>', '<|tool|>']
const ids = (token: string): number => 256 + SPECIAL.indexOf(token)

export const BYTE_VOCABULARY = 256 + SPECIAL.length
export const BYTE_PAD = ids('<|pad|>')
export const BYTE_END = ids('<|end|>')

const chatTemplate =
  "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}" +
  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"

/** Makes the tokenizer in the format of Hugging Face's files: byte-level BPE without merges. Id b is byte b. */
export function byteTokenizer(maxLength: number): Tokenizer {
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false }
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true }
  return makeTokenizer({
    label: 'the byte tokenizer',
    tokenizerJson: {
      version: '1.0',
      truncation: null,
      padding: null,
      added_tokens: SPECIAL.map((content) => ({ id: ids(content), content, ...flags })),
      normalizer: null,
      pre_tokenizer: byteLevel,
      post_processor: null,
      decoder: byteLevel,
      model: bpeModel(Object.fromEntries(byteOfSign), [], false),
    },
    tokenizerConfig: {
      tokenizer_class: 'PreTrainedTokenizerFast',
      eos_token: '<|end|>',
      pad_token: '<|pad|>',
      model_max_length: maxLength,
      clean_up_tokenization_spaces: false,
    },
    chatTemplate,
    eosTokenIds: [BYTE_END],
  })
}
