/** Tokenizers of the models that tests use, without their weights. */
import { GgufFile } from '../../src/model/gguf/gguf.ts'
import { ggufTokenizerParts } from '../../src/model/gguf/tokenizer.ts'
import { loadTokenizer, makeTokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import type { Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { fileURLToPath } from 'node:url'

/** The tokenizer of models/tiny, which ships. */
export const openTiny = (): Promise<Tokenizer> =>
  loadTokenizer(fileURLToPath(new URL('../../models/tiny', import.meta.url)), [257])

/** The tokenizer inside a GGUF file. */
export async function openGgufTokenizer(path: string): Promise<Tokenizer> {
  const file = await GgufFile.open(path)
  try {
    return makeTokenizer(ggufTokenizerParts(file))
  } finally {
    file.close()
  }
}
