/** The metrics of a run that samples from a vLLM server; a part of METRICS. */
import type { MetricInfo } from './metrics-table.ts'

export const SAMPLER_METRICS: Readonly<Record<string, MetricInfo>> = {
  'inference/adapter_sha': {
    group: 'Sampler (backend = "vllm")',
    formula:
      'first 12 hex digits of the SHA-256 of the safetensors that the sampler received, as a number (to print it: printf %012x)',
    unit: 'hex digits',
    healthy: 'different in each step',
  },
  'inference/probe_error': {
    group: 'Sampler (backend = "vllm")',
    formula:
      'mean over a fixed sequence of |logp of the sampler - logp of the trainer|, right after a push of weights, at temperature 1',
    unit: 'nats',
    healthy: 'flat: under 1e-4 for a float32 sampler, 0.003 to 0.13 for bfloat16 (docs/mismatch.md)',
  },
  'inference/probe_moved': {
    group: 'Sampler (backend = "vllm")',
    formula: 'mean over the same sequence of |logp of the trainer after the step - before it|',
    unit: 'nats',
    healthy: 'above inference/probe_error; otherwise the sampler hardly notices a step',
  },
  'inference/restarts': {
    group: 'Sampler (backend = "vllm")',
    formula: 'number of times that the server died and came back, since the start of the process',
    unit: 'restarts',
    healthy: '0',
  },
  'inference/retried': {
    group: 'Sampler (backend = "vllm")',
    formula: 'requests that were sent again, since the start of the process',
    unit: 'requests',
    healthy: '0',
  },
}
