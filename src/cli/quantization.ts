/** `--quantization`, of the verbs that run a model. */
import { Option } from 'commander'
import { QUANTIZATIONS } from '../model/types.ts'

/** The option, with what it may be; its value is a `Quantization`. */
export const quantizationOption = (): Option =>
  new Option(
    '--quantization <how>',
    'hold the layers in few bits: gguf as a quantised GGUF file has them, q8_0 these, and all others in 8 (default: bf16)',
  ).choices(QUANTIZATIONS)
