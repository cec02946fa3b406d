// What the kernels that give a row to LANES invocations share: values of other lanes, and bounds of loops.
#include "lanes.wgsl"

#if !SUBGROUP
var<workgroup> e_scratch: array<E, LANES>;
var<workgroup> f_scratch: array<f32, LANES>;
#endif
// The value that lane `source` holds, for a `source` that all lanes agree on.
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
// Bounds of loops: LANES, DE and C. ROLLED: as the driver cannot know them it cannot unroll, for on CPU drivers each place in the code that
// loads or stores costs 2 KB of machine code and a tenth of a second of compilation, and a turn of a loop next to nothing.
#if ROLLED
fn turns() -> u32 { return p.lanes; }
fn elements() -> u32 { return p.elements; }
fn parts() -> u32 { return (p.elements + LANES - 1u) / LANES; }
#else
fn turns() -> u32 { return LANES; }
fn elements() -> u32 { return DE; }
fn parts() -> u32 { return $(C)u; }
#endif
// A tile's weights, added up in the order of the tree in lanes.wgsl, whatever the driver's own order is: tile_forward.wgsl has the same.
fn weights_sum(lane: u32, w: f32) -> f32 {
#if TREE
  var sum = w;
  for (var width = LANES / 2u; width > 0u; width /= 2u) { sum += subgroupShuffleXor(sum, width); }
  return sum;
#else
  return lanes_sum(lane, w);
#endif
}
