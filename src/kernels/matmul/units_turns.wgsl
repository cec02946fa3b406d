// The K loop of matrix units (units.wgsl, group_units.wgsl): steps begin .. end of the depth, one K-block of KT per iteration, into the accumulator
// fragments acc_i_j.
// The next K-block is prefetched before the products of this one, which hide the latency, and stored once all threads have read: A_AHEAD and B_AHEAD
// vectors per thread. That is all of it, except where subgroups are narrow (A_MORE, B_MORE: the rest is loaded when it is stored).
  let subgroup = id / $(LANES)u;
  let lane = id % $(LANES)u;
  let si = (subgroup / $(SN)u) * $(TM/SM)u;
  let sj = (subgroup % $(SN)u) * $(TN/SN)u;
#for i in 0..TM/SM/FM
#for j in 0..TN/SN/FN
  var acc_$(i)_$(j): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
#for s in 0..A_AHEAD
  let a_from$(s) = a_from(i0, id + $(s*THREADS)u);
  var a$(s) = a[a_from$(s) + a_place(begin, id + $(s*THREADS)u)];
#end
#for s in 0..B_AHEAD
  let b_from$(s) = b_from(j0, id + $(s*THREADS)u);
  var b$(s) = b[b_from$(s) + b_place(begin, id + $(s*THREADS)u)];
#end
  for (var t0 = begin; t0 < end; t0 += $(KT)u) {
#for s in 0..A_AHEAD
    store_1(id + $(s*THREADS)u, a$(s));
#end
#if A_MORE
    for (var e = id + $(A_AHEAD*THREADS)u; e < $(TM*KT/8)u; e += $(THREADS)u) { store_1(e, a[a_from(i0, e) + a_place(t0, e)]); }
#endif
#for s in 0..B_AHEAD
    store_2(id + $(s*THREADS)u, b$(s));
#end
#if B_MORE
    for (var e = id + $(B_AHEAD*THREADS)u; e < $(TN*KT/8)u; e += $(THREADS)u) { store_2(e, b[b_from(j0, e) + b_place(t0, e)]); }
#endif
    workgroupBarrier();
#for s in 0..A_AHEAD
    a$(s) = a[a_from$(s) + a_place(t0 + $(KT)u, id + $(s*THREADS)u)];
#end
#for s in 0..B_AHEAD
    b$(s) = b[b_from$(s) + b_place(t0 + $(KT)u, id + $(s*THREADS)u)];
#end
    // DEEP steps of fragments are unrolled: a whole K-block, or one on software drivers' matrix units, whose products are thousands of instructions.
    for (var d0 = 0u; d0 < $(KT/FK)u; d0 += $(DEEP)u) {
#for d in 0..DEEP
#for i in 0..TM/SM/FM
      let left_$(d)_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&tile_1, (d0 + $(d)u) * $(FK)u + (si + $(i*FM)u) * $(KT+8)u, $(KT+8)u);
#end
#for j in 0..TN/SN/FN
#if FORM_NT
      let right_$(d)_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, col_major>(&tile_2, (d0 + $(d)u) * $(FK)u + (sj + $(j*FN)u) * $(KT+8)u, $(KT+8)u);
#else
      let right_$(d)_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, row_major>(&tile_2, (d0 + $(d)u) * $(FK*(TN+8))u + sj + $(j*FN)u, $(TN+8)u);
#endif
#for i in 0..TM/SM/FM
      acc_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(d)_$(i), right_$(d)_$(j), acc_$(i)_$(j));
#end
#end
#end
    }
    workgroupBarrier();
  }
