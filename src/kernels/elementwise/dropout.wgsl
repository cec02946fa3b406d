// Dropout (as PyTorch: kept values are divided by 1 - rate): y = x * keep / (1 - rate), keep drawn from a hash of (seed, element), so
// the backward pass draws the same mask again. Elementwise over `count` values.
struct Params { count: u32, seed: u32, rate: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#include "flat.wgsl"
#include "hash.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  let keep = uniform01(hash3(p.seed, 0x6d2b79f5u, i)) >= p.rate;
  y[i] = select(0.0, x[i] / (1.0 - p.rate), keep);
}
