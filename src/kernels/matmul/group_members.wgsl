// What group_tile.wgsl and group_units.wgsl share: the bindings of a group's outputs, biases, LoRA and RoPE, and which member a tile's columns belong
// to. PART: neighbouring columns of a tile that are divided between the two of a pair (`shapeOf` in group-tile.ts; on matrix units, a subgroup's
// columns). Y_F16 (GATED on matrix units): y is f16, as products there read it.
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
// places: with per_row 1 (cache row, position) of each row; with 2 `info` as in attention/common.wgsl, which ends with the position. table: (cos,
// sin), (positions, HALF).
@group(0) @binding(11) var<storage, read> places: array<vec2u>;
@group(0) @binding(12) var<storage, read> table: array<vec2f>;
// Writes columns n and n + HALF of row i of member s (0: q, 1: k, 2: v) to its output. q and k are rotated with the formula of rope/rope.wgsl, so
// with its bits.
fn finish_pair(s: u32, i: u32, n: u32, width: u32, a: f32, b: f32) {
  let place = places[i * p.per_row + p.per_row - 1u];
  let at = select(place.x, i, s == 0u || p.per_row == 2u) * width + n;
  if (s == 2u) {
    y_2[at] = a;
    y_2[at + HALF] = b;
    return;
  }
  let turn = table[place.y * HALF + n % (2u * HALF)];
  let lower = fma(a, turn.x, -(b * turn.y));
  let upper = fma(b, turn.x, a * turn.y);
  if (s == 0u) {
    y_0[at] = lower;
    y_0[at + HALF] = upper;
  } else {
    y_1[at] = lower;
    y_1[at + HALF] = upper;
  }
}
#endif
#if BIAS
@group(0) @binding(7) var<storage, read> bias: array<f32>;
#endif
#include "pick.wgsl"
// Maps column j of a tile that begins with column n0 to (which member of a GATED pair, column of that member). PAIRED: of each PART columns, the
// second half pairs with the first. With GATED it has the same columns of the second member; with ROPE, columns HALF further in the same heads.
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
