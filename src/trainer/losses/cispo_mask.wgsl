// CISPO as in verifiers' RLTrainer: a token whose ratio is outside [low, high] is dropped, the others contribute -ratio * A;
// d(-ratio * A) / dlogprob = -ratio * A, because ratio = exp(logprob - inference_logprob).
fn token_loss(logprob: f32, inference_logprob: f32, advantage: f32) -> vec2f {
  let ratio = exp(logprob - inference_logprob);
  let keep = ratio >= p.mask_ratio_low && ratio <= p.mask_ratio_high;
  let value = select(0.0, -ratio * advantage, keep);
  return vec2f(value, value);
}
#include "token_loss.wgsl"
