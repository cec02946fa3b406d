#for r in 0..MT
    {
      var lo = lo_$(r);
      var hi = hi_$(r);
#for z in 0..FOURS
#for q in 0..4
      let g_$(z)_$(q) = subgroupBroadcast(g$(r/8)_$(z)[$(q)], $(r%8)u);
      lo = fma(vec4f(g_$(z)_$(q)), w$(4*z+q).lo, lo);
      hi = fma(vec4f(g_$(z)_$(q)), w$(4*z+q).hi, hi);
#end
#end
      lo_$(r) = lo;
      hi_$(r) = hi;
    }
#end
