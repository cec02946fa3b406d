/**
 * LoRA adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors, loadable by PEFT and vLLM.
 * y = W x + scale * B (A x), with A (r, inputs), B (outputs, r) and scale = lora_alpha / r (rsLoRA: lora_alpha / sqrt(r)).
 */
import { join } from 'node:path'
import { UserError } from '../../common/errors.ts'
import { Random } from '../../common/random.ts'
import { loraRankFlag } from '../../common/vllm-ranks.ts'
import { jsonText, checkpointHint, kindOf, readJson, writeFolderWhole, writeWhole } from './files.ts'
import { isHubId } from './hub.ts'
import { openSafetensors, writeSafetensors, type SafetensorsSource, type TensorToWrite } from './safetensors.ts'
import { linearShapes } from '../decoder/shapes.ts'
import type { Tokenizer } from '../tokenizer/tokenizer.ts'
import type { ModelConfig } from '../types.ts'

/** What adapter_config.json says. */
export interface LoraConfig {
  /** Rank and alpha, of every module that the patterns do not name. */
  r: number
  loraAlpha: number
  loraDropout: number
  /** Last parts of the modules' paths, as `q_proj`. */
  targetModules: string[]
  useRslora: boolean
  /** Rank and alpha of single modules, by the end of their path (a regular expression, as in PEFT). */
  rankPattern?: Record<string, number>
  alphaPattern?: Record<string, number>
  /** The model that it was trained on, as a hub id or a path; null where the file does not say. */
  baseModel: string | null
}

/** The two factors of one linear layer, row-major: A (r, inputs), B (outputs, r). */
export interface LoraPair {
  A: Float32Array
  B: Float32Array
  r: number
}

/** A pair as it was read, with what it is multiplied by. */
export interface ReadLoraPair extends LoraPair {
  scale: number
  inputs: number
  outputs: number
}

export interface Adapter {
  /** The folder, for errors. */
  dir: string
  config: LoraConfig
  /** By the path of the linear layer: `model.layers.0.self_attn.q_proj`. */
  tensors: Map<string, ReadLoraPair>
}

const PREFIX = 'base_model.model.'
/** What the paths of a text model have more where it is trained as a part of one that sees pictures too (Qwen3.5); as text, or escaped in a pattern. */
const OF_WHOLE = /\blanguage_model\\?\./
const WEIGHTS = 'adapter_model.safetensors'
const CONFIG = 'adapter_config.json'
/** Variants of LoRA that compute something else, with the values that mean "not used". */
const VARIANTS = [
  'use_dora', 'lora_bias', 'fan_in_fan_out', 'modules_to_save', 'layer_replication', 'trainable_token_indices', 'target_parameters',
  'use_qalora', 'use_bdlora', 'alora_invocation_tokens', 'arrow_config', 'kasa_config', 'velora_config', 'monteclora_config',
] // prettier-ignore
/** Initialisations that take the first product out of the base's weights: PEFT does that anew wherever such an adapter is loaded. */
const OTHER_BASE = /^(?:pissa|olora|corda|loftq|lora_ga)/i

/** alpha / r, or alpha / sqrt(r) with rsLoRA. */
export function loraScale(alpha: number, r: number, useRslora: boolean): number {
  return alpha / (useRslora ? Math.sqrt(r) : r)
}

/** PEFT's start of A: torch's kaiming_uniform_ with a = sqrt(5), which is uniform within 1 / sqrt(inputs). */
export function kaimingUniform(rank: number, inputs: number, seed: number): Float32Array {
  const random = new Random(seed)
  const bound = 1 / Math.sqrt(inputs)
  return Float32Array.from({ length: rank * inputs }, () => (random.next() * 2 - 1) * bound)
}

/** Reads an adapter folder whole. Throws UserError naming file and key or tensor for what is missing, wrong or not supported. */
export async function readAdapter(dir: string): Promise<Adapter> {
  const configPath = join(dir, CONFIG)
  const kind = await kindOf(dir)
  if (kind !== 'folder')
    throw new UserError(
      `${kind === 'file' ? `${dir} is a file` : `There is no folder ${dir}`}. An adapter is given as a local folder in PEFT's format, such as a run's checkpoint.`,
    )
  if ((await kindOf(configPath)) !== 'file')
    throw new UserError(`${dir} has no ${CONFIG}, so it is not a PEFT adapter folder.${checkpointHint(dir)}`)
  const config = parseAdapterConfig(await readJson(configPath), configPath)
  const path = join(dir, WEIGHTS)
  if ((await kindOf(path)) !== 'file')
    throw new UserError(`${dir} has no ${WEIGHTS}. Save the adapter with safetensors (PEFT's default).`)
  const source = await openSafetensors(path)
  try {
    return { dir, config, tensors: await readPairs(source, config, path) }
  } finally {
    source.close()
  }
}

function parseAdapterConfig(raw: Record<string, unknown>, file: string): LoraConfig {
  const wrong = (key: string, what: string) => new UserError(`${file}: ${key} is ${JSON.stringify(raw[key])}; ${what}.`)
  if (raw.peft_type !== 'LORA') throw wrong('peft_type', 'only LORA adapters are supported')
  if ((raw.bias ?? 'none') !== 'none') throw wrong('bias', 'only adapters that train no bias ("none") are supported')
  for (const key of VARIANTS) {
    const value = raw[key] ?? false
    const isEmpty = value === false || (Array.isArray(value) && value.length === 0)
    if (!isEmpty) throw wrong(key, 'only plain LoRA and rsLoRA are supported')
  }
  if (OTHER_BASE.test(String(raw.init_lora_weights)))
    throw wrong(
      'init_lora_weights',
      "such an adapter belongs to base weights that were changed when it was initialized. Save it with PEFT's path_initial_model_for_weight_conversion",
    )
  const number = (key: string, otherwise?: number): number => {
    const value = raw[key] ?? otherwise
    if (typeof value !== 'number' || !Number.isFinite(value)) throw wrong(key, 'it must be a number')
    return value
  }
  const pattern = (key: string): Record<string, number> => {
    const value = raw[key] ?? {}
    if (typeof value !== 'object' || !Object.values(value).every((n) => typeof n === 'number'))
      throw wrong(key, 'it must map names to numbers')
    for (const name of Object.keys(value)) {
      try {
        pathPattern(name)
      } catch {
        throw wrong(key, `${JSON.stringify(name)} is not a valid regular expression`)
      }
    }
    return Object.fromEntries(Object.entries(value as Record<string, number>).map(([name, n]) => [name.replace(OF_WHOLE, ''), n]))
  }
  const targets = raw.target_modules
  return {
    r: number('r'),
    loraAlpha: number('lora_alpha'),
    loraDropout: number('lora_dropout', 0),
    // A string is a regular expression or 'all-linear'; the tensors themselves then tell what was trained.
    targetModules: Array.isArray(targets) ? targets.map(String) : [],
    useRslora: raw.use_rslora === true,
    rankPattern: pattern('rank_pattern'),
    alphaPattern: pattern('alpha_pattern'),
    baseModel: typeof raw.base_model_name_or_path === 'string' ? raw.base_model_name_or_path : null,
  }
}

/** The value whose key is the end of `path`, as PEFT matches them. */
function byPattern(patterns: Record<string, number> | undefined, path: string): number | undefined {
  return Object.entries(patterns ?? {}).find(([key]) => pathPattern(key).test(path))?.[1]
}

/** What an adapter multiplies the product at a path by, whose factors have rank `r`. */
export const scaleOf = ({ loraAlpha, alphaPattern, useRslora }: LoraConfig, path: string, r: number): number =>
  loraScale(byPattern(alphaPattern, path) ?? loraAlpha, r, useRslora)

const pathPattern = (key: string): RegExp => new RegExp(`^(.*\\.)?(${key})$`)

/** The modules that an adapter changes: the last parts of its tensors' paths. What target_modules says may be a regular expression, or whole paths. */
export const modulesOf = (paths: Iterable<string>): string[] => [
  ...new Set([...paths].map((path) => path.slice(path.lastIndexOf('.') + 1))),
]

/**
 * The config with which PEFT finds the linear layers that an adapter changes, and no others. If it leaves some layers of a module out (by
 * `layers_to_transform`, `exclude_modules` or a regular expression), they are named by their paths: the module's name would give all of them an
 * adapter. So would a name in target_modules that `exclude_modules` takes out again, since that key is not written.
 */
export function configOfLayers({ config, tensors }: Adapter, model: ModelConfig): LoraConfig {
  const modules = modulesOf(tensors.keys())
  const ofModules = [...linearShapes(model).keys()].filter((path) => modulesOf([path]).some((module) => modules.includes(module)))
  return { ...config, targetModules: ofModules.length === tensors.size ? modules : [...tensors.keys()] }
}

/** Kernels take ranks that are multiples of 8; the rest is 0. */
export const paddedRank = (rank: number): number => Math.ceil(rank / 8) * 8

/** The largest rank of an adapter's matrices. */
export const rankOf = ({ tensors }: Adapter): number => Math.max(...[...tensors.values()].map(({ r }) => r))

/** The largest rank that an adapter's settings name. */
export const largestRank = ({ r, rankPattern = {} }: LoraConfig): number => Math.max(r, ...Object.values(rankPattern))

async function readPairs(source: SafetensorsSource, config: LoraConfig, file: string): Promise<Map<string, ReadLoraPair>> {
  const names = new Map<string, { A?: string; B?: string }>()
  for (const name of source.names()) {
    const [, given, side] = /^base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight$/.exec(name) ?? []
    if (given === undefined)
      throw new UserError(`Tensor ${name} in ${file} is not a LoRA factor of a linear layer, and nothing else is supported.`)
    const path = given.replace(OF_WHOLE, '')
    names.set(path, { ...names.get(path), [side]: name })
  }
  if (names.size === 0) throw new UserError(`${file} holds no LoRA tensors.`)
  const pairs = new Map<string, ReadLoraPair>()
  for (const [path, pair] of names) {
    if (!pair.A || !pair.B) throw new UserError(`${file} has only one of the two LoRA factors of ${path}.`)
    const [A, B] = [await source.readFloat32(pair.A), await source.readFloat32(pair.B)]
    // "all-linear" gives the part that sees pictures an adapter too, which training on text alone leaves as it began: it changes nothing.
    if (path.startsWith('model.visual.') && B.data.every((value) => value === 0)) continue
    const [r, inputs] = A.shape
    const [outputs, rankOfB] = B.shape
    if (A.shape.length !== 2 || B.shape.length !== 2 || r !== rankOfB) {
      throw new UserError(
        `${file}: the LoRA factors of ${path} have the shapes [${A.shape.join(', ')}] and [${B.shape.join(', ')}], which do not multiply.`,
      )
    }
    const asked = byPattern(config.rankPattern, path) ?? config.r
    if (asked !== r) throw new UserError(`${file}: the LoRA factors of ${path} have rank ${r}, but ${CONFIG} says ${asked}.`)
    pairs.set(path, { A: A.data, B: B.data, r, inputs, outputs, scale: scaleOf(config, path, r) })
  }
  return pairs
}

/** Checks that an adapter belongs to a model of this shape. Throws UserError naming the tensor and both shapes. */
export function checkAdapter(adapter: Adapter, config: ModelConfig, modelName: string): void {
  const shapes = linearShapes(config)
  for (const [path, { r, inputs, outputs }] of adapter.tensors) {
    const shape = shapes.get(path)
    if (!shape) {
      const trained = modulesOf(shapes.keys()).join(', ')
      throw new UserError(
        `The adapter ${adapter.dir} changes ${path}, but in ${modelName} an adapter can change only ${trained} of ${config.layers} layers. Is it for another model?`,
      )
    }
    const found = { lora_A: [r, inputs], lora_B: [outputs, r] }
    const wanted = { lora_A: [r, shape[1]], lora_B: [shape[0], r] }
    for (const side of ['lora_A', 'lora_B'] as const) {
      if (found[side].join() === wanted[side].join()) continue
      throw new UserError(
        `The adapter ${adapter.dir} is for another model: ${path}.${side} has shape [${found[side].join(', ')}], but ${modelName} needs [${wanted[side].join(', ')}].`,
      )
    }
  }
}

/** @throws UserError for a value that is no number: a merge would write it into the model, and in the engine it would spread to the rows of all other adapters */
export function checkFinite({ dir, tensors }: Adapter): void {
  for (const [path, { A, B }] of tensors)
    if (!A.every(Number.isFinite) || !B.every(Number.isFinite))
      throw new UserError(`The adapter ${dir} holds a value that is not finite (${path}).`)
}

/**
 * Writes an adapter folder whole or not at all: adapter_config.json, adapter_model.safetensors (float32), tokenizer files and README.md.
 * A folder that is there already is refused unless `replace`.
 */
export async function writeAdapter(
  dir: string,
  adapter: { config: LoraConfig; tensors: ReadonlyMap<string, LoraPair>; tokenizer?: Tokenizer | null },
  options: { replace?: boolean } = {},
): Promise<void> {
  await writeFolderWhole(dir, (aside) => writeAdapterFiles(aside, adapter), options)
}

/** The files of `writeAdapter`, into a folder that is there: for a checkpoint, whose own folder is what becomes whole. */
export async function writeAdapterFiles(dir: string, adapter: Parameters<typeof writeAdapter>[1]): Promise<void> {
  const { config, tensors, tokenizer } = adapter
  const targetModules = config.targetModules.length > 0 ? config.targetModules : modulesOf(tensors.keys())
  const out: Record<string, TensorToWrite> = {}
  for (const [path, { A, B, r }] of tensors) {
    out[`${PREFIX}${path}.lora_A.weight`] = { dtype: 'F32', shape: [r, A.length / r], data: A }
    out[`${PREFIX}${path}.lora_B.weight`] = { dtype: 'F32', shape: [B.length / r, r], data: B }
  }
  await writeSafetensors(join(dir, WEIGHTS), out, { format: 'pt' })
  await writeWhole(join(dir, CONFIG), [jsonText(adapterJson({ ...config, targetModules }))])
  await tokenizer?.saveTo(dir)
  const largest = Math.max(config.r, ...[...tensors.values()].map(({ r }) => r))
  await writeWhole(join(dir, 'README.md'), [cardText({ ...config, targetModules }, largest)])
}

function adapterJson(config: LoraConfig): Record<string, unknown> {
  return {
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: config.baseModel,
    r: config.r,
    lora_alpha: config.loraAlpha,
    lora_dropout: config.loraDropout,
    target_modules: config.targetModules,
    rank_pattern: config.rankPattern ?? {},
    alpha_pattern: config.alphaPattern ?? {},
    use_rslora: config.useRslora,
    use_dora: false,
    bias: 'none',
    fan_in_fan_out: false,
    modules_to_save: null,
    init_lora_weights: true,
    inference_mode: true,
  }
}

/** `largest`: of the ranks of its tensors, which `rank_pattern` may give each. */
function cardText(config: LoraConfig, largest: number): string {
  const base = config.baseModel
  // The hub takes only ids of its own as base_model.
  const head = [
    ...(base !== null && isHubId(base) ? [`base_model: ${base}`] : []),
    'library_name: peft',
    'pipeline_tag: text-generation',
    'tags:',
    '- lora',
    '- dawn-rl',
  ]
  const rank = `rank ${config.r}, alpha ${config.loraAlpha}${config.useRslora ? ' (rsLoRA)' : ''}`
  return [
    `---\n${head.join('\n')}\n---`,
    '# LoRA adapter',
    `A LoRA adapter (${rank}; ${modulesOf(config.targetModules).join(', ')})${base ? ` for \`${base}\`` : ''}, trained with dawn-rl.`,
    [
      'Load it with PEFT:',
      '```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n' +
        `model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("${base ?? 'BASE_MODEL'}"), "THIS_FOLDER")\n\`\`\``,
      'or serve it with vLLM:',
      `\`\`\`\nvllm serve ${base ?? 'BASE_MODEL'} --enable-lora --max-lora-rank ${loraRankFlag(largest) ?? largest} --lora-modules tuned=THIS_FOLDER\n\`\`\``,
    ].join('\n\n'),
  ]
    .join('\n\n')
    .concat('\n')
}
