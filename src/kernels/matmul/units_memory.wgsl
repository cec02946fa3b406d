// The operands of matrix units in workgroup memory as f16 (units.wgsl, group_units.wgsl), KT deep. Rows are 8 values longer than they need be, so that fragments do not meet in
// one memory bank. Vector e of a turn is eight values; neighbours in a row are loaded and stored by neighbouring threads.
// How much of it a workgroup takes matters: an H200 runs two of them side by side where each has 31 KB at most (bench/LOG.md, "On an H200").
var<workgroup> a_tile: array<f16, $(TM*(KT+8))>;
#if FORM_NT
var<workgroup> b_tile: array<f16, $(TN*(KT+8))>; // a row a column of the output
#else
var<workgroup> b_tile: array<f16, $(KT*(TN+8))>; // a row a step of the depth
#endif
var<workgroup> scratch: array<f32, $(SM*SN*FM*FN)>;

// Row and first step of vector e where rows run along the depth.
fn place_of_vector(e: u32) -> vec2u { return vec2u(e / $(KT/8)u, e % $(KT/8)u * 8u); }
// Where the row of vector e begins in `a`, and from there the vector of the turn that begins with step t0; behind the last turn any. Behind the depth `a` has zeros.
fn a_from(i0: u32, e: u32) -> u32 { return a_row(i0 + place_of_vector(e).x); }
fn a_place(t0: u32, e: u32) -> u32 { return min((t0 + place_of_vector(e).y) / 8u, a_vectors() - 1u); }
// Likewise in W, where anything may stand behind the depth.
fn b_from(j0: u32, e: u32) -> u32 {
#if FORM_NT
  return b_row(j0 + place_of_vector(e).x);
#else
  return b_column(j0 + e % $(TN/8)u * 8u);
#endif
}
fn b_place(t0: u32, e: u32) -> u32 {
#if FORM_NT
  return min(t0 + place_of_vector(e).y, b_depth() - 8u) / 8u;
#else
  return b_step(min(t0 + e / $(TN/8)u, b_depth() - 1u));
#endif
}
// Where vector e lies in workgroup memory.
fn a_at(e: u32) -> u32 {
  let place = place_of_vector(e);
  return place.x * $(KT+8)u + place.y;
}
fn b_at(e: u32) -> u32 {
#if FORM_NT
  return a_at(e);
#else
  return e / $(TN/8)u * $(TN+8)u + e % $(TN/8)u * 8u;
#endif
}
#include "half_turns.wgsl"
fn a_store(e: u32, bits: vec4u) {
  let half = halves(a_at(e), e);
  let words = in_turn(bits, e);
#for h in 0..2
#for q in 0..2
  let pair$(h)_$(q) = bitcast<vec2<f16>>(words[$(2*h+q)]);
  a_tile[half[$(h)] + $(2*q)u] = pair$(h)_$(q).x;
  a_tile[half[$(h)] + $(2*q+1)u] = pair$(h)_$(q).y;
#end
#end
}
fn b_store(e: u32, bits: vec4u) {
  let half = halves(b_at(e), e);
  let words = in_turn(bits, e);
#for h in 0..2
#for q in 0..2
  let pair$(h)_$(q) = bitcast<vec2<f16>>(words[$(2*h+q)]);
  b_tile[half[$(h)] + $(2*q)u] = pair$(h)_$(q).x;
  b_tile[half[$(h)] + $(2*q+1)u] = pair$(h)_$(q).y;
#end
#end
}
