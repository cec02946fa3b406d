// A weight W (N rows, K columns), eight consecutive values of a row at a time: w_load8(w_origin(n), c) gives W[n, 8c .. 8c+7].
// Storage: W_TEX: a storage texture, one texel of 16 bytes holds 8 bf16 (W_BF16) or 4 float32; else a storage buffer with the same
// bytes. A texture of more than 16384 rows is folded (W_FOLDED): rows fold*i .. stand side by side, K wide each.
// bf16 widens exactly: its bits are the upper half of a float32. Lavapipe reads storage textures three times faster than buffers.
struct W8 { lo: vec4f, hi: vec4f }

fn widen_lo(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.x << 16u), bitcast<f32>(u.x & 0xffff0000u), bitcast<f32>(u.y << 16u), bitcast<f32>(u.y & 0xffff0000u)); }
fn widen_hi(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.z << 16u), bitcast<f32>(u.z & 0xffff0000u), bitcast<f32>(u.w << 16u), bitcast<f32>(u.w & 0xffff0000u)); }

#if W_TEX
#if W_BF16
@group(0) @binding($(W_AT)) var w_data: texture_storage_2d<rgba32uint, read>;
#else
@group(0) @binding($(W_AT)) var w_data: texture_storage_2d<rgba32float, read>;
#endif
fn w_origin(n: u32) -> vec2u {
#if W_FOLDED
  return vec2u((n / p.w_fold) * p.w_texels, n % p.w_fold);
#else
  return vec2u(0u, n);
#endif
}
fn w_load8(at: vec2u, c: u32) -> W8 {
#if W_BF16
  let t = textureLoad(w_data, vec2u(at.x + c, at.y));
  return W8(widen_lo(t), widen_hi(t));
#else
  return W8(textureLoad(w_data, vec2u(at.x + 2u * c, at.y)), textureLoad(w_data, vec2u(at.x + 2u * c + 1u, at.y)));
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
