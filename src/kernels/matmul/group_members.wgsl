// The members of a group (group_tile.wgsl, group_units.wgsl): outputs, biases and LoRA, and which columns are whose. PART: neighbouring columns of a tile of one owner,
// a thread or a subgroup. Y_F16, GATED on matrix units: y in f16, as products there read it.
#if GATED
alias E = f32;
#include "gelu.wgsl"
#endif
#if Y_F16
#include "narrow.wgsl"
@group(0) @binding(2) var<storage, read_write> y_0: array<f16>;
#else
#for o in 0..OUTPUTS
@group(0) @binding($(2+o)) var<storage, read_write> y_$(o): array<f32>;
#end
#endif
#if LORA
#if LOW4
@group(0) @binding(5) var<storage, read> bank: array<vec4f>;
@group(0) @binding(6) var<storage, read> xa: array<vec4f>;
#else
@group(0) @binding(5) var<storage, read> bank: array<f32>;
@group(0) @binding(6) var<storage, read> xa: array<f32>;
#endif
#endif
#if ROPE
// per_row 1: (cache row, position) of each row; 2: info as of attention/common.wgsl, which ends with the position. And (cos, sin) of (positions, HALF).
@group(0) @binding(11) var<storage, read> places: array<vec2u>;
@group(0) @binding(12) var<storage, read> table: array<vec2f>;
#include "group_turn.wgsl"
// Columns n and n + HALF of row i of member s, turned where that is q or k.
fn finish_pair(s: u32, i: u32, n: u32, width: u32, a: f32, b: f32) {
  let place = places[i * p.per_row + p.per_row - 1u];
  let at = select(place.x, i, s == 0u || p.per_row == 2u) * width + n;
  put_pair(s, at, place.y * HALF + n % (2u * HALF), a, b);
}
#endif
#if BIAS
@group(0) @binding(7) var<storage, read> bias: array<f32>;
#endif
#include "pick.wgsl"
// Column j of a workgroup's tile that begins with n0: y is the column of the member, x is 1 where GATED it is of the second. PAIRED, the second half of a part makes
// pairs with the first: of the other member, or ROPE HALF further in the same heads.
fn column_of(n0: u32, j: u32) -> vec2u {
#if PAIRED
  let q = j % $(PART)u;
  let c = j / $(PART)u * $(PART/2)u + q % $(PART/2)u;
#if GATED
  return vec2u(q / $(PART/2)u, n0 + c);
#else
  let pair = n0 / 2u + c;
  return vec2u(0u, pair / HALF * (2u * HALF) + pair % HALF + q / $(PART/2)u * HALF);
#endif
#else
  return vec2u(0u, n0 + j);
#endif
}
