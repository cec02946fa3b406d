/** Checks and notices on [inference], and on other keys that a run with vLLM does not support. */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { CLI } from '../common/commands.ts'
import { NEUTRAL } from '../common/sampling.ts'
import { shellWord } from '../monitor/format.ts'
import type { Check, Written } from './checks.ts'
import { isTable } from './compose.ts'
import { EMBEDDED_KEYS, VLLM_KEYS, type VllmConfig } from './inference-schema.ts'
import { show } from './problems.ts'
import type { RunConfig } from './schema.ts'

const A = 'trainer.args.'
const ARGS = 'inference.args'
/** The largest max_lora_rank of vLLM. The run rounds ranks up to the next size that vLLM allows. */
const MAX_LORA_RANK = 512

/** vLLM flags that the run sets itself, with what to write instead. */
const OWN_FLAGS: Record<string, string> = {
  model: 'the server gets the `model` of the config',
  served_model_name: 'the run names the model itself',
  tokenizer: "prompts go to the server as token ids of the model's own tokenizer",
  host: 'the server listens on this machine alone; inference.base_url attaches to one that runs elsewhere',
  api_key: 'the server listens on this machine alone and asks for no key',
  logprobs_mode: 'it follows from trainer.args.temperature and the other sampling keys',
  generation_config: 'every request carries the sampling values of [trainer.args]',
  override_generation_config: 'every request carries the sampling values of [trainer.args]',
  enable_lora: 'trainer.args.use_lora sets it',
  max_lora_rank: 'trainer.args.lora_rank sets it',
  max_num_seqs: 'inference.max_num_seqs sets it',
  enable_scale_out: 'the run talks to one server through its OpenAI routes',
  config: 'a second file of flags could contradict this one; write its flags under [inference.args]',
}

/** Normalises the spelling of a flag: max-loras becomes max_loras, no_enable_lora becomes enable_lora. */
const plainName = (key: string) => key.replaceAll('-', '_').replace(/^no_(?=enable_)/, '')

const isScalar = (value: unknown) =>
  typeof value === 'string' || typeof value === 'boolean' || (typeof value === 'number' && Number.isFinite(value))

/** Makes a check that applies only to backend "vllm". */
const forVllm = (keys: string[], find: (config: RunConfig, vllm: VllmConfig) => ReturnType<Check<RunConfig>['find']>) => ({
  keys,
  find: (config: RunConfig) => (config.inference.backend === 'vllm' ? find(config, config.inference) : undefined),
})

/** The value of a flag, whose name may have hyphens or underscores. */
function flag({ args }: VllmConfig, name: string): { key: string; value: unknown } | undefined {
  const key = Object.keys(args).find((one) => plainName(one) === name)
  return key === undefined ? undefined : { key: `${ARGS}.${key}`, value: args[key] }
}

function flagProblem(key: string, value: unknown, keys: string[]): string | undefined {
  const full = `${ARGS}.${key}`
  const name = plainName(key)
  if (!/^[A-Za-z][\w-]*$/.test(key))
    return `${ARGS} has the key ${show(key)}: write a flag without its dashes, as in gpu_memory_utilization = 0.5.`
  if (Object.hasOwn(OWN_FLAGS, name)) return `${full} is set by the run: ${OWN_FLAGS[name]}. Remove it.`
  const same = keys.find((other) => other !== key && plainName(other) === name)
  if (same !== undefined && same < key) return `${full} and ${ARGS}.${same} are the same flag. Keep one of them.`
  if (isScalar(value) || isTable(value) || (Array.isArray(value) && value.length > 0 && value.every(isScalar))) return undefined
  return `${full} is ${show(value)}; a flag takes a string, a number, true or false, a list of those, or a table.`
}

/** The model's GGUF file: the name itself, or a file in a folder that has no config.json. */
function ggufOf(model: string): string | undefined {
  if (model.endsWith('.gguf')) return model
  try {
    const files = readdirSync(model)
    const gguf = files.find((file) => file.endsWith('.gguf'))
    return gguf && !files.includes('config.json') ? join(model, gguf) : undefined
  } catch {
    return undefined
  }
}

/** Suggests a folder for the converted model: models/X.Q4_1.gguf -> models/X */
const folderFor = (gguf: string) => gguf.replace(/\.gguf$/, '').replace(/[.-](I?Q\d\w*|B?F(16|32))$/i, '')

function ggufProblem(model: string): string | undefined {
  const gguf = ggufOf(model)
  if (gguf === undefined) return undefined
  const out = folderFor(gguf)
  return `model.name is ${show(model)}, but vLLM reads Hugging Face folders only: run \`${CLI} merge --model ${shellWord(gguf)} --out ${shellWord(out)}\`, and set model = ${show(out)}.`
}

const { temperature: _, ...OFF } = NEUTRAL
const FILTERS = Object.keys(OFF) as (keyof typeof OFF)[]

/** The keys that are set and make sampling differ from the plain softmax of the logits at the temperature. */
export const filtersOf = (args: RunConfig['trainer']['args']) =>
  FILTERS.filter((key) => (key === 'top_k' ? args.top_k > 0 : args[key] !== OFF[key]))

export const inferenceChecks: Check<RunConfig>[] = [
  {
    keys: ['inference.base_url', 'inference.backend'],
    find: ({ inference }, written) =>
      inference.backend === 'embedded' && written.isSet('inference.base_url')
        ? `inference.base_url is set, but inference.backend is "embedded". Write backend = "vllm" to sample from that server, or remove base_url.`
        : undefined,
  },
  {
    keys: ['inference.max_num_batched_tokens', 'inference.max_num_seqs'],
    find: ({ inference }) =>
      inference.backend === 'embedded' && (inference.max_num_batched_tokens ?? Infinity) <= inference.max_num_seqs
        ? `inference.max_num_batched_tokens is ${inference.max_num_batched_tokens}, but max_num_seqs = ${inference.max_num_seqs} completions already need as many for their next tokens, so no prompt would ever fit. Raise it, or lower max_num_seqs.`
        : undefined,
  },
  forVllm([ARGS, 'inference.base_url'], (_, { base_url, args }) =>
    base_url !== undefined && Object.keys(args).length
      ? `${ARGS} has flags for a server that the run starts, but inference.base_url names one that runs already. Keep one of them.`
      : undefined,
  ),
  forVllm([ARGS], (_, { args }) =>
    Object.entries(args).map(([key, value]) => {
      const text = flagProblem(key, value, Object.keys(args))
      return text === undefined ? undefined : { key: `${ARGS}.${key}`, text }
    }),
  ),
  forVllm([`${A}quantization`, 'inference.backend'], ({ trainer: { args } }) =>
    args.quantization
      ? `${A}quantization is ${show(args.quantization)}, but the vLLM server samples from the weights as they are. Remove it, or sample with backend = "embedded".`
      : undefined,
  ),
  forVllm([ARGS, `${A}max_async_level`, `${A}use_lora`], ({ trainer }, vllm) => {
    const found = flag(vllm, 'max_loras')
    const needed = Math.max(2, trainer.args.max_async_level + 1)
    if (!trainer.args.use_lora || typeof found?.value !== 'number' || !(found.value < needed)) return undefined
    const text = `${found.key} is ${found.value}, but ${needed} versions of the adapter are in use at once at max_async_level = ${trainer.args.max_async_level}. Use ${needed}, or remove it.`
    return { key: found.key, text }
  }),
  forVllm([ARGS, `${A}max_seq_len`], ({ trainer }, vllm) => {
    const found = flag(vllm, 'max_model_len')
    const { max_seq_len } = trainer.args
    if (typeof found?.value !== 'number' || !(found.value < max_seq_len)) return undefined
    const text = `${found.key} is ${found.value}, less than max_seq_len (${max_seq_len}). Use ${max_seq_len}, or remove it.`
    return { key: found.key, text }
  }),
  forVllm([ARGS, `${A}use_lora`], ({ trainer }, vllm) => {
    const found = flag(vllm, 'api_server_count')
    if (!trainer.args.use_lora || typeof found?.value !== 'number' || !(found.value > 1)) return undefined
    const text = `${found.key} is ${found.value}, but each API server of vLLM knows only the adapters that were loaded through it. Remove it.`
    return { key: found.key, text }
  }),
  forVllm(['model.name', 'inference.backend'], ({ model }) => ggufProblem(model.name)),
  forVllm([`${A}lora_rank`, `${A}use_lora`], ({ trainer: { args } }) =>
    args.use_lora && args.lora_rank > MAX_LORA_RANK
      ? `${A}lora_rank is ${args.lora_rank}, and vLLM takes ranks up to ${MAX_LORA_RANK}. Lower it, train all weights (use_lora = false), or sample with inference.backend = "embedded".`
      : undefined,
  ),
  forVllm(
    [...FILTERS, 'temperature'].map((key) => A + key),
    ({ trainer: { args } }) => {
      const filters = filtersOf(args)
      return filters.length && args.temperature !== 1
        ? `${A}${filters.join(', ')}: with a temperature of ${args.temperature} vLLM does not report the log-probability that is trained on, which is over the full vocabulary. Use temperature = 1.0, remove ${filters.length === 1 ? 'it' : 'them'}, or sample with inference.backend = "embedded".`
        : undefined
    },
  ),
]

/** One line for each of these keys that was set but has no effect. `prefix`: the table's name and a dot. */
export const withoutEffect = (written: Written, prefix: string, keys: readonly string[], because: string): string[] =>
  keys.filter((key) => written.isChanged(prefix + key)).map((key) => `${prefix}${key} has no effect: ${because}.`)

/** One line for each key of [inference] that was set but has no effect. */
export function inferenceNotices({ inference }: RunConfig, written: Written): string[] {
  const idle = (keys: readonly string[], because: string) => withoutEffect(written, 'inference.', keys, because)
  if (inference.backend === 'embedded') {
    const other = idle(VLLM_KEYS, 'the embedded engine samples; write backend = "vllm"')
    return inference.serve ? other : [...other, ...idle(['serve_host', 'serve_port'], 'nothing is served; write serve = true')]
  }
  const elsewhere = idle(EMBEDDED_KEYS, 'vLLM samples; its own flags go under [inference.args]')
  if (inference.base_url === undefined) return elsewhere
  return [...elsewhere, ...idle(['python', 'max_restarts'], 'inference.base_url names a server that runs already')]
}
