// The end of a split (PACKED in forward.wgsl): the lanes' sums of weights are added up, and m, l and o of all rows and heads are merged into those of
// the splits before with join.wgsl's operations.
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
      // For rows without a key in this split, all_l is multiplied by 1 and 0 is added.
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
        // Their o is 0, or NaN where a neighbour's values are NaN.
        all_o_$(x)_$(c) = select(all_o_$(x)_$(c), join_o(all_o_$(x)_$(c), o_$(x)_$(c), j), first < keys_$(x/HG));
        o_$(x)_$(c) = E();
#end
      }
#end
#endif
