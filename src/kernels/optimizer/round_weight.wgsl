// The working copy of a trained weight from its float32 master: rounded to bf16 (to nearest, ties to even; W_F16: stored as f16) or copied.
// One invocation per group of 8 values of a row (in a buffer: with BY8, else per word). Rows of the master from first_row on become rows of this
// storage slice from w_row on. w_fold, w_panel and w_texels are as in weight.wgsl.
struct Params { rows: u32, k: u32, first_row: u32, w_row: u32, w_fold: u32, w_panel: u32, w_texels: u32 }
#if BY8
@group(0) @binding(0) var<storage, read> master: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> w_data: array<vec4u>;
#else
@group(0) @binding(0) var<storage, read> master: array<f32>;
#if W_TEX
#if W_BF16
@group(0) @binding(1) var w_data: texture_storage_2d<rgba32uint, write>;
#else
@group(0) @binding(1) var w_data: texture_storage_2d<rgba32float, write>;
#endif
#else
#if W_BF16
@group(0) @binding(1) var<storage, read_write> w_data: array<u32>;
#else
@group(0) @binding(1) var<storage, read_write> w_data: array<f32>;
#endif
#endif
#endif
#include "flat.wgsl"
#include "bf16.wgsl"

fn one(e: u32) {
#if BY8
  let groups = p.k / 8u;
  if (e >= p.rows * groups) { return; }
  let at = p.first_row * groups + e;
  let lo = master[2u * at];
  let hi = master[2u * at + 1u];
#if W_BF16
  w_data[p.w_row * groups + e] = pack_weight(round_bf16(lo), round_bf16(hi));
#else
  let to = 2u * (p.w_row * groups + e);
  w_data[to] = bitcast<vec4u>(lo);
  w_data[to + 1u] = bitcast<vec4u>(hi);
#endif
#else
#if W_TEX
  let groups = p.k / 8u;
  if (e >= p.rows * groups) { return; }
  let row = e / groups;
  let c = e % groups;
  let at = (p.first_row + row) * p.k + 8u * c;
  let panel = (row + p.w_row) / p.w_panel;
  let first = (panel / p.w_fold) * p.w_texels * p.w_panel + (row + p.w_row) % p.w_panel;
  let y = panel % p.w_fold;
#if W_BF16
  let lo = vec4f(master[at], master[at + 1u], master[at + 2u], master[at + 3u]);
  let hi = vec4f(master[at + 4u], master[at + 5u], master[at + 6u], master[at + 7u]);
  textureStore(w_data, vec2u(first + c * p.w_panel, y), pack_weight(round_bf16(lo), round_bf16(hi)));
#else
  textureStore(w_data, vec2u(first + 2u * c * p.w_panel, y), vec4f(master[at], master[at + 1u], master[at + 2u], master[at + 3u]));
  textureStore(w_data, vec2u(first + (2u * c + 1u) * p.w_panel, y), vec4f(master[at + 4u], master[at + 5u], master[at + 6u], master[at + 7u]));
#endif
#else
  let first = p.first_row * p.k;
  let count = p.rows * p.k;
#if W_BF16
  if (2u * e >= count) { return; }
  let second = select(0.0, master[min(first + 2u * e + 1u, first + count - 1u)], 2u * e + 1u < count);
  w_data[p.w_row * p.k / 2u + e] = pack_weight(round_bf16(vec4f(master[first + 2u * e], second, 0.0, 0.0)), vec4u()).x;
#else
  if (e >= count) { return; }
  w_data[p.w_row * p.k + e] = master[first + e];
#endif
#endif
#endif
}
