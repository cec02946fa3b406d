// Attention's backward pass on matrix units (units_backward_q.wgsl, units_backward_kv.wgsl): RT rows, the left operands of the scores, against KT
// columns per iteration, the right operands.
// All operands are f16, (rows, heads, D), D a multiple of 8: left_1 and left_2 have the rows, right_1 and right_2 the columns, which are staged in
// workgroup memory.
// A workgroup has SM x SN subgroups. A subgroup has RT/SM rows x KT/SN columns of the scores, and RT/SM rows x D/SN of the head's channels of the
// sums, in fragments of FM x FN, FK deep. WGSL gives no access to the elements of a fragment, so scores go through `scratch`, where a lane has
// FM*FN/4/LANES groups of four neighbours in a row of each fragment, and come back as `weights`.
@group(0) @binding(0) var<storage, read> left_1: array<f16>;
@group(0) @binding(1) var<storage, read> left_2: array<f16>;
@group(0) @binding(2) var<storage, read> right_1: array<vec4u>;
@group(0) @binding(4) var<storage, read> right_2: array<vec4u>;
// Rows are padded by 8 values, so that loads of a fragment have no bank conflicts.
#for t in 1..3
var<workgroup> tile_$(t): array<f16, $(KT*(D+8))>;
#end
var<workgroup> scratch: array<f32, $(2*RT*KT)>;
var<workgroup> weights: array<f16, $(SUMS*RT*(KT+8))>;
#include "half_turns.wgsl"
#include "narrow.wgsl"

#for t in 1..3
fn at_$(t)(e: u32) -> u32 { return e / $(D/8)u * $(D+8)u + e % $(D/8)u * 8u; }
#end
// Four neighbouring scores in a row of a fragment.
fn four(at: u32) -> vec4f { return vec4f(scratch[at], scratch[at + 1u], scratch[at + 2u], scratch[at + 3u]); }
// Stores four neighbouring weights as f16.
fn weigh(at: u32, value: vec4f) {
  let bits = narrow(value);
#for h in 0..2
  let pair$(h) = bitcast<vec2<f16>>(bits[$(h)]);
  weights[at + $(2*h)u] = pair$(h).x;
  weights[at + $(2*h+1)u] = pair$(h).y;
#end
}
