#for r in 0..MT
    {
      var lo = lo_$(r);
      var hi = hi_$(r);
#for q in 0..4
      let g_$(q) = subgroupBroadcast(g$(r/8)[$(q)], $(r%8)u);
      lo = fma(vec4f(g_$(q)), w$(q).lo, lo);
      hi = fma(vec4f(g_$(q)), w$(q).hi, hi);
#end
      lo_$(r) = lo;
      hi_$(r) = hi;
    }
#end
