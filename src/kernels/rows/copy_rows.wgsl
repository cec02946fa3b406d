// Copies rows within a buffer, or with BOTH within two buffers alike: row pairs[i].y becomes a copy of row pairs[i].x. For pages of the KV cache, and
// for states. No row is both read and written. Rows have `width` words.
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
