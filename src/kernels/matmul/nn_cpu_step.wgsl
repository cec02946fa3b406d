#for r in 0..MT
    {
      var lo = lo_$(r);
      var hi = hi_$(r);
#for z in 0..FOURS
      var tl_$(z) = vec4f();
      var th_$(z) = vec4f();
#for q in 0..4
      let g_$(z)_$(q) = subgroupBroadcast(g$(r/LANES)_$(z)[$(q)], $(r%LANES)u);
      tl_$(z) = fma(vec4f(g_$(z)_$(q)), w$(4*z+q).lo, tl_$(z));
      th_$(z) = fma(vec4f(g_$(z)_$(q)), w$(4*z+q).hi, th_$(z));
#end
      lo += tl_$(z);
      hi += th_$(z);
#end
      lo_$(r) = lo;
      hi_$(r) = hi;
    }
#end
