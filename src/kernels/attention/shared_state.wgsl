// Part of row_lanes.wgsl (SHARED): stores the partial sums of a row and head, 2 DE + LANES vec4f: o of the split that is not full, all_o of the full
// splits, and (l, m, all_m, all_l) for each lane of forward.wgsl.
  for (var e = 0u; e < p.elements; e++) {
#for h in 0..HG
    var sum_$(h) = o_$(h)_0;
    var whole_$(h) = all_o_$(h)_0;
#for e in 1..DE
    sum_$(h) = select(sum_$(h), o_$(h)_$(e), e == $(e)u);
    whole_$(h) = select(whole_$(h), all_o_$(h)_$(e), e == $(e)u);
#end
    if (taken) {
      let begin = (row * HEADS + head0 + $(h)u) * $(2*DE+LANES)u + e;
      state[begin] = sum_$(h);
      state[begin + DE] = whole_$(h);
    }
#end
  }
  for (var i = 0u; i < p.lanes; i++) {
#for h in 0..HG
    var weight_$(h) = l_$(h)_0;
#for i in 1..LANES
    weight_$(h) = select(weight_$(h), l_$(h)_$(i), i == $(i)u);
#end
    if (taken) { state[(row * HEADS + head0 + $(h)u) * $(2*DE+LANES)u + $(2*DE)u + i] = vec4f(weight_$(h), m_$(h), all_m_$(h), all_l_$(h)); }
#end
  }
