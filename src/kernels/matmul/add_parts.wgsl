// The reduction of split-K: out[e] = sum over i of products[i, e], i in order; ACCUMULATE: beginning with what is in out, so with the bits of products that are added to it one after the other.
// products (parts, count), out (count); an element is a value, or VEC4 four of them.
struct Params { count: u32, parts: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> products: array<E>;
@group(0) @binding(1) var<storage, read_write> out: array<E>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
#if ACCUMULATE
  var sum = out[e];
  for (var i = 0u; i < p.parts; i++) { sum += products[i * p.count + e]; }
#else
  var sum = products[e];
  for (var i = 1u; i < p.parts; i++) { sum += products[i * p.count + e]; }
#endif
  out[e] = sum;
}
