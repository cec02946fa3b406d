/** Bodies of the routes that change the server: adapters, weights. */
import * as z from 'zod'
import { ignored, only } from './common.ts'

const name = z
  .string()
  .min(1)
  .max(256)
  // oxlint-disable-next-line no-control-regex -- a name is written into headers, logs and metrics
  .regex(/^[^\u0000-\u001f\u007f]+$/, 'it must have no control characters')

export const loadAdapterBody = z.object({
  lora_name: name,
  lora_path: z.string().min(1).max(4096),
  load_inplace: z.boolean().nullish(),
  is_3d_lora_weight: only(false),
  base_model_name: ignored,
})

export const unloadAdapterBody = z.object({ lora_name: name, lora_int_id: ignored })

export const rpcBody = z.object({
  method: z.string(),
  args: z.array(z.unknown()).nullish(),
  kwargs: z.record(z.string(), z.unknown()).nullish(),
  timeout: z.number().nullish(),
})

export const weightVersionBody = z.object({ new_version: z.string().min(1).max(256) })
