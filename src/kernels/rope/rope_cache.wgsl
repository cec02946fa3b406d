// Between the projections and attention of a pass over a KV cache, in one dispatch: q is rotated in place (rope.wgsl's formula, so its bits), k is rotated
// into its cache row, v is copied into its cache row.
// q (rows, heads * 2h), k, v (rows, kv_heads * 2h), caches (cache rows, kv_heads * 2h); slots[row] is the cache row. An element is a pair (i, i + h) of
// a head of q, then of k, then of v.
struct Params { rows: u32, heads: u32, kv_heads: u32, half_dim: u32 }
@group(0) @binding(0) var<storage, read_write> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> info: array<vec4u>;
@group(0) @binding(4) var<storage, read> slots: array<u32>;
@group(0) @binding(5) var<storage, read> table: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> k_cache: array<f32>;
@group(0) @binding(7) var<storage, read_write> v_cache: array<f32>;
#include "flat.wgsl"

fn one(e: u32) {
  let per_row = (p.heads + 2u * p.kv_heads) * p.half_dim;
  let row = e / per_row;
  if (row >= p.rows) { return; }
  let head = (e % per_row) / p.half_dim;
  let i = e % p.half_dim;
  let h = p.half_dim;
  let turn = table[info[row].w * h + i];
  if (head < p.heads) {
    let at = (row * p.heads + head) * 2u * h + i;
    let a = q[at];
    let b = q[at + h];
    q[at] = fma(a, turn.x, -(b * turn.y));
    q[at + h] = fma(b, turn.x, a * turn.y);
    return;
  }
  let kv_head = (head - p.heads) % p.kv_heads;
  let source = (row * p.kv_heads + kv_head) * 2u * h + i;
  let to = (slots[row] * p.kv_heads + kv_head) * 2u * h + i;
  if (head < p.heads + p.kv_heads) {
    let a = k[source];
    let b = k[source + h];
    k_cache[to] = fma(a, turn.x, -(b * turn.y));
    k_cache[to + h] = fma(b, turn.x, a * turn.y);
  } else {
    v_cache[to] = v[source];
    v_cache[to + h] = v[source + h];
  }
}
