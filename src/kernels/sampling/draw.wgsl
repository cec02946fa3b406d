// Draws one token per row from logits (rows, vocabulary) to which mask, biases and penalties are already applied (adjust.wgsl). Order as in vLLM:
// temperature, min_p, top_k, top_p, then a draw.
// settings[2r] = (temperature, top_p, min_p, repetition), settings[2r+1] = (frequency, presence, top_k, use). use 1: a token is drawn; 2: none is
// drawn, and drawn[r] is the token that seeds[r] gives; 0: the row is not in use. seeds[r] = (seed, position of the token), or (the token, -).
//   temperature 0: the largest logit. Else with z = logit / temperature:
//   min_p keeps z >= max z + log(min_p);  top_k keeps z >= the k-th largest (ties stay);
//   top_p, over the softmax of what is left, keeps a token if the tokens of larger z together weigh less than top_p.
//   The draw is the largest z + Gumbel noise, the noise being a hash of (seed, position, v): exact sampling that depends on nothing else in the
//     batch.
// top_k and top_p need no sort: their threshold is the largest code (an integer in the order of z) such that the tokens at or above it number at
// least top_k, or weigh at least top_p of all. One pass over the row adds up, for BOUNDS codes, what is at or above each. The threshold lies between
// two of them, and only the tokens there are looked at again: in workgroup memory as soon as they fit (ASIDE). So mostly the row is read once for its
// maximum, twice for the threshold, and once for the draw.
// Sums: a lane takes every LANES-th token; it begins with its own sum of what lies above, found before, and adds the rest in order of v. Counts are
// exact. Among equal largest values, the smallest id wins. One workgroup per row.
// MASK: instead of drawing, writes back z, or -3e38 for tokens dropped here or by adjust.wgsl (tests, logprobs). FIND (GPUs): drawn[r] = the smallest
// code that is kept, for draw_part.wgsl, which then draws.
// AHEAD values are loaded at once, which does not change the order of a sum: on a GPU, one load after the other would take most of the time.
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
#include "code.wgsl"
#if !FIND
#include "hash.wgsl"
var<workgroup> best_value: array<f32, LANES>;
var<workgroup> best_token: array<u32, LANES>;
#endif
const BOUNDS = 16u;
const ASIDE = 2048u;
// Each lane uses only its own part.
var<workgroup> aside: array<f32, ASIDE>;

// The codes of a pass, for places 1 .. BOUNDS in rising order: above `low`, evenly spaced up to `up`. The first pass has `low` itself, for the sum of
// all; then codes at distances of 23 to 0.25 from the largest value, where thresholds mostly are; then `up`, so that the search ends if the first
// token is enough by itself.
fn bound(place: u32, low: u32, up: u32, high: f32, first: bool) -> u32 {
  if (!first) { return min(low + ((up - low) / (BOUNDS + 1u) + 1u) * place, up); }
  if (place == 1u) { return low; }
  if (place == BOUNDS) { return up; }
  return clamp(code(high - exp2(5.5 - 0.5 * f32(place))), low, up);
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

  let by_count = !greedy && top_k > 0u && top_k < p.vocabulary;
  let by_weight = !greedy && top_p < 1.0;
  var high = -3.0e38; // read only if there are filters
  if (by_count || by_weight || (!greedy && min_p > 0.0)) {
    for (var v = lane; v < p.vocabulary; v += $(AHEAD*LANES)u) {
      high = max(high, logits[at + v] * inv);
#for k in 1..AHEAD
      high = max(high, logits[at + min(v + $(k*LANES)u, p.vocabulary - 1u)] * inv);
#end
    }
    high = lanes_max(lane, high);
  }

  var least = 1u;  // codes below it are dropped; no number's code is 0
  if (!greedy && min_p > 0.0) { least = code(high + log(min_p)); }
  for (var which = 0u; which < 2u; which++) {
    let counting = which == 0u;
    if (!select(by_weight, by_count, counting)) { continue; }
    // The threshold is one of low .. up; it is `low` if even there the sum is not enough.
    var low = least;
    var up = code(high);
    var enough = f32(top_k);
    var first = true;
    var above = 0.0;  // this lane's sum of what lies above `up`
    var whole = true; // passes go through the row; else through the values put aside: `held` of this lane, at most `turns` of any lane
    var turns = (p.vocabulary + LANES - 1u) / LANES;
    var held = 0u;
    while (low < up) {
#for j in 1..17
      let bound_$(j) = bound($(j)u, low, up, high, first);
      var sum_$(j) = above;
#end
      if (whole) { held = 0u; }
      for (var i0 = 0u; i0 < turns; i0 += AHEAD) {
#for k in 0..AHEAD
        var z_$(k) = 0.0;
#end
        if (whole) {
#for k in 0..AHEAD
          z_$(k) = logits[at + min((i0 + $(k)u) * LANES + lane, p.vocabulary - 1u)] * inv;
#end
        } else {
#for k in 0..AHEAD
          z_$(k) = aside[(i0 + $(k)u) * LANES + lane];
#end
        }
        for (var k = 0u; k < AHEAD; k++) {
          let i = i0 + k;
          var z = z_0;
#for k in 1..AHEAD
          z = select(z, z_$(k), k == $(k)u);
#end
          let is_one = select(i < held, i * LANES + lane < p.vocabulary, whole);
          var c = select(0u, code(z), is_one);
          c = select(0u, c, c >= low && c <= up);
          if (lanes_any(c > 0u)) {
            if (whole && c > 0u) {
              if (held < ASIDE / LANES) { aside[held * LANES + lane] = z; }
              held++;
            }
            var weight = 1.0;
            if (!counting) { weight = exp(z - high); }
#for j in 1..17
            sum_$(j) += select(0.0, weight, c >= bound_$(j));
#end
          }
        }
      }
      if (whole) {
        let most = u32(lanes_max(lane, f32(held)));
        if (most <= ASIDE / LANES) {
          whole = false;
          turns = most;
        }
      }
      // n: at the first n places the sum is enough. Found by bisection, as each sum over all lanes costs barriers. Iteration 0 asks for the sum of
      // all.
      var n = 0u;
      for (var turn = select(1u, 0u, first); turn < 6u; turn++) {
        let place = select(n + (32u >> turn), 1u, turn == 0u);
        var sum = 0.0;
#for j in 1..17
        sum = select(sum, sum_$(j), place == $(j)u);
#end
        sum = lanes_sum(lane, sum);
        if (turn > 0u) {
          n = select(n, place, place <= BOUNDS && sum >= enough);
        } else if (!counting) {
          enough = sum * top_p;
        }
      }
#for j in 1..17
      above = select(above, sum_$(j), n + 1u == $(j)u);
#end
      let next = bound(n + 1u, low, up, high, first) - 1u;
      low = select(bound(n, low, up, high, first), low, n == 0u);
      up = select(next, up, n == BOUNDS);
      first = false;
    }
    least = low;
  }
#if MASK
  for (var v = lane; v < p.vocabulary; v += LANES) {
    let z = logits[at + v] * inv;
    logits[at + v] = select(-3.0e38, z, code(z) >= least && logits[at + v] > -1.0e29);
  }
#endif
#if FIND
  if (lane == 0u) { drawn[row] = least; }
#endif
#if DRAW
  var value = -3.4e38;
  var token = 0u;
  let seed = seeds[row];
  for (var v0 = 0u; v0 < p.vocabulary; v0 += $(4*LANES)u) {
    // Only few tokens can still win; for the others no noise is computed. Checked for four at a time, as asking all lanes costs a CPU driver more
    // than a value.
    var most = -3.4e38;
#for k in 0..4
    let v_$(k) = min(v0 + $(k)u * LANES + lane, p.vocabulary - 1u);
    let z_$(k) = logits[at + v_$(k)] * inv;
    let h_$(k) = hash3(seed.x, seed.y, v_$(k));
    let kept_$(k) = v0 + $(k)u * LANES + lane < p.vocabulary && code(z_$(k)) >= least;
    let reach_$(k) = select(-3.4e38, z_$(k) + select(gumbel_bound(h_$(k)), 0.0, greedy), kept_$(k));
    most = max(most, reach_$(k));
#end
    if (lanes_any(most > value)) {
#for k in 0..4
      if (lanes_any(reach_$(k) > value)) {
        var noisy = z_$(k);
        if (!greedy) { noisy += gumbel(h_$(k)); }
        if (kept_$(k) && noisy > value) { value = noisy; token = v_$(k); }
      }
#end
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
