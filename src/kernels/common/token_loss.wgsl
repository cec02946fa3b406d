// The frame of a built-in loss: a file in src/trainer/losses defines
//   fn token_loss(logprob: f32, inference_logprob: f32, advantage: f32) -> vec2f      (loss of the token, dLoss/dlogprob), before the division by N
// and includes this. One invocation a loss token; all arrays (count).
struct Params { count: u32, mask_ratio_low: f32, mask_ratio_high: f32, inverse_tokens: f32 }
@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> inference_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> advantages: array<f32>;
@group(0) @binding(3) var<storage, read_write> gradient: array<f32>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
#include "flat.wgsl"

fn one(t: u32) {
  if (t >= p.count) { return; }
  let out = token_loss(logprobs[t], inference_logprobs[t], advantages[t]);
  loss[t] = out.x * p.inverse_tokens;
  gradient[t] = out.y * p.inverse_tokens;
}
