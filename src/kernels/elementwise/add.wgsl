// y = a + b, elementwise over `count` elements: values, or VEC4: four of them.
struct Params { count: u32 }
#if VEC4
alias E = vec4f;
#else
alias E = f32;
#endif
@group(0) @binding(0) var<storage, read> a: array<E>;
@group(0) @binding(1) var<storage, read> b: array<E>;
@group(0) @binding(2) var<storage, read_write> y: array<E>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  y[i] = a[i] + b[i];
}
