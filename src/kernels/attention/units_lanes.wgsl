  // What a subgroup owns in a tile of RT rows from row0 on: rows from si, columns of the scores from sj, channels of the sums from sc, and its
  // fragments of scores in `scratch` from `own` on. What a lane owns in a fragment: four columns from `across` on in each row down_q. left_at: where
  // the subgroup's rows begin in the left operands.
  let subgroup = id / $(LANES)u;
  let lane = id % $(LANES)u;
  let si = subgroup / $(SN)u * $(RT/SM)u;
  let sj = subgroup % $(SN)u * $(KT/SN)u;
  let sc = subgroup % $(SN)u * $(D/SN)u;
  let own = subgroup * $(2*RT*KT/SM/SN)u;
  let across = lane % $(FN/4)u * 4u;
#for q in 0..FM*FN/4/LANES
  let down_$(q) = lane / $(FN/4)u + $(q*LANES*4/FN)u;
#end
  let left_at = ((row0 + si) * LEFT_HEADS + left_head) * $(D)u;
#for i in 0..RT/SM/FM
#for u in 0..SUMS
#for c in 0..D/SN/FN
  var sum_$(u)_$(i)_$(c): subgroup_matrix_result<f32, $(FN), $(FM)>;
#end
#end
#if HOLD
#for t in 1..3
#for d in 0..D/FK
  let left_$(t)_$(i)_$(d) = subgroupMatrixLoad<subgroup_matrix_left<f16, $(FK), $(FM)>, row_major>(&left_$(t), left_at + $(i*FM)u * LEFT_HEADS * $(D)u + $(d*FK)u, LEFT_HEADS * $(D)u);
#end
#end
#endif
#end
  // The prefetched columns (units_ask.wgsl).
#for s in 0..LOADS
  var one_$(s) = vec4u();
  var two_$(s) = vec4u();
#end
