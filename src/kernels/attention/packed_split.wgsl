// The end of a split of the keys for all rows and heads (PACKED in forward.wgsl): lanes are added up, and sums join those before them with join.wgsl's operations.
#for x in 0..QR*HG
      let sum_$(x) = lanes_tree(l_$(x));
      l_$(x) = 0.0;
#end
#for v in 0..PACKED
      var sums_$(v) = sum_$(v*LANES);
#for i in 1..LANES
      sums_$(v) = select(sums_$(v), sum_$((v*LANES+i)%(QR*HG)), is_$(i));
#end
#if SPLITS
      all_l_$(v) = sums_$(v);
#else
      // Rows that have no key in this split: what they have is multiplied with 1, and 0 is added.
      let j_$(v) = joint(all_m_$(v), m_$(v));
      all_m_$(v) = j_$(v).m;
      all_l_$(v) = join_l(all_l_$(v), sums_$(v), j_$(v));
      m_$(v) = -3.0e38;
#endif
#end
#if !SPLITS
#for x in 0..QR*HG
      {
        let j = Joint(0.0, subgroupBroadcast(j_$(x/LANES).before, $(x%LANES)u), subgroupBroadcast(j_$(x/LANES).here, $(x%LANES)u));
#for c in 0..C
        // Of such rows o is 0, or not a number where a neighbour's values are none.
        all_o_$(x)_$(c) = select(all_o_$(x)_$(c), join_o(all_o_$(x)_$(c), o_$(x)_$(c), j), first < keys_$(x/HG));
        o_$(x)_$(c) = E();
#end
      }
#end
#endif
