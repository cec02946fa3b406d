// Draws one token a row from logits (rows, vocabulary), mask, biases and penalties already applied (adjust.wgsl). Order as in vLLM: temperature, min_p, top_k,
// top_p, then a draw.
// settings[2r] = (temperature, top_p, min_p, repetition), settings[2r+1] = (frequency, presence, top_k, use): use 1: a token is drawn; 2: none is, drawn[r] is
// what seeds[r] names; 0: the row is not in use. seeds[r] = (seed, position of the token), or (the token, -).
//   temperature 0: the largest logit. Else with z = logit / temperature:
//   min_p keeps z >= max z + log(min_p);  top_k keeps z >= the k-th largest (ties stay);
//   top_p, over the softmax of what is left, keeps the token v where the tokens of larger z weigh less than top_p.
//   The draw is the largest z + Gumbel noise, noise a hash of (seed, position, v): exact sampling that depends on nothing else in the batch.
// top_k and top_p find their threshold by bisection over the 32 bits of an order-preserving code of z, so no sort is needed; equal
// largest values go to the smallest id. One workgroup a row. MASK writes z, or -3e38 where dropped, here or by
// adjust.wgsl, back in place of drawing (tests, logprobs).
struct Params { rows: u32, vocabulary: u32 }
#if MASK
@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
#else
@group(0) @binding(0) var<storage, read> logits: array<f32>;
#endif
@group(0) @binding(1) var<storage, read> settings: array<vec4f>;
@group(0) @binding(2) var<storage, read> seeds: array<vec2u>;
@group(0) @binding(3) var<storage, read_write> drawn: array<u32>;
#include "lanes.wgsl"
#include "hash.wgsl"
var<workgroup> best_value: array<f32, LANES>;
var<workgroup> best_token: array<u32, LANES>;

// Unsigned order of code(z) = order of z, 0 and -0 alike.
fn code(z: f32) -> u32 {
  let u = bitcast<u32>(z);
  return select(u | 0x80000000u, ~u, u > 0x80000000u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= p.rows) { return; }
  let use_of_row = settings[2u * row + 1u].w;
  if (use_of_row != 1.0) {
    if (lane == 0u) { drawn[row] = select(0u, seeds[row].x, use_of_row == 2.0); }
    return;
  }
  let at = row * p.vocabulary;
  let main_settings = settings[2u * row];
  let top_p = main_settings.y;
  let min_p = main_settings.z;
  let top_k = u32(max(settings[2u * row + 1u].z, 0.0));
  let greedy = main_settings.x <= 0.0;
  let inv = select(1.0 / main_settings.x, 1.0, greedy);

  var high = -3.0e38;  // only min_p and top_p look at it
  if (!greedy && (min_p > 0.0 || top_p < 1.0)) {
    for (var v = lane; v < p.vocabulary; v += LANES) { high = max(high, logits[at + v] * inv); }
    high = lanes_max(lane, high);
  }

  var least = 0u;  // codes below it are dropped
  if (!greedy) {
    if (min_p > 0.0) { least = code(high + log(min_p)); }
    if (top_k > 0u && top_k < p.vocabulary) {
      // The smallest code with fewer than top_k values above it is that of the k-th largest value.
      var low = 0u;
      var up = 0xffffffffu;
      for (var bit = 0u; bit < 32u; bit++) {
        let middle = low + (up - low) / 2u;
        var count = 0.0;
        for (var v = lane; v < p.vocabulary; v += LANES) { count += select(0.0, 1.0, code(logits[at + v] * inv) > middle); }
        if (lanes_sum(lane, count) < f32(top_k)) { up = middle; } else { low = middle + 1u; }
      }
      least = max(least, up);
    }
    if (top_p < 1.0) {
      var total = 0.0;
      for (var v = lane; v < p.vocabulary; v += LANES) {
        let z = logits[at + v] * inv;
        total += select(0.0, exp(z - high), code(z) >= least);
      }
      let limit = lanes_sum(lane, total) * top_p;
      var low = least;
      var up = code(high);
      for (var bit = 0u; bit < 32u; bit++) {
        let middle = low + (up - low) / 2u;
        var sum = 0.0;
        for (var v = lane; v < p.vocabulary; v += LANES) {
          let z = logits[at + v] * inv;
          sum += select(0.0, exp(z - high), code(z) > middle);
        }
        if (lanes_sum(lane, sum) < limit) { up = middle; } else { low = min(middle + 1u, up); }
      }
      least = max(least, up);
    }
  }
#if MASK
  for (var v = lane; v < p.vocabulary; v += LANES) {
    let z = logits[at + v] * inv;
    logits[at + v] = select(-3.0e38, z, code(z) >= least && logits[at + v] > -1.0e29);
  }
#else
  var value = -3.4e38;
  var token = 0u;
  let seed = seeds[row];
  for (var v0 = 0u; v0 < p.vocabulary; v0 += LANES) {
    let v = min(v0 + lane, p.vocabulary - 1u);
    let z = logits[at + v] * inv;
    let h = hash3(seed.x, seed.y, v);
    let kept = v0 + lane < p.vocabulary && code(z) >= least;
    // Few can still win: for the others no noise is worked out.
    if (lanes_any(kept && z + select(gumbel_bound(h), 0.0, greedy) > value)) {
      var noisy = z;
      if (!greedy) { noisy += gumbel(h); }
      if (kept && noisy > value) { value = noisy; token = v; }
    }
  }
  best_value[lane] = value;
  best_token[lane] = token;
  workgroupBarrier();
  if (lane == 0u) {
    for (var i = 1u; i < LANES; i++) {
      if (best_value[i] > value || (best_value[i] == value && best_token[i] < token)) { value = best_value[i]; token = best_token[i]; }
    }
    drawn[row] = token;
  }
#endif
}
