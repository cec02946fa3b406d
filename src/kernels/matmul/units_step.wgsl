// One turn on matrix units (units.wgsl, group_units.wgsl): KT steps of the depth from workgroup memory, a fragment's depth after another, into acc_i_j.
#for d in 0..KT/FK
    {
#for i in 0..TM/SM/FM
      let left_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&a_tile, (si + $(i*FM)u) * $(KT+8)u + $(d*FK)u, $(KT+8)u);
#end
#for j in 0..TN/SN/FN
#if FORM_NT
      let right_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, col_major>(&b_tile, (sj + $(j*FN)u) * $(KT+8)u + $(d*FK)u, $(KT+8)u);
#else
      let right_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, row_major>(&b_tile, $(d*FK*(TN+8))u + sj + $(j*FN)u, $(TN+8)u);
#endif
#for i in 0..TM/SM/FM
      acc_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(i), right_$(j), acc_$(i)_$(j));
#end
#end
    }
#end
