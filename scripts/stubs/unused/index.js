// Stands in for onnxruntime-* and sharp (see package.json "overrides"): dawn-rl takes only the tokenizer and the chat template from
// @huggingface/transformers, and the real packages weigh 470 MB and download more when they are installed.
export default {}
export const InferenceSession = {}
export const Tensor = class {}
export const env = {}
