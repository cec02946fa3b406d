// CISPO (arXiv 2506.13585): loss = -stopgrad(clamp(ratio, low, high)) * A * logprob, ratio = exp(logprob - inference_logprob).
// The clamped ratio is only a weight: no gradient flows through it.
fn token_loss(logprob: f32, inference_logprob: f32, advantage: f32) -> vec2f {
  let ratio = exp(logprob - inference_logprob);
  let weight = clamp(ratio, p.mask_ratio_low, p.mask_ratio_high);
  return vec2f(-weight * advantage * logprob, -weight * advantage);
}
#include "token_loss.wgsl"
