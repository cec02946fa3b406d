// What the backward pass of attention needs of each query: soft[t,h] = (lse[t,h], delta[t,h]), where delta = dO[t,h] . O[t,h], summed in order, is
// what the softmax's gradient subtracts. d_out, o (rows, heads, D), lse (rows, heads), soft (rows, heads). `width`: elements of a head; an element is
// one value, or with VEC4 four.
struct Params { count: u32, width: u32 }
#include "vectors.wgsl"
@group(0) @binding(0) var<storage, read> d_out: array<E>;
@group(0) @binding(1) var<storage, read> o: array<E>;
@group(0) @binding(2) var<storage, read> lse: array<f32>;
@group(0) @binding(3) var<storage, read_write> soft: array<vec2f>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  var sum = 0.0;
  for (var i = 0u; i < p.width; i++) { sum = dot_add(d_out[e * p.width + i], o[e * p.width + i], sum); }
  soft[e] = vec2f(lse[e], sum);
}
