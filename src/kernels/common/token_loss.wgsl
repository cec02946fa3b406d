// The frame of a built-in loss. A file in src/trainer/losses defines
//   fn token_loss(logprob: f32, inference_logprob: f32, advantage: f32) -> vec2f
// which returns (loss of the token, dLoss/dlogprob) before the division by N, and includes this file. One invocation per loss token; all arrays
// (count). KL: adds beta x (exp(d) - d - 1), d = ref_logprob - logprob (kl.ts).
#if KL
struct Params { count: u32, mask_ratio_low: f32, mask_ratio_high: f32, inverse_tokens: f32, beta: f32 }
#else
struct Params { count: u32, mask_ratio_low: f32, mask_ratio_high: f32, inverse_tokens: f32 }
#endif
@group(0) @binding(0) var<storage, read> logprobs: array<f32>;
@group(0) @binding(1) var<storage, read> inference_logprobs: array<f32>;
@group(0) @binding(2) var<storage, read> advantages: array<f32>;
@group(0) @binding(3) var<storage, read_write> gradient: array<f32>;
@group(0) @binding(4) var<storage, read_write> loss: array<f32>;
#if KL
@group(0) @binding(5) var<storage, read> ref_logprobs: array<f32>;

// exp(d) - d - 1, and its derivative with respect to the logprob, 1 - exp(d). Near 0 both are differences of nearly equal numbers, so there their
// series is used, which is accurate to float32 for |d| below 1/2.
fn kl_term(d: f32) -> vec2f {
  var v = fma(d, 1.0 / 40320.0, 1.0 / 5040.0);
  v = fma(d, fma(d, fma(d, fma(d, fma(d, v, 1.0 / 720.0), 1.0 / 120.0), 1.0 / 24.0), 1.0 / 6.0), 0.5);
  let value = d * d * v;
  let e = exp(d) - 1.0;
  return select(vec2f(e - d, -e), vec2f(value, -(d + value)), abs(d) < 0.5);
}
#endif
#include "flat.wgsl"

fn one(t: u32) {
  if (t >= p.count) { return; }
#if KL
  let out = token_loss(logprobs[t], inference_logprobs[t], advantages[t]) + p.beta * kl_term(ref_logprobs[t] - logprobs[t]);
#else
  let out = token_loss(logprobs[t], inference_logprobs[t], advantages[t]);
#endif
  loss[t] = out.x * p.inverse_tokens;
  gradient[t] = out.y * p.inverse_tokens;
}
