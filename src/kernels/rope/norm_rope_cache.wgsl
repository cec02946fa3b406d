// rope_cache.wgsl for heads that have norms (Qwen3), with those norms, in one dispatch: each head of q and of k is x * r * gain, r = 1 / sqrt(mean of x^2 + eps), as by
// norm/rms_norm.wgsl with its lanes and order of the sum, so its bits; then q is turned in place, k is turned into its cache row, v is copied into its cache row.
// q (rows, heads * D), k, v (rows, kv_heads * D), gains (D), D = HELD * LANES, HELD even, so that a lane has both values of a pair; caches and slots as in rope_cache.wgsl.
// KV_FOLD: the caches are textures (kv_place.wgsl).
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
#for j in 0..HELD
  let of_q$(j) = gain_q[lane + $(j*LANES)u];
  let of_k$(j) = gain_k[lane + $(j*LANES)u];
#end
  for (var e = first; e < min(first + ROWS, p.rows * of_row); e++) {
    let row = e / of_row;
    let head = e % of_row;
    let place = slots[row];
    let is_q = head < p.heads;
    let kv_head = select(head - p.heads, head - p.heads - p.kv_heads, head >= p.heads + p.kv_heads);
    let source = (row * p.kv_heads + kv_head) * $(HELD*LANES)u + lane;
    if (head >= p.heads + p.kv_heads) {
#if KV_FOLD
#for j in 0..HELD
      let put$(j) = v[source + $(j*LANES)u];
#end
#for CACHE in 1..2
#include "norm_rope_texels.wgsl"
#end
#else
      let to = (place.x * p.kv_heads + kv_head) * $(HELD*LANES)u + lane;
#for j in 0..HELD
      v_cache[to + $(j*LANES)u] = v[source + $(j*LANES)u];
#end
#endif
      continue;
    }
    let at = (row * p.heads + head) * $(HELD*LANES)u + lane;
#for j in 0..HELD
    var x$(j) = 0.0;
#end
    if (is_q) {
#for j in 0..HELD
      x$(j) = q[at + $(j*LANES)u];
#end
    } else {
#for j in 0..HELD
      x$(j) = k[source + $(j*LANES)u];
#end
    }
    let sum0 = 0.0;
#for j in 0..HELD
    let sum$(j+1) = fma(x$(j), x$(j), sum$(j));
#end
    let r = 1.0 / sqrt(lanes_sum(lane, sum$(HELD)) / f32($(HELD*LANES)u) + select(p.eps_k, p.eps_q, is_q));
#for j in 0..HELD
    let y$(j) = x$(j) * r * select(of_k$(j), of_q$(j), is_q);
#end
#for j in 0..HELD/2
    let turn$(j) = table[place.y * $(HELD*LANES/2)u + lane + $(j*LANES)u];
    let lower$(j) = fma(y$(j), turn$(j).x, -(y$(j+HELD/2) * turn$(j).y));
    let upper$(j) = fma(y$(j+HELD/2), turn$(j).x, y$(j) * turn$(j).y);
#end
    if (is_q) {
#for j in 0..HELD/2
      q[at + $(j*LANES)u] = lower$(j);
      q[at + $((j+HELD/2)*LANES)u] = upper$(j);
#end
    } else {
#if KV_FOLD
#for j in 0..HELD/2
      let put$(j) = lower$(j);
      let put$(j+HELD/2) = upper$(j);
#end
#for CACHE in 0..1
#include "norm_rope_texels.wgsl"
#end
#else
      let to = (place.x * p.kv_heads + kv_head) * $(HELD*LANES)u + lane;
#for j in 0..HELD/2
      k_cache[to + $(j*LANES)u] = lower$(j);
      k_cache[to + $((j+HELD/2)*LANES)u] = upper$(j);
#end
#endif
    }
  }
}
