// Rows of a weight, widened: y[t, :] = W[ids[t], :]; W (N, K) bf16 or float32, y (rows, K). BY8: eight values per invocation, else one (K is not a
// multiple of 8; W then lies in a buffer). Ids outside [first_row, first_row + n) belong to another slice of W. SCALE: times `scale`.
#if SCALE
struct Params { rows: u32, k: u32, first_row: u32, n: u32, w_fold: u32, w_texels: u32, scale: f32 }
#else
struct Params { rows: u32, k: u32, first_row: u32, n: u32, w_fold: u32, w_texels: u32 }
#endif
@group(0) @binding(0) var<storage, read> ids: array<u32>;
#if BY8
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
#include "weight.wgsl"
#else
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
#if W_BF16
@group(0) @binding(2) var<storage, read> w_data: array<u32>;
#else
@group(0) @binding(2) var<storage, read> w_data: array<f32>;
#endif
#endif
#include "flat.wgsl"

fn one(e: u32) {
#if BY8
  let per_row = p.k / 8u;
#else
  let per_row = p.k;
#endif
  if (e >= p.rows * per_row) { return; }
  let t = e / per_row;
  let c = e % per_row;
  let id = ids[t];
  if (id < p.first_row || id >= p.first_row + p.n) { return; }
  let row = id - p.first_row;
#if BY8
  let w = w_load8(w_origin(row), c);
#if SCALE
  y[2u * e] = w.lo * p.scale;
  y[2u * e + 1u] = w.hi * p.scale;
#else
  y[2u * e] = w.lo;
  y[2u * e + 1u] = w.hi;
#endif
#else
#if W_BF16
  let at = row * p.k + c;
  let pair = w_data[at / 2u];
  y[e] = bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (at & 1u) == 1u));
#else
  y[e] = w_data[row * p.k + c];
#endif
#if SCALE
  y[e] *= p.scale;
#endif
#endif
}
