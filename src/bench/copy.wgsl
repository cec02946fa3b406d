// b = a, four values at a time, over `count` vectors: measures how fast a kernel can move data.
struct Params { count: u32 }
@group(0) @binding(0) var<storage, read> a: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> b: array<vec4f>;
#include "flat.wgsl"

fn one(i: u32) {
  if (i >= p.count) { return; }
  b[i] = a[i];
}
