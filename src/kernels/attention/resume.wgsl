// Part of forward.wgsl (RESUME): loads the partial sums that row_lanes.wgsl (SHARED) wrote for this row (shared_state.wgsl), and continues at key
// `start`.
    let start = at.z;
    if (start > 0u) {
#for x in 0..HG
      let begin_$(x) = (row0 * HEADS + head0 + $(x)u) * $(2*DE+LANES)u;
      let sums_$(x) = state[begin_$(x) + $(2*DE)u + lane];
      l_$(x) = sums_$(x).x;
      m_0 = select(m_0, sums_$(x).y, lane == $(x)u);
      all_m_0 = select(all_m_0, sums_$(x).z, lane == $(x)u);
      all_l_0 = select(all_l_0, sums_$(x).w, lane == $(x)u);
#for c in 0..C
      o_$(x)_$(c) = state[begin_$(x) + min($(c)u * LANES + lane, DE - 1u)];
      all_o_$(x)_$(c) = state[begin_$(x) + DE + min($(c)u * LANES + lane, DE - 1u)];
#end
#end
    }
