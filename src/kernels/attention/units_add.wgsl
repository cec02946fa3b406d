// The second product: sum_u += weights u (RT rows, KT columns) times tile_(u+1) (KT columns, D channels). Begins and ends with a barrier.
      workgroupBarrier();
      for (var t0 = 0u; t0 < $(KT/FK)u; t0 += $(STEPS)u) {
#for t in 0..STEPS
#for u in 0..SUMS
#for i in 0..RT/SM/FM
        let weight_$(t)_$(u)_$(i) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&weights, $(u*RT*(KT+8))u + (si + $(i*FM)u) * $(KT+8)u + (t0 + $(t)u) * $(FK)u, $(KT+8)u);
#end
#for c in 0..D/SN/FN
        let vector_$(t)_$(u)_$(c) = subgroupMatrixLoad<subgroup_matrix_right<f16, $(FN), $(FK)>, row_major>(&tile_$(u+1), (t0 + $(t)u) * $(FK*(D+8))u + sc + $(c*FN)u, $(D+8)u);
#for i in 0..RT/SM/FM
        sum_$(u)_$(i)_$(c) = subgroupMatrixMultiplyAccumulate(weight_$(t)_$(u)_$(i), vector_$(t)_$(u)_$(c), sum_$(u)_$(i)_$(c));
#end
#end
#end
#end
      }
      workgroupBarrier();
