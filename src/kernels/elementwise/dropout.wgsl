// Dropout (as in PyTorch, kept values are divided by 1 - rate): y = x * keep / (1 - rate), keep drawn from a hash of (seed, index of the value), so
// the backward pass draws the same mask again. Elementwise over `count` elements: values, or VEC4: four of them.
struct Params { count: u32, seed: u32, rate: f32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read_write> y: array<E>;
#include "flat.wgsl"
#include "hash.wgsl"

fn drawn(i: u32) -> f32 { return uniform01(hash3(p.seed, 0x6d2b79f5u, i)); }

fn one(i: u32) {
  if (i >= p.count) { return; }
#if VEC4
  let chance = vec4f(drawn(4u * i), drawn(4u * i + 1u), drawn(4u * i + 2u), drawn(4u * i + 3u));
#else
  let chance = drawn(i);
#endif
  y[i] = select(E(), x[i] / (1.0 - p.rate), chance >= E(p.rate));
}
