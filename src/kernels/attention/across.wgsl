// For kernels in which LANES invocations work on one row: broadcasts from another lane, and loop bounds.
#include "lanes.wgsl"

#if !SUBGROUP
var<workgroup> e_scratch: array<E, LANES>;
var<workgroup> f_scratch: array<f32, LANES>;
#endif
// The value of lane `source`, which must be the same number in all lanes.
fn e_from(lane: u32, value: E, source: u32) -> E {
#if SUBGROUP
  return subgroupShuffle(value, source);
#else
  workgroupBarrier();
  e_scratch[lane] = value;
  workgroupBarrier();
  return e_scratch[source];
#endif
}
fn f_from(lane: u32, value: f32, source: u32) -> f32 {
#if SUBGROUP
  return subgroupShuffle(value, source);
#else
  workgroupBarrier();
  f_scratch[lane] = value;
  workgroupBarrier();
  return f_scratch[source];
#endif
}
// Loop bounds: LANES, DE and C. ROLLED (CPU drivers): they are read from the params, so that the driver's compiler does not unroll. There each load
// or store in the code costs 2 KB of machine code and a tenth of a second of compilation, but an iteration of a loop costs next to nothing.
#if ROLLED
fn turns() -> u32 { return p.lanes; }
fn elements() -> u32 { return p.elements; }
fn parts() -> u32 { return (p.elements + LANES - 1u) / LANES; }
#else
fn turns() -> u32 { return LANES; }
fn elements() -> u32 { return DE; }
fn parts() -> u32 { return $(C)u; }
#endif
// The sum of a tile's weights over the lanes. TREE: in the order of lanes.wgsl's tree, written out, not in that of the driver's subgroupAdd, so that
// tile_forward.wgsl gives the same bits.
fn weights_sum(lane: u32, w: f32) -> f32 {
#if TREE
  var sum = w;
  for (var width = LANES / 2u; width > 0u; width /= 2u) { sum += subgroupShuffleXor(sum, width); }
  return sum;
#else
  return lanes_sum(lane, w);
#endif
}
