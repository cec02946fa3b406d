/** Bodies of /v1/completions and of the routes that take and give token ids. */
import * as z from 'zod'
import { ignored, list, only, requestFields, samplingFields, streamOptions, tokenIds } from './common.ts'

export const completionsBody = z.object({
  ...samplingFields,
  ...requestFields,
  prompt: z.union(
    [z.string(), list(z.string(), { least: 1 }), tokenIds({ least: 1 }), list(tokenIds({ least: 1 }), { least: 1 })],
    {
      error: 'it must be a string, token ids, or a list of either',
    },
  ),
  max_tokens: z.int().min(0).nullish(),
  logprobs: z.int().min(-1).nullish(),
  echo: z.boolean().nullish(),
  suffix: only(''),
})
export type CompletionsBody = z.infer<typeof completionsBody>

/** vLLM's SamplingParams, as /inference/v1/generate takes them. */
const samplingParams = z.object({
  ...samplingFields,
  max_tokens: z.int().min(1).nullish(),
  logprobs: z.int().min(-1).nullish(),
  structured_outputs: requestFields.structured_outputs,
  logprob_token_ids: only([]),
  detokenize: ignored,
  output_kind: ignored,
  extra_args: only({}),
})

export const generateBody = z.object({
  model: z.string().nullish(),
  token_ids: tokenIds({ least: 1 }),
  sampling_params: samplingParams,
  request_id: z.string().max(256).nullish(),
  stream: z.boolean().nullish(),
  stream_options: streamOptions,
  cache_salt: z.string().min(1).max(1024).nullish(),
  priority: only(0),
  features: only(),
  kv_transfer_params: only(),
  output_mode: only('tokens'),
  return_token_ids: z.boolean().nullish(),
  content_parts: only(),
  reasoning_ended: ignored,
  reasoning_parser_kwargs: only({}),
})
export type GenerateBody = z.infer<typeof generateBody>

export const detokenizeBody = z.object({ model: z.string().nullish(), tokens: tokenIds() })
