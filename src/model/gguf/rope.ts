/** What a GGUF file says of rotary embeddings, as llama.cpp reads it. */
import { UserError } from '../../common/errors.ts'
import { readYarn } from '../config/yarn.ts'
import type { RopeScaling } from '../types.ts'
import type { GgufFile } from './gguf.ts'
import { exactDecimal, metadataReader } from './metadata.ts'

export async function ropeScaling(file: GgufFile, arch: string, headDim: number, theta: number): Promise<RopeScaling> {
  const meta = metadataReader(file)
  // As llama.cpp reads them: linear where no type is said, no factor beside "none", and a factor of 0 is none.
  const type = meta.string(`${arch}.rope.scaling.type`) ?? 'linear'
  const given = meta.number(`${arch}.rope.scaling.factor`) ?? meta.number(`${arch}.rope.scale_linear`)
  const factor = (type === 'linear' && given) || 1
  if (type !== 'none' && type !== 'linear' && type !== 'yarn')
    throw new UserError(`${file.path}: rope scaling "${type}" is not supported; none, linear, llama3 and yarn are.`)
  if (file.tensors.has('rope_factors_long.weight'))
    throw new UserError(`${file.path}: long and short rope factors are not supported.`)
  if (type === 'yarn') return yarn(file, arch)
  if (!file.tensors.has('rope_freqs.weight')) return factor === 1 ? { type: 'default' } : { type: 'linear', factor }
  const factors = await file.readFloat32('rope_freqs.weight')
  if (factors.length !== headDim / 2) {
    throw new UserError(
      `${file.path}: rope_freqs.weight has ${factors.length} factors, but a head of ${headDim} needs ${headDim / 2}.`,
    )
  }
  return KNOWN_LLAMA3.find((known) => isLlama3(known, factors, theta)) ?? { type: 'factors', factors }
}

/** Keys of yarn, below `rope.scaling`, that versions of llama.cpp understand in different ways, with the values that change nothing in any. */
const YARN_AS_IT_IS = {
  attn_factor: 1,
  yarn_ext_factor: 1,
  yarn_attn_factor: 1,
  yarn_beta_fast: 32,
  yarn_beta_slow: 1,
  yarn_log_multiplier: 0,
}

/** With the bounds of YaRN's authors, and their factor of attention: what all versions of llama.cpp compute without other keys. */
function yarn(file: GgufFile, arch: string): RopeScaling {
  const meta = metadataReader(file)
  const path = `${arch}.rope.scaling`
  const factorOf = () => exactDecimal(meta.above0(`${path}.factor`))
  // The converter copies this number of Olmo 3's config.json, where it says what the factor alone says too.
  const copied = arch === 'olmo2' ? Math.fround(0.1 * Math.log(factorOf()) + 1) : undefined
  for (const [name, usual] of Object.entries(YARN_AS_IT_IS)) {
    const value = meta.number(`${path}.${name}`) ?? usual
    if (value !== usual && !(name.endsWith('attn_factor') && value === copied))
      throw new UserError(
        `${file.path}: ${path}.${name} is ${exactDecimal(value)}, but only ${usual} is supported in a GGUF file. Use the model's Hugging Face folder.`,
      )
  }
  if (file.tensors.has('rope_freqs.weight'))
    throw new UserError(`${file.path}: rope scaling "yarn" with factors of its own (rope_freqs.weight) is not supported.`)
  const positions = meta.count(`${arch}.context_length`)
  const original = meta.number(`${path}.original_context_length`) || positions
  return readYarn({ factor: factorOf() }, file.path, original, positions)
}

type Llama3 = Extract<RopeScaling, { type: 'llama3' }>
/** The scalings of the released models (3.1 and 3.3, then 3.2): a GGUF keeps only the factors that come of them. */
const KNOWN_LLAMA3: readonly Llama3[] = [8, 32].map((factor) => ({
  type: 'llama3',
  factor,
  lowFreqFactor: 1,
  highFreqFactor: 4,
  originalMaxPositionEmbeddings: 8192,
}))

/** Whether `factors` are those that the llama3 rule gives: 1 for short wavelengths, `factor` for long ones, smooth between. */
function isLlama3(rule: Llama3, factors: Float32Array, theta: number): boolean {
  const { factor, lowFreqFactor: low, highFreqFactor: high, originalMaxPositionEmbeddings: original } = rule
  return factors.every((found, i) => {
    const wavelength = 2 * Math.PI * theta ** (i / factors.length)
    const smooth = Math.min(1, Math.max(0, (original / wavelength - low) / (high - low)))
    const expected = 1 / ((1 - smooth) / factor + smooth)
    return Math.abs(found - expected) <= 1e-4 * expected
  })
}
