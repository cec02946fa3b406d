// The operands of a register tile in workgroup memory (tile.wgsl, group_tile.wgsl), one K-block of KT steps: each vector holds four rows of the
// output (b: four columns) at one step of the depth.
// Vector g of step t lies at t * TM/4 + (g ^ swizzle(t / 4)). So eight neighbouring threads, which are served together, have no bank conflicts,
// neither when they read eight vectors of one step nor when they store vectors of several steps. FEW has its own layout (few_turns.wgsl).
#if FEW
var<workgroup> a_tile: array<vec4f, $((KT/4+1)*TM)>;
var<workgroup> b_tile: array<vec4f, $((KT/4+1)*TN)>;
var<workgroup> sums_tile: array<f32, $(TM*TN)>;
// Vectors along K to read of a K-block when this many steps are left, in whole groups of VECTORS.
fn whole_quads(steps: u32) -> u32 { return (min($(KT)u, steps) + $(4*VECTORS-1)u) / $(4*VECTORS)u * $(VECTORS)u; }
#else
var<workgroup> a_tile: array<vec4f, $(KT*TM/4)>;
var<workgroup> b_tile: array<vec4f, $(KT*TN/4)>;
#endif

fn swizzle(y: u32) -> u32 { return y * $(1+16/KT)u % 8u; }
// Where the first step of block (x, y) lies. The block holds rows 4x .. 4x+3 at steps 4y .. 4y+3, which are TM/4 (b: TN/4) vectors apart.
fn a_at(block: vec2u) -> u32 { return block.y * $(TM)u + (block.x ^ swizzle(block.y)); }
fn b_at(block: vec2u) -> u32 { return block.y * $(TN)u + (block.x ^ swizzle(block.y)); }

#if W_BLOCKS
#include "../quantised/blocks.wgsl"
alias Loaded = Words;
#else
#include "bf16.wgsl"
alias Loaded = vec4u;
#endif
// What lies at an index of an operand: one value, widened if it is W; with VEC the bits of four, as they are in memory.
#if VEC
fn a_take(at: u32) -> vec4u { return bitcast<vec4u>(a[at]); }
#endif
#if !W_BLOCKS
#if VEC
fn b_take(at: u32) -> vec4u {
#if W_BF16
  return vec4u(b[at], 0u, 0u);
#else
  return bitcast<vec4u>(b[at]);
#endif
}
#else
fn b_take(at: u32) -> f32 {
#if W_BF16
  let pair = b[at / 2u];
#if W_F16
  return unpack2x16float(pair)[at & 1u];
#else
  return bitcast<f32>(select(pair << 16u, pair & 0xffff0000u, (at & 1u) == 1u));
#endif
#else
  return b[at];
#endif
}
#endif
#endif
#if VEC
// RMSNorm's factors of steps t .. t+3, without the row's scale.
fn gain_of(t: u32) -> vec4f {
#if NORM
  return gain_quad(t);
#else
  return vec4f();
#endif
}
// A thread loads, and an iteration later stores, whole blocks of 4 x 4. If an operand is contiguous along the depth (a except in FORM_TN, b in
// FORM_NT), neighbouring threads have neighbouring y and a block is transposed on its way; else they have neighbouring x.
fn a_block(e: u32) -> vec2u {
#if FORM_TN
  return vec2u(e % $(TM/4)u, e / $(TM/4)u);
#else
  return vec2u(e / $(KT/4)u, e % $(KT/4)u);
#endif
}
fn b_block(e: u32) -> vec2u {
#if FORM_NT
  return vec2u(e / $(KT/4)u, e % $(KT/4)u);
#else
  return vec2u(e % $(TN/4)u, e / $(TN/4)u);
#endif
}
// Vector r of a block of the K-block that begins with step t0, as it is in memory.
fn a_load(i0: u32, t0: u32, block: vec2u, r: u32) -> vec4u {
#if FORM_TN
  return a_quad(i0 + 4u * block.x, t0 + 4u * block.y + r);
#else
  return a_quad(i0 + 4u * block.x + r, t0 + 4u * block.y);
#endif
}
fn b_load(j0: u32, t0: u32, block: vec2u, r: u32) -> Loaded {
#if FORM_NT
  return b_quad(j0 + 4u * block.x + r, t0 + 4u * block.y);
#else
  return b_quad(j0 + 4u * block.x, t0 + 4u * block.y + r);
#endif
}
fn a_wide(bits: vec4u, row: u32, gain: vec4f) -> vec4f {
#if NORM
  return bitcast<vec4f>(bits) * row_scale[min(row, $(NORM_ROUNDS*THREADS/NORM_LANES-1)u)] * gain;
#else
  return bitcast<vec4f>(bits);
#endif
}
fn a_store(block: vec2u, gain: vec4f, u0: vec4u, u1: vec4u, u2: vec4u, u3: vec4u) {
  let at = a_at(block);
#for r in 0..4
  let v$(r) = a_wide(u$(r), 4u * block.x + $(r)u, gain);
#end
#for t in 0..4
#if FORM_TN
  a_tile[at + $(t*TM/4)u] = v$(t);
#else
  a_tile[at + $(t*TM/4)u] = vec4f(v0[$(t)], v1[$(t)], v2[$(t)], v3[$(t)]);
#endif
#end
}
// `place`: index in W's row of the first of the four values.
fn b_wide(bits: Loaded, place: u32) -> vec4f {
#if W_BLOCKS
  return values_of(bits, place);
#else
#if W_BF16
  return widen_lo(bits);
#else
  return bitcast<vec4f>(bits);
#endif
#endif
}
fn b_store(j0: u32, t0: u32, block: vec2u, u0: Loaded, u1: Loaded, u2: Loaded, u3: Loaded) {
  let at = b_at(block);
#if FORM_NT
  let place = t0 + 4u * block.y;
#else
  let place = j0 + 4u * block.x;
#endif
#for r in 0..4
  let v$(r) = b_wide(u$(r), place);
#end
#for t in 0..4
#if FORM_NT
  b_tile[at + $(t*TN/4)u] = vec4f(v0[$(t)], v1[$(t)], v2[$(t)], v3[$(t)]);
#else
  b_tile[at + $(t*TN/4)u] = v$(t);
#endif
#end
}
#else
fn a_four(i: u32, t: u32) -> vec4f { return vec4f(a_value(i, t), a_value(i + 1u, t), a_value(i + 2u, t), a_value(i + 3u, t)); }
fn b_four(j: u32, t: u32) -> vec4f { return vec4f(b_value(j, t), b_value(j + 1u, t), b_value(j + 2u, t), b_value(j + 3u, t)); }
#endif
#if LORA
fn low_a_four(i: u32, r: u32) -> vec4f { return vec4f(low_a(i, r), low_a(i + 1u, r), low_a(i + 2u, r), low_a(i + 3u, r)); }
fn low_b_four(j: u32, r: u32) -> vec4f { return vec4f(low_b(j, r), low_b(j + 1u, r), low_b(j + 2u, r), low_b(j + 3u, r)); }
#endif
