// One turn on matrix units (units.wgsl, group_units.wgsl): KT steps of the depth from half H of workgroup memory, a fragment's depth after another, into acc_i_j. DEEP fragments
// are written out: all of them, but for units of software drivers, whose products are thousands of instructions.
    for (var d0 = 0u; d0 < $(KT/FK)u; d0 += $(DEEP)u) {
#for d in 0..DEEP
#for i in 0..TM/SM/FM
      let left_$(d)_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&a_tile, $(H*A_HALF)u + (d0 + $(d)u) * $(FK)u + (si + $(i*FM)u) * $(KT+8)u, $(KT+8)u);
#end
#for j in 0..TN/SN/FN
#if FORM_NT
      let right_$(d)_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, col_major>(&b_tile, $(H*B_HALF)u + (d0 + $(d)u) * $(FK)u + (sj + $(j*FN)u) * $(KT+8)u, $(KT+8)u);
#else
      let right_$(d)_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, row_major>(&b_tile, $(H*B_HALF)u + (d0 + $(d)u) * $(FK*(TN+8))u + sj + $(j*FN)u, $(TN+8)u);
#endif
#for i in 0..TM/SM/FM
      acc_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(d)_$(i), right_$(d)_$(j), acc_$(i)_$(j));
#end
#end
#end
    }
