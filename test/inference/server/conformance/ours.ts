/** Our server, as the conformance suite asks it: the tiny model under the settings that vLLM is started with. */
import { afterAll } from 'vitest'
import { createGrammars } from '../../../../src/inference/grammar/grammars.ts'
import { Tiny } from '../helpers.ts'
import { writeFolders } from './folders.ts'
import type { Folders } from './answers.ts'

/** @param root folder for what the requests name */
export async function openOurs(root: string): Promise<{ url: string; folders: Folders }> {
  const tiny = await Tiny.open({ maxAdapters: 2, maxAdapterRank: 8 })
  const { config } = tiny.decoder
  const grammars = createGrammars(tiny.tokenizer, tiny.tokenizer.eosTokenIds, config.vocabSize)
  afterAll(() => grammars.close())
  const folders = await writeFolders(root, config)
  const { url } = await tiny.serve(
    { adapterRoot: root },
    { maxAdapters: 2, grammars: () => Promise.resolve(grammars), toolParser: 'hermes' },
  )
  return { url, folders }
}
