// Copies rows inside a buffer, or (BOTH) inside two alike: row pairs[i].y becomes what row pairs[i].x is. For pages of the KV cache, and states. No row is both
// read and written. Rows are `width` words.
struct Params { count: u32, width: u32 }
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
@group(0) @binding(1) var<storage, read> pairs: array<vec2u>;
#if BOTH
@group(0) @binding(2) var<storage, read_write> b: array<u32>;
#endif
#include "flat.wgsl"

fn one(e: u32) {
  let i = e / p.width;
  if (i >= p.count) { return; }
  let at = e - i * p.width;
  let source = pairs[i].x * p.width + at;
  let to = pairs[i].y * p.width + at;
  a[to] = a[source];
#if BOTH
  b[to] = b[source];
#endif
}
