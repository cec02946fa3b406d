// gain[c] = 1 + weight[c]: the factors of a norm whose weight is stored as the difference from 1 (Gemma).
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read_write> gain: array<f32>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  gain[i] = 1.0 + weight[i];
}
