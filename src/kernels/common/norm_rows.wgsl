// RMSNorm as a prologue (group_tile.wgsl, down.wgsl): row_scale[i] = 1 / sqrt(mean over c of x[i0+i,c]^2 + eps) for the rows of a workgroup. The
// including file multiplies x * row_scale * gain. A row has the lanes and the order of the sum that it has in norm/rms_norm.wgsl (NORM_LANES,
// NORM_SUBGROUP), so the same bits.
// A workgroup has NORM_ROUNDS * NORM_ROWS rows: NORM_ROWS side by side (surplus threads repeat some), and NORM_ROUNDS of them per thread, whose loads
// go together. A lane has NORM_AHEAD loads of each row in flight, as few workgroups run and each waits for its loads. x_value(index) is an element of
// x.
var<workgroup> row_scale: array<f32, $(NORM_ROUNDS*NORM_ROWS)>;
#if !NORM_SUBGROUP
var<workgroup> norm_scratch: array<f32, THREADS>;
#endif
fn scale_rows(i0: u32, id: u32) {
  let lane = id % NORM_LANES;
  let first = id / NORM_LANES % NORM_ROWS;
#for q in 0..NORM_ROUNDS
  let at_$(q) = min(i0 + first + $(q*NORM_ROWS)u, p.rows - 1u) * p.k;
  var sum_$(q) = 0.0;
#end
  // Every lane has the same number of iterations.
  for (var c0 = 0u; c0 < p.k; c0 += $(NORM_AHEAD*NORM_LANES)u) {
    let c = c0 + lane;
#for q in 0..NORM_ROUNDS
#for u in 0..NORM_AHEAD
    let v_$(q)_$(u) = select(0.0, x_value(at_$(q) + min(c + $(u*NORM_LANES)u, p.k - 1u)), c + $(u*NORM_LANES)u < p.k);
#end
#end
#for q in 0..NORM_ROUNDS
#for u in 0..NORM_AHEAD
    sum_$(q) = fma(v_$(q)_$(u), v_$(q)_$(u), sum_$(q));
#end
#end
  }
#for q in 0..NORM_ROUNDS
#if NORM_SUBGROUP
  let total_$(q) = subgroupAdd(sum_$(q));
#else
  norm_scratch[id] = sum_$(q);
  for (var width = NORM_LANES / 2u; width > 0u; width /= 2u) {
    workgroupBarrier();
    if (lane < width) { norm_scratch[id] += norm_scratch[id + width]; }
  }
  workgroupBarrier();
  let total_$(q) = norm_scratch[id - lane];
  workgroupBarrier();
#endif
  if (lane == 0u && id < $(NORM_ROWS*NORM_LANES)u) { row_scale[first + $(q*NORM_ROWS)u] = 1.0 / sqrt(total_$(q) / f32(p.k) + p.eps); }
#end
  workgroupBarrier();
}
