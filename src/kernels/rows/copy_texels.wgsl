// Copies rows of KV caches in textures (kv_place.wgsl). A kernel cannot both read and write a texture, so they go through `between`: row x of each of
// `count` pairs from `first` on, of a and of b, is copied there, or (OUT) what is there is copied to row y. between (2, count, KV_WIDTH): first the
// rows of a, then those of b.
struct Params { first: u32, count: u32 }
#if OUT
@group(0) @binding(0) var a: texture_storage_2d<rgba32float, write>;
@group(0) @binding(1) var b: texture_storage_2d<rgba32float, write>;
@group(0) @binding(3) var<storage, read> between: array<vec4f>;
#else
@group(0) @binding(0) var a: texture_storage_2d<rgba32float, read>;
@group(0) @binding(1) var b: texture_storage_2d<rgba32float, read>;
@group(0) @binding(3) var<storage, read_write> between: array<vec4f>;
#endif
@group(0) @binding(2) var<storage, read> pairs: array<vec2u>;
#include "kv_place.wgsl"
#include "flat.wgsl"

fn one(e: u32) {
  let i = e / KV_WIDTH;
  if (i >= p.count) { return; }
  let of_b = e + p.count * KV_WIDTH;
#if OUT
  let at = kv_place(pairs[p.first + i].y, e % KV_WIDTH);
  textureStore(a, at, between[e]);
  textureStore(b, at, between[of_b]);
#else
  let at = kv_place(pairs[p.first + i].x, e % KV_WIDTH);
  between[e] = textureLoad(a, at);
  between[of_b] = textureLoad(b, at);
#endif
}
