// The operands of matrix units in workgroup memory as f16 (units.wgsl, group_units.wgsl), KT deep; or two turns of
// them, HALVES. Rows are 8 values longer than they need be, so that fragments do not meet in one memory bank. Vector e of a turn
// is eight values; neighbours in a row are loaded and stored by neighbouring threads. STRAIGHT: `a` is not there.
#if !STRAIGHT
var<workgroup> a_tile: array<f16, $(HALVES*A_HALF)>;
#endif
var<workgroup> b_tile: array<f16, $(HALVES*B_HALF)>; // a row a column of the output (FORM_NT), or a step of the depth
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;
#include "narrow.wgsl"

#if !STRAIGHT
fn a_vector(i0: u32, t0: u32, e: u32) -> vec4u { return a_values(i0 + e / $(KT/8)u, t0 + e % $(KT/8)u * 8u); }
#endif
fn b_vector(j0: u32, t0: u32, e: u32) -> vec4u {
#if FORM_NT
  return b_values(j0 + e / $(KT/8)u, t0 + e % $(KT/8)u * 8u);
#else
  return b_values(j0 + e % $(TN/8)u * 8u, t0 + e / $(TN/8)u);
#endif
}
#if !STRAIGHT
// `begins`: where the half begins.
fn a_store(begins: u32, e: u32, bits: vec4u) {
  let at = begins + e / $(KT/8)u * $(KT+8)u + e % $(KT/8)u * 8u;
#for q in 0..4
  let pair$(q) = bitcast<vec2<f16>>(bits[$(q)]);
  a_tile[at + $(2*q)u] = pair$(q).x;
  a_tile[at + $(2*q+1)u] = pair$(q).y;
#end
}
#endif
fn b_store(begins: u32, e: u32, bits: vec4u) {
  let even = narrow(low(bits));
  let odd = narrow(high(bits));
#if FORM_NT
  let at = begins + e / $(KT/8)u * $(KT+8)u + e % $(KT/8)u * 8u;
#else
  let at = begins + e / $(TN/8)u * $(TN+8)u + e % $(TN/8)u * 8u;
#endif
#for q in 0..4
  b_tile[at + $(2*q)u] = even[$(q)];
  b_tile[at + $(2*q+1)u] = odd[$(q)];
#end
}
