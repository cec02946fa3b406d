// The loop over k of a forward product of more than two rows (nt_cpu.wgsl, group_cpu.wgsl): acc_r_j of MT rows, with x_row_i as defined in
// nt_cpu_rows.wgsl, and NT columns of W at at_j.
#let LOADS = (2*MT+LANES-1)/LANES
#include "held_cpu.wgsl"
#if HELD
#for i in 0..LOADS
  held[$(i)] = x_load(x_row$(i), lane % 2u);
#end
#endif
  for (var c = 0u; c < p.k / 8u; c++) {
#if !HELD
#for i in 0..LOADS
    let x$(i) = x_load(x_row$(i), lane % 2u + 2u * c);
#end
#endif
#for j in 0..NT
    let w$(j) = w_load8(at$(j), c);
#end
#include "nt_cpu_step.wgsl"
#if HELD
    let next = lane % 2u + 2u * min(c + 1u, p.k / 8u - 1u);
#for i in 0..LOADS
    held[$(i)] = x_load(x_row$(i), next);
#end
#endif
  }
