// What comes between the projections and attention over a KV cache, in one dispatch: q is rotated in place (with rope.wgsl's formula, so its bits), k
// is rotated into its cache row, and v is copied into its cache row.
// q (rows, heads * 2h), k, v (rows, kv_heads * 2h), caches (cache rows, kv_heads * 2h); slots[row] is (cache row, position).
// An element is a pair (turn.wgsl) of a head of q, then of k, then of v, or with VEC4 four neighbouring pairs (h a multiple of 4): finding an
// element's place costs more than rotating it, and one load or store of four values costs less than four. F16: the caches hold four f16 per vec2u.
// KV_FOLD, with VEC4: they are textures (kv_place.wgsl).
#if PARTIAL
struct Params { rows: u32, heads: u32, kv_heads: u32, half_dim: u32, turned: u32 }
#else
struct Params { rows: u32, heads: u32, kv_heads: u32, half_dim: u32 }
#endif
#if VEC4
alias E = vec4f;
alias T = vec4f;
#if F16
alias C = vec2u;
fn kept(x: E) -> C { return vec2u(pack2x16float(x.xy), pack2x16float(x.zw)); }
#else
alias C = E;
fn kept(x: E) -> C { return x; }
#endif
#else
alias C = f32;
fn kept(x: f32) -> f32 { return x; }
alias E = f32;
alias T = vec2f;
#endif
@group(0) @binding(0) var<storage, read_write> q: array<E>;
@group(0) @binding(1) var<storage, read> k: array<E>;
@group(0) @binding(2) var<storage, read> v: array<E>;
@group(0) @binding(3) var<storage, read> slots: array<vec2u>;
@group(0) @binding(4) var<storage, read> table: array<T>;
#if KV_FOLD
@group(0) @binding(5) var k_cache: texture_storage_2d<rgba32float, write>;
@group(0) @binding(6) var v_cache: texture_storage_2d<rgba32float, write>;
#include "kv_place.wgsl"
#else
@group(0) @binding(5) var<storage, read_write> k_cache: array<C>;
@group(0) @binding(6) var<storage, read_write> v_cache: array<C>;
#endif
#include "angles.wgsl"
#include "flat.wgsl"
fn position_of(row: u32) -> u32 { return slots[row].y; }

fn one(e: u32) {
  let h = p.half_dim / $(1+3*VEC4)u;
  let per_row = (p.heads + 2u * p.kv_heads) * h;
#include "turn.wgsl"
  if (head < p.heads) {
    let at = (row * p.heads + head) * 2u * h + lower;
    let a = q[at];
    let b = q[at + apart];
    q[at] = fma(a, cosine, -(b * sine));
    q[at + apart] = fma(b, cosine, a * sine);
    return;
  }
  let kv_head = select(head - p.heads, head - p.heads - p.kv_heads, head >= p.heads + p.kv_heads);
  let source = (row * p.kv_heads + kv_head) * 2u * h + lower;
#if KV_FOLD
  let to = kv_place(slots[row].x, kv_head * 2u * h + lower);
  let beyond = to + vec2u(apart, 0u);
#else
  let to = (slots[row].x * p.kv_heads + kv_head) * 2u * h + lower;
  let beyond = to + apart;
#endif
  if (head < p.heads + p.kv_heads) {
    let a = k[source];
    let b = k[source + apart];
    let lower_turned = fma(a, cosine, -(b * sine));
    let upper_turned = fma(b, cosine, a * sine);
#if KV_FOLD
    textureStore(k_cache, to, lower_turned);
    textureStore(k_cache, beyond, upper_turned);
#else
    k_cache[to] = kept(lower_turned);
    k_cache[beyond] = kept(upper_turned);
#endif
  } else {
#if KV_FOLD
    textureStore(v_cache, to, v[source]);
    textureStore(v_cache, beyond, v[source + apart]);
#else
    v_cache[to] = kept(v[source]);
    v_cache[beyond] = kept(v[source + apart]);
#endif
  }
}
