// The first products: scores of the tile's RT rows and the KT prefetched columns (one_s and two_s, units_ask.wgsl), left_1 times right_1 and left_2
// times right_2. They are written to `scratch` from `own` on: the subgroup's fragments of the first product, row by row of fragments, then those of
// the second. Begins with all of workgroup memory free and ends with a barrier.
#for s in 0..LOADS
#if LOAD_REST
      if (id + $(s*THREADS)u < $(KT*D/8)u) {
#else
      {
#endif
        store_1(id + $(s*THREADS)u, one_$(s));
        store_2(id + $(s*THREADS)u, two_$(s));
      }
#end
      workgroupBarrier();
      {
#for i in 0..RT/SM/FM
#for j in 0..KT/SN/FN
#for t in 1..3
        var score_$(t)_$(i)_$(j) = subgroup_matrix_result<f32, $(FN), $(FM)>();
#end
#end
#end
        for (var d0 = 0u; d0 < $(D/FK)u; d0 += $(DEEP)u) {
#for d in 0..DEEP
#for t in 1..3
#if !HOLD
#for i in 0..RT/SM/FM
          let left_$(t)_$(i)_$(d) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&left_$(t), left_at + $(i*FM)u * LEFT_HEADS * $(D)u + (d0 + $(d)u) * $(FK)u, LEFT_HEADS * $(D)u);
#end
#endif
#for j in 0..KT/SN/FN
          let right_$(t)_$(j)_$(d) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, col_major>(&tile_$(t), (sj + $(j*FN)u) * $(D+8)u + (d0 + $(d)u) * $(FK)u, $(D+8)u);
#for i in 0..RT/SM/FM
          score_$(t)_$(i)_$(j) = subgroupMatrixMultiplyAccumulate(left_$(t)_$(i)_$(d), right_$(t)_$(j)_$(d), score_$(t)_$(i)_$(j));
#end
#end
#end
#end
        }
#for t in 1..3
#for i in 0..RT/SM/FM
#for j in 0..KT/SN/FN
        subgroupMatrixStore<row_major>(&scratch, own + $((t-1)*RT*KT/SM/SN+i*FM*KT/SN+j*FM*FN)u, score_$(t)_$(i)_$(j), $(FN)u);
#end
#end
#end
      }
      workgroupBarrier();
