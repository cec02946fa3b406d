// One turn on matrix units with few rows (units_turns.wgsl, STRAIGHT and FORM_NT): the fragments of `a` come straight from memory, where one subgroup finds all that a
// workgroup has to multiply, those of W from workgroup memory, which that subgroup alone waits for. STEPS fragments of the depth are asked for at once; the depth is a
// multiple of theirs, so no fragment reaches over a row's end. `a` has rows up to the tile's end: what is behind the last comes to outputs that nobody writes.
    for (var d0 = 0u; d0 < $(KT)u && t0 + d0 < end; d0 += $(STEPS*FK)u) {
#for d in 0..STEPS
#for i in 0..TM/FM
      let left_$(d)_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&a, (i0 + $(i*FM)u) * a_row() + t0 + d0 + $(d*FK)u, a_row());
#end
#end
#for d in 0..STEPS
#for j in 0..TN/FN
      let right_$(d)_$(j) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, col_major>(&b_tile, d0 + $(d*FK+j*FN*(KT+8))u, $(KT+8)u);
#for i in 0..TM/FM
      acc_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(d)_$(i), right_$(d)_$(j), acc_$(i)_$(j));
#end
#end
#end
    }
