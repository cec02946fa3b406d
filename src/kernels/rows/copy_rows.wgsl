// Copies rows inside two buffers alike, for pages of the KV cache: row pairs[i].y of a and of b becomes what row pairs[i].x is. No row is both read and written.
// Rows are `width` words.
struct Params { count: u32, width: u32 }
@group(0) @binding(0) var<storage, read_write> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@group(0) @binding(2) var<storage, read> pairs: array<vec2u>;
#include "flat.wgsl"

fn one(e: u32) {
  let i = e / p.width;
  if (i >= p.count) { return; }
  let at = e - i * p.width;
  let source = pairs[i].x * p.width + at;
  let to = pairs[i].y * p.width + at;
  a[to] = a[source];
  b[to] = b[source];
}
