// What a layer computes before attention, for MT rows per workgroup, on CPU drivers with subgroups of LANES, 8: RMSNorm of x, then q, k and v, and
// for each row what norm_rope_cache.wgsl does: norms of the heads of q and k (PLAIN: none), RoPE, and k and v into the cache, in textures.
// mlp_cpu.wgsl says why this is one kernel, and what LORA is; adapters 0: q, 1: k, 2: v.
// x (rows, H), q (rows, NQ), k, v (rows, NKV): scratch. W_0 (NQ + 2 NKV, H): q, then k, then v, one below the other; bf16. H, NQ and NKV are
// multiples of 64. Heads have PER_LANE * LANES channels.
struct Params { rows: u32, k: u32, eps: f32, eps_q: f32, eps_k: f32, heads: u32, kv_heads: u32, a_0: u32, a_1: u32, a_2: u32, b_0: u32, b_1: u32, b_2: u32, scale_0: f32, scale_1: f32, scale_2: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> gain: array<vec4f>;
@group(0) @binding(2) var w_0: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(3) var<storage, read_write> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> k: array<f32>;
@group(0) @binding(5) var<storage, read_write> v: array<f32>;
@group(0) @binding(6) var<storage, read> slots: array<vec2u>;
@group(0) @binding(7) var<storage, read> table: array<vec2f>;
@group(0) @binding(8) var k_cache: texture_storage_2d<rgba32float, write>;
@group(0) @binding(9) var v_cache: texture_storage_2d<rgba32float, write>;
#if !PLAIN
@group(0) @binding(10) var<storage, read> gain_q: array<f32>;
@group(0) @binding(11) var<storage, read> gain_k: array<f32>;
#endif
#if LORA
@group(0) @binding(12) var<storage, read> bank: array<vec4f>;
#endif
#include "kv_place.wgsl"
#include "block.wgsl"

fn x_0(i: u32, row: u32, four: u32) -> vec4f { return normed[i * $(H/8)u + four / 2u]; }
fn to_norm(at: u32) -> f32 { return x[at]; }
#include "pick.wgsl"

@compute @workgroup_size($(LANES))
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
#include "rows.wgsl"
#include "norm.wgsl"
  {
#let S = 0
#let K = H
#let G = 0
#let G_END = 3
#include "lora_down.wgsl"
    for (var n0 = zero; n0 < $(NQ+2*NKV)u; n0 += $(8*LANES)u) {
      // To which of the three a tile belongs, and its columns there.
      let s = u32(n0 >= $(NQ)u) + u32(n0 >= $(NQ+NKV)u);
      let n = select($(NKV)u, $(NQ)u, s == 0u);
      let before = pick(s, 0u, $(NQ)u, $(NQ+NKV)u);
#for j in 0..NT
      let col$(j) = n0 - before + 8u * lane + $(j)u;
      let at$(j) = w_at(n0 + 8u * lane + $(j)u);
#end
#include "product.wgsl"
#if LORA
      let b_3 = pick(s, p.b_0, p.b_1, p.b_2);
#for R in 0..LORA
#for m in 0..MT
      let xa_3_$(R)_$(m) = select(select(xa_0_$(R)_$(m), xa_1_$(R)_$(m), s == 1u), xa_2_$(R)_$(m), s == 2u);
#end
#end
#endif
#let G = 3
#let SPAN = 8
#include "lora_up.wgsl"
      for (var row = m0; row < end; row++) {
#include "one_row.wgsl"
        let to = row * n + col0;
        if (s == 0u) {
#for j in 0..NT
          q[to + $(j)u] = out_$(j);
#end
        } else if (s == 1u) {
#for j in 0..NT
          k[to + $(j)u] = out_$(j);
#end
        } else {
#for j in 0..NT
          v[to + $(j)u] = out_$(j);
#end
        }
      }
    }
  }
  storageBarrier();
  let of_row = p.heads + 2u * p.kv_heads;
  let first = m0 * of_row;
  let last = end * of_row;
#include "../rope/norm_rope_heads.wgsl"
}
