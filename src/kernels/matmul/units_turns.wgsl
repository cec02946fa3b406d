// The sums of matrix units (units.wgsl, group_units.wgsl): steps begin .. end of the depth, KT a turn, into fragments acc_i_j. What the next turn needs is asked for before a turn's
// products, which hide its way, and stored once all have read: A_AHEAD and B_AHEAD vectors a thread, which is all but where subgroups are narrow (A_MORE, B_MORE).
// LOADERS and STRAIGHT: other ways, units_loaders.wgsl and units_straight.wgsl. A subgroup that only loads does not multiply: it stands in the place of the last that does.
  let subgroup = min(id / $(LANES)u, $(SM*SN-1)u);
#if LOADERS
  let multiplies = id < $(WORKERS)u;
#else
  const multiplies = true;
#endif
  let lane = id % $(LANES)u;
  let si = (subgroup / $(SN)u) * $(TM/SM)u;
  let sj = (subgroup % $(SN)u) * $(TN/SN)u;
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  var acc_$(i)_$(j): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
#if LOADERS
#include "units_loaders.wgsl"
#else
#for s in 0..A_AHEAD
  var a$(s) = a_vector(i0, begin, id + $(s*LOAD_THREADS)u);
#end
#for s in 0..B_AHEAD
  var b$(s) = b_vector(j0, begin, id + $(s*LOAD_THREADS)u);
#end
  for (var t0 = begin; t0 < end; t0 += $(KT)u) {
#for s in 0..A_AHEAD
    a_store(0u, id + $(s*LOAD_THREADS)u, a$(s));
#end
#if A_MORE
    for (var e = id + $(A_AHEAD*LOAD_THREADS)u; e < $(TM*KT/8)u; e += $(LOAD_THREADS)u) { a_store(0u, e, a_vector(i0, t0, e)); }
#endif
#for s in 0..B_AHEAD
    b_store(0u, id + $(s*LOAD_THREADS)u, b$(s));
#end
#if B_MORE
    for (var e = id + $(B_AHEAD*LOAD_THREADS)u; e < $(TN*KT/8)u; e += $(LOAD_THREADS)u) { b_store(0u, e, b_vector(j0, t0, e)); }
#endif
    workgroupBarrier();
#for s in 0..A_AHEAD
    a$(s) = a_vector(i0, t0 + $(KT)u, id + $(s*LOAD_THREADS)u);
#end
#for s in 0..B_AHEAD
    b$(s) = b_vector(j0, t0 + $(KT)u, id + $(s*LOAD_THREADS)u);
#end
#if STRAIGHT
#include "units_straight.wgsl"
#else
#let H = 0
#include "units_step.wgsl"
#endif
    workgroupBarrier();
  }
#endif
