// Reductions over the LANES invocations of a workgroup. SUBGROUP: the workgroup is one subgroup; else they are a tree through workgroup memory, with
// a barrier before the scratch memory is used again. Either way the order depends on LANES alone.
// WIDE: with a CPU driver's subgroups of 16, each of these operations, like a shuffle, is a loop over the lanes, while broadcasts from constant lanes
// cost nothing. So the reductions are trees of such broadcasts.
#if WIDE
#include "lanes_tree.wgsl"
fn lanes_sum(lane: u32, value: f32) -> f32 { return lanes_tree(value); }
// As integers that have the order of the floats: a maximum of two floats would also test each for NaN.
fn lanes_max(lane: u32, value: f32) -> f32 {
  let bits = bitcast<i32>(value);
  let key = bits ^ ((bits >> 31u) & 0x7fffffff);
#for i in 0..LANES
  let v0_$(i) = subgroupBroadcast(key, $(i)u);
#end
#for step in 0..4
#for i in 0..8/2**step
  let v$(step+1)_$(i) = max(v$(step)_$(2*i), v$(step)_$(2*i+1));
#end
#end
  return bitcast<f32>(v4_0 ^ ((v4_0 >> 31u) & 0x7fffffff));
}
// Lanes that have left a loop still count with their last value. So all lanes may do one iteration too many, but never too few.
fn lanes_any(value: bool) -> bool { return lanes_max(0u, f32(value)) > 0.0; }
#else
#if SUBGROUP
fn lanes_sum(lane: u32, value: f32) -> f32 { return subgroupAdd(value); }
fn lanes_max(lane: u32, value: f32) -> f32 { return subgroupMax(value); }
// Whether any lane has work to do. All lanes then take the same branch, which CPU drivers can skip as a whole.
fn lanes_any(value: bool) -> bool { return subgroupAny(value); }
#else
fn lanes_any(value: bool) -> bool { return value; }
var<workgroup> lanes_scratch: array<f32, LANES>;
fn lanes_sum(lane: u32, value: f32) -> f32 {
  lanes_scratch[lane] = value;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { lanes_scratch[lane] += lanes_scratch[lane + width]; }
  }
  return workgroupUniformLoad(&lanes_scratch[0]);
}
fn lanes_max(lane: u32, value: f32) -> f32 {
  lanes_scratch[lane] = value;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { lanes_scratch[lane] = max(lanes_scratch[lane], lanes_scratch[lane + width]); }
  }
  return workgroupUniformLoad(&lanes_scratch[0]);
}
#endif
#endif
