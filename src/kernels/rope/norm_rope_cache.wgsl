// rope_cache.wgsl for heads with norms (Qwen3), including the norms, in one dispatch: each head of q and of k becomes x * r * gain, r = 1 / sqrt(mean
// of x^2 + eps), with the lanes and order of the sum of norm/rms_norm.wgsl, so its bits. Then q is rotated in place, k is rotated into its cache row,
// and v is copied into its cache row.
// q (rows, heads * D), k, v (rows, kv_heads * D), gains (D), D = PER_LANE * LANES, PER_LANE even, so that a lane has both values of a pair; caches
// and slots as in rope_cache.wgsl. KV_FOLD: the caches are textures (kv_place.wgsl).
// A workgroup takes ROWS heads of q, then of k, then of v of the rows, one after the other, and loads the gains once.
struct Params { rows: u32, heads: u32, kv_heads: u32, eps_q: f32, eps_k: f32 }
@group(0) @binding(0) var<storage, read_write> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> gain_q: array<f32>;
@group(0) @binding(4) var<storage, read> gain_k: array<f32>;
@group(0) @binding(5) var<storage, read> slots: array<vec2u>;
@group(0) @binding(6) var<storage, read> table: array<vec2f>;
#if KV_FOLD
@group(0) @binding(7) var k_cache: texture_storage_2d<rgba32float, write>;
@group(0) @binding(8) var v_cache: texture_storage_2d<rgba32float, write>;
#include "kv_place.wgsl"
#else
@group(0) @binding(7) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(8) var<storage, read_write> v_cache: array<f32>;
#endif
#include "lanes.wgsl"

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let of_row = p.heads + 2u * p.kv_heads;
  let first = (group.x + group.y * 65535u) * ROWS;
  let last = min(first + ROWS, p.rows * of_row);
#include "norm_rope_heads.wgsl"
}
