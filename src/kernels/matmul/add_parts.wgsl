// The reduction of split-K: out[e] = sum over i of products[i, e], with i in order. ACCUMULATE: the sum begins with what is in out, which gives the
// bits of adding the products to it one after the other.
// products (parts, count), out (count). An element is one value, or with VEC4 four.
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
