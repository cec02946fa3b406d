/** Opens a model wherever it is: a Hugging Face folder, a GGUF file, or a name on the hub. */
import { readdir } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { UserError } from '../../common/errors.ts'
import { configToJson, parseConfig, textConfig } from '../config/config.ts'
import { checkpointHint, kindOf, readJson } from './files.ts'
import { GgufFile } from '../gguf/gguf.ts'
import { GgufTensors, ggufConfig, refuseOtherTensors } from '../gguf/model.ts'
import { ggufEosTokenIds, ggufTokenizerParts } from '../gguf/tokenizer.ts'
import { INDEX_FILE, SINGLE_FILE, hubFolder, isHubId, shardsOf } from './hub.ts'
import { openSafetensors, type SafetensorsSource } from './safetensors.ts'
import { checkTensors } from '../decoder/shapes.ts'
import { loadTokenizer, makeTokenizer } from '../tokenizer/tokenizer.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { ModelConfig, TensorSource } from '../types.ts'

/** An open model: its shape is known and its tensors were checked against it, none was read. */
export interface ModelFiles {
  /** The hub id, or the name of the folder or file without its ending. */
  name: string
  /** As it was asked for. */
  ref: string
  /** The folder, or the GGUF file. */
  path: string
  kind: 'folder' | 'gguf'
  config: ModelConfig
  tensors: TensorSource
  /** Read at the first call. Throws UserError where the model came without one. */
  tokenizer(): Promise<Tokenizer>
  /** The same, with null where the model came without a tokenizer. */
  tokenizerOrNull(): Promise<Tokenizer | null>
  /** config.json as it was, or what it would be; for writing the model out. Throws UserError for a GGUF that it cannot describe. */
  rawConfig(): Record<string, unknown>
  /** generation_config.json, or null. */
  rawGenerationConfig: Record<string, unknown> | null
  close(): void
}

/**
 * Opens `ref`: a folder with config.json and safetensors (one file or shards), a .gguf file (or a folder with just one), or a hub id
 * (`owner/name`), which is fetched into the usual cache when it is not there. Throws UserError for whatever is missing or not supported.
 */
export async function openModel(ref: string): Promise<ModelFiles> {
  const kind = await kindOf(ref)
  if (kind === 'folder') return openFolder(ref, ref, basename(resolve(ref)))
  if (kind === 'file') {
    if (ref.endsWith('.gguf')) return openGguf(ref, ref)
    throw new UserError(`${ref} is not a model: name a Hugging Face folder, a .gguf file, or a hub id like Qwen/Qwen3-0.6B.`)
  }
  if (await looksLikeHubId(ref)) return openFolder(await hubFolder(ref), ref, ref)
  throw new UserError(
    `There is no model at ${ref}: no such folder or file. Name a Hugging Face folder, a .gguf file, or a hub id like Qwen/Qwen3-0.6B.`,
  )
}

/** `owner/name`, and not the path of a file that is missing in a folder that is there (models/x). */
async function looksLikeHubId(ref: string): Promise<boolean> {
  return isHubId(ref) && !ref.endsWith('.gguf') && (await kindOf(dirname(ref))) === null
}

async function openFolder(dir: string, ref: string, name: string): Promise<ModelFiles> {
  const configPath = join(dir, 'config.json')
  if ((await kindOf(configPath)) === null) {
    const ggufs = (await readdir(dir)).filter((file) => file.endsWith('.gguf'))
    if (ggufs.length === 1) return openGguf(join(dir, ggufs[0]), ref)
    await refuseAdapter(dir)
    throw new UserError(`${dir} has no config.json, so it is not a Hugging Face model folder.${checkpointHint(dir)}`)
  }
  const rawConfig = await readJson(configPath)
  const generationPath = join(dir, 'generation_config.json')
  const rawGenerationConfig = (await kindOf(generationPath)) === 'file' ? await readJson(generationPath) : null
  const config = parseConfig(rawConfig, configPath, rawGenerationConfig ?? {}, generationPath)
  const tensors = withEmbedding(textTensors(await openSafetensors(await weightFiles(dir))), config)
  try {
    checkTensors(config, tensors, dir)
  } catch (error) {
    tensors.close()
    // Older GPTQ folders do not say so in config.json.
    if ((await kindOf(join(dir, 'quantize_config.json'))) === null) throw error
    throw new UserError(
      `${dir} has a quantize_config.json: quantised weights are not supported. Use the F32, F16 or BF16 model, or a GGUF file.`,
    )
  }
  return {
    name,
    ref,
    path: dir,
    kind: 'folder',
    config,
    tensors,
    ...tokenizerOf(() => loadTokenizer(dir, config.eosTokenIds), (await kindOf(join(dir, 'tokenizer.json'))) === 'file'),
    rawConfig: () => textConfig(rawConfig),
    rawGenerationConfig,
    close: () => tensors.close(),
  }
}

/** Prefix of the text model's tensors in files that have other models too (Qwen3.5). */
const TEXT_PART = 'model.language_model.'

/** The tensors of the part that is about text, by the names that they have where there is no other. */
function textTensors(source: SafetensorsSource): TensorSource {
  const all = source.names()
  if (!all.some((name) => name.startsWith(TEXT_PART))) return source
  const inFile = new Map(
    all.flatMap((name) => {
      if (name.startsWith(TEXT_PART)) return [[`model.${name.slice(TEXT_PART.length)}`, name]]
      return name.startsWith('model.') || name.startsWith('mtp.') ? [] : [[name, name]]
    }) as [string, string][],
  )
  return renamed(source, inFile)
}

/** @param inFile the names in the files, by those that the tensors get */
function renamed(source: TensorSource, inFile: Map<string, string>): TensorSource {
  const nameOf = (name: string) => inFile.get(name) ?? name
  return {
    names: () => [...inFile.keys()],
    has: (name) => inFile.has(name),
    shape: (name) => source.shape(nameOf(name)),
    dtype: source.dtype && ((name) => source.dtype!(nameOf(name))),
    read: (name, options) => source.read(nameOf(name), options),
    close: () => source.close(),
  }
}

/** A head that is tied to the embedding is the embedding where the files have it alone, as transformers reads them. */
function withEmbedding(source: TensorSource, { tieWordEmbeddings }: ModelConfig): TensorSource {
  const [embedding, head] = ['model.embed_tokens.weight', 'lm_head.weight']
  if (!tieWordEmbeddings || source.has(embedding) || !source.has(head)) return source
  return renamed(source, new Map(source.names().map((name) => [name === head ? embedding : name, name])))
}

/** Paths of a folder's weights. One file of all of them comes first, as transformers has it: an index may be of an earlier save. */
async function weightFiles(dir: string): Promise<string[]> {
  const index = join(dir, INDEX_FILE)
  const single = join(dir, SINGLE_FILE)
  if ((await kindOf(single)) === 'file') return [single]
  if ((await kindOf(index)) === 'file') {
    const shards = shardsOf(await readJson(index), index).map((shard) => join(dir, shard))
    for (const shard of shards) {
      if ((await kindOf(shard)) === null)
        throw new UserError(`${shard} is missing, although ${INDEX_FILE} names it. Fetch it again.`)
    }
    return shards
  }
  await refuseAdapter(dir)
  throw new UserError(`${dir} has neither ${SINGLE_FILE} nor ${INDEX_FILE}; only safetensors weights are read.`)
}

/** @throws UserError where a folder has an adapter's config, beside which some trainers put the model's */
async function refuseAdapter(dir: string): Promise<void> {
  if ((await kindOf(join(dir, 'adapter_config.json'))) === null) return
  throw new UserError(
    `${dir} is an adapter, not a model: name the model that it was trained for, and give ${dir} as its adapter.`,
  )
}

async function openGguf(path: string, ref: string): Promise<ModelFiles> {
  const file = await GgufFile.open(path)
  try {
    const config = await ggufConfig(file, ggufEosTokenIds(file))
    const tensors = new GgufTensors(file, config)
    checkTensors(config, tensors, path)
    refuseOtherTensors(file, config)
    return {
      name: basename(path, '.gguf'),
      ref,
      path,
      kind: 'gguf',
      config,
      tensors,
      ...tokenizerOf(() => makeTokenizer(ggufTokenizerParts(file)), file.metadata.has('tokenizer.ggml.model')),
      rawConfig: () => configToJson(config),
      rawGenerationConfig: null,
      close: () => file.close(),
    }
  } catch (error) {
    file.close()
    throw error
  }
}

/** Both ways to ask for the tokenizer; it is made once. */
function tokenizerOf(
  make: () => Tokenizer | Promise<Tokenizer>,
  isThere: boolean,
): Pick<ModelFiles, 'tokenizer' | 'tokenizerOrNull'> {
  let made: Promise<Tokenizer> | undefined
  const tokenizer = () => (made ??= Promise.resolve().then(make))
  return { tokenizer, tokenizerOrNull: () => (isThere ? tokenizer() : Promise.resolve(null)) }
}
