// x (rows, heads * 2 D) has two halves of D for each head: a and b (rows, heads * D) are the first and the second halves. JOIN: x from a and b. An
// element is one value of a and the one of b, or with VEC4 four neighbouring ones of each.
struct Params { count: u32, width: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
#if JOIN
@group(0) @binding(0) var<storage, read_write> x: array<E>;
@group(0) @binding(1) var<storage, read> a: array<E>;
@group(0) @binding(2) var<storage, read> b: array<E>;
#else
@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read_write> a: array<E>;
@group(0) @binding(2) var<storage, read_write> b: array<E>;
#endif
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.count) { return; }
  let at = e + e / p.width * p.width;
#if JOIN
  x[at] = a[e];
  x[at + p.width] = b[e];
#else
  a[e] = x[at];
  b[e] = x[at + p.width];
#endif
}
