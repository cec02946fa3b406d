/** Fields of all generating routes: OpenAI's and vLLM's sampling fields under their names. null means "not given". */
import * as z from 'zod'

/** A field that is not supported: accepted only with a value that has no effect. */
export function only(...neutral: unknown[]) {
  const taken = new Set(neutral.map((value) => JSON.stringify(value)))
  const words =
    neutral.length > 0 ? `only ${[...taken].join(' or ')} is supported by this server` : 'not supported by this server'
  return refused(words, taken)
}

/** An old field that has another name now. */
export const formerly = (now: string) => refused(`an older name that this server does not support; use ${now}`)

function refused(message: string, taken: ReadonlySet<string> = new Set()) {
  return z
    .unknown()
    .optional()
    .superRefine((value, context) => {
      if (value === undefined || value === null || taken.has(JSON.stringify(value))) return
      context.addIssue({ code: 'custom', message })
    })
}

/** Fields that are accepted and have no effect: they name the caller, or tune what this server always does. */
export const ignored = z.unknown().optional()

const tokenId = z.int().min(0)

/** Parses a value by a schema; its first mistake is reported as a mistake of the whole field. */
function part<T extends z.ZodType>(schema: T, key: PropertyKey, value: unknown, context: z.RefinementCtx): z.output<T> {
  const { data, error } = schema.safeParse(value)
  if (!error) return data
  const [issue] = error.issues
  context.addIssue({ ...issue, path: [key, ...issue.path] } as z.core.$ZodRawIssue)
  return z.NEVER
}

interface ListLimits {
  least?: number
  most?: number
  /** A quick check that an element is certainly valid. */
  isFine?: (value: unknown) => boolean
}

/** A list that is checked up to its first invalid element: zod would report every one, and millions of reports would fill the memory. */
export function list<T extends z.ZodType>(element: T, { least = 0, most = Infinity, isFine }: ListLimits = {}) {
  return z.array(z.unknown()).transform((values, context) => {
    if (values.length < least) context.addIssue({ code: 'custom', message: 'it must not be empty' })
    if (values.length > most)
      context.addIssue({ code: 'custom', message: `it has ${values.length} elements, but may have at most ${most}` })
    const taken: z.output<T>[] = []
    for (let i = 0; i < values.length && context.issues.length === 0; i++)
      taken.push(isFine?.(values[i]) ? (values[i] as z.output<T>) : part(element, i, values[i], context))
    return taken
  })
}

/** Token ids. A body may have ten million of them, so only bad ones go through zod, for its message. */
export const tokenIds = (limits: ListLimits = {}) =>
  list(tokenId, { ...limits, isFine: (value) => Number.isSafeInteger(value) && (value as number) >= 0 })

/** An integer of up to 64 bits; JSON's numbers are not exact beyond 53. */
const wide = z.number().refine(Number.isInteger, 'it must be a whole number')

const biasKey = z.string().regex(/^\d{1,9}$/, 'keys must be token ids')
const biasValue = z.number().min(-100).max(100)
/** Checked up to the first invalid entry, like lists. */
const bias = z.record(z.string(), z.unknown()).transform((map, context) => {
  const taken: Record<string, number> = {}
  for (const [key, value] of Object.entries(map)) {
    part(biasKey, key, key, context)
    if (context.issues.length === 0) taken[key] = part(biasValue, key, value, context)
    if (context.issues.length > 0) break
  }
  return taken
})

export const streamOptions = z
  .object({ include_usage: z.boolean().nullish(), continuous_usage_stats: z.boolean().nullish() })
  .nullish()

/** How tokens are drawn, and when a completion ends. */
export const samplingFields = {
  // Limited so that float32 logits stay finite.
  temperature: z.number().min(0).max(100).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().min(0.01).max(100).nullish(),
  presence_penalty: z.number().min(-2).max(2).nullish(),
  frequency_penalty: z.number().min(-2).max(2).nullish(),
  seed: wide.nullish(),
  stop: z.union([z.string().min(1), list(z.string().min(1), { most: 64 })]).nullish(),
  stop_token_ids: tokenIds({ most: 1024 }).nullish(),
  min_tokens: z.int().min(0).nullish(),
  ignore_eos: z.boolean().nullish(),
  logit_bias: bias.nullish(),
  allowed_token_ids: tokenIds({ least: 1 }).nullish(),
  bad_words: only([]),
  include_stop_str_in_output: z.boolean().nullish(),
  skip_special_tokens: z.boolean().nullish(),
  spaces_between_special_tokens: only(true, false),
  truncate_prompt_tokens: z.int().min(-1).nullish(),
  truncation_side: z.enum(['left', 'right']).nullish(),
  prompt_logprobs: z.int().min(0).nullish(),
  n: z.int().min(1).max(1024).nullish(),
}

const structuredOutputs = z
  .object({
    json: z.union([z.string(), z.record(z.string(), z.unknown())]).nullish(),
    regex: z.string().nullish(),
    choice: list(z.string(), { least: 1 }).nullish(),
    grammar: z.string().nullish(),
    json_object: z.boolean().nullish(),
    structural_tag: only(),
    whitespace_pattern: only(),
    disable_any_whitespace: only(false),
    disable_additional_properties: only(false),
  })
  .nullish()

/** OpenAI's `response_format`. */
const responseFormat = z
  .discriminatedUnion('type', [
    z.object({ type: z.literal('text') }),
    z.object({ type: z.literal('json_object') }),
    z.object({
      type: z.literal('json_schema'),
      json_schema: z.object({
        name: z.string().nullish(),
        description: z.string().nullish(),
        strict: z.boolean().nullish(),
        // OpenAI's specification does not require it: without one, any object is an answer.
        schema: z.record(z.string(), z.unknown()).default({ type: 'object' }),
      }),
    }),
  ])
  .nullish()

/** Fields of the request itself: the model, and what is returned beside the text. */
export const requestFields = {
  model: z.string().nullish(),
  stream: z.boolean().nullish(),
  stream_options: streamOptions,
  structured_outputs: structuredOutputs,
  response_format: responseFormat,
  priority: only(0),
  request_id: z.string().max(256).nullish(),
  cache_salt: z.string().min(1).max(1024).nullish(),
  return_token_ids: z.boolean().nullish(),
  return_tokens_as_token_ids: z.boolean().nullish(),
  add_special_tokens: z.boolean().nullish(),
  user: ignored,
  store: only(false),
  metadata: ignored,
  service_tier: ignored,
  session_id: ignored,
  best_of: only(1),
  use_beam_search: only(false),
  length_penalty: only(1),
  logprob_token_ids: only([]),
  logits_processors: only([]),
  kv_transfer_params: only(),
  vllm_xargs: only({}),
  repetition_detection: only(),
  prompt_embeds: only(),
  guided_json: formerly('structured_outputs.json'),
  guided_regex: formerly('structured_outputs.regex'),
  guided_choice: formerly('structured_outputs.choice'),
  guided_grammar: formerly('structured_outputs.grammar'),
  detokenize: only(true),
}

export type SamplingBody = { [K in keyof typeof samplingFields]?: z.infer<(typeof samplingFields)[K]> }
export type StructuredOutputs = NonNullable<z.infer<typeof structuredOutputs>>
export type ResponseFormat = NonNullable<z.infer<typeof responseFormat>>
