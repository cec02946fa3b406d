// Reductions over the LANES invocations of a workgroup, written once. SUBGROUP: the workgroup is one subgroup; else a tree through
// workgroup memory, with a barrier before the scratch is used again. Either way the order depends on LANES alone.
// WIDE: on a CPU driver's subgroups of 16 each of these, and a shuffle, is a loop over the lanes, and broadcasts of lanes that its compiler knows cost nothing: they are
// written out with those, in a tree.
#if WIDE
#include "lanes_tree.wgsl"
fn lanes_sum(lane: u32, value: f32) -> f32 { return lanes_tree(value); }
// By integers in the order of the numbers, as each maximum of two float32 asks besides whether one is none.
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
// Where some lanes are out of a loop already, what they held last counts too: all the same way is taken then for nothing, and never missed.
fn lanes_any(value: bool) -> bool { return lanes_max(0u, f32(value)) > 0.0; }
#else
#if SUBGROUP
fn lanes_sum(lane: u32, value: f32) -> f32 { return subgroupAdd(value); }
fn lanes_max(lane: u32, value: f32) -> f32 { return subgroupMax(value); }
// Whether to do what some lanes need: all lanes take the same way, which CPU drivers then jump over.
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
