// out[i] = x[index[i]] for `rows` rows of `width` elements; an element is a float32 value, or with VEC4 four of them.
struct Params { rows: u32, width: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> x: array<E>;
@group(0) @binding(1) var<storage, read> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<E>;
#include "flat.wgsl"

fn one(e: u32) {
  if (e >= p.rows * p.width) { return; }
  out[e] = x[index[e / p.width] * p.width + e % p.width];
}
