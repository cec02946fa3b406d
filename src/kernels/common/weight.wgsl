// Reads a weight W (N rows, K columns), eight consecutive values of a row at a time: w_load8(w_origin(n), c) gives W[n, 8c .. 8c+7].
// W_TEX: W is in a storage texture, in which one texel of 16 bytes holds 8 bf16 (W_BF16) or 4 float32 values; else in a storage buffer with the same
// bytes. Lavapipe reads storage textures three times as fast as buffers.
// A texture consists of panels of W_PANEL rows (8 or 16). A row of the texture holds texel 0 of each row of the panel, then texel 1 of each, and so
// on, so that the lanes of a subgroup, one row each, read 128 or 256 contiguous bytes. If there are more panels than a texture may be high, it is
// folded (W_FOLDED): panels from fold*i on form the next column beside the others.
#include "bf16.wgsl"

#if W_TEX
#if W_BF16
@group(0) @binding($(W_AT)) var w_data: texture_storage_2d<rgba32uint, read>;
#else
@group(0) @binding($(W_AT)) var w_data: texture_storage_2d<rgba32float, read>;
#endif
fn w_origin(n: u32) -> vec2u {
  let panel = n / W_PANEL;
#if W_FOLDED
  return vec2u((panel / p.w_fold) * p.w_texels * W_PANEL + n % W_PANEL, panel % p.w_fold);
#else
  return vec2u(n % W_PANEL, panel);
#endif
}
fn w_load8(at: vec2u, c: u32) -> W8 {
#if W_BF16
  let t = textureLoad(w_data, vec2u(at.x + c * W_PANEL, at.y));
  return W8(widen_lo(t), widen_hi(t));
#else
  let x = at.x + 2u * c * W_PANEL;
  return W8(textureLoad(w_data, vec2u(x, at.y)), textureLoad(w_data, vec2u(x + W_PANEL, at.y)));
#endif
}
#else
#if W_BF16
@group(0) @binding($(W_AT)) var<storage, read> w_data: array<vec4u>;
fn w_origin(n: u32) -> u32 { return n * p.w_texels; }
fn w_load8(at: u32, c: u32) -> W8 { let t = w_data[at + c]; return W8(widen_lo(t), widen_hi(t)); }
#else
@group(0) @binding($(W_AT)) var<storage, read> w_data: array<vec4f>;
fn w_origin(n: u32) -> u32 { return n * p.w_texels; }
fn w_load8(at: u32, c: u32) -> W8 { return W8(w_data[at + 2u * c], w_data[at + 2u * c + 1u]); }
#endif
#endif
