// Reductions over the LANES invocations of a workgroup, written once. SUBGROUP: the workgroup is one subgroup; else a tree through
// workgroup memory, with a barrier before the scratch is used again. Either way the order depends on LANES alone.
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
