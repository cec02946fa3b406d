#for g in 0..MT/APART
#include "apart_cpu.wgsl"
#for i in 0..APART
      var lo$(i) = lo_$(APART*g+i);
      var hi$(i) = hi_$(APART*g+i);
#end
#for z in 0..FOURS
#for i in 0..APART
      var tl$(i)_$(z) = vec4f();
      var th$(i)_$(z) = vec4f();
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      let g$(i)_$(z)_$(q) = subgroupBroadcast(g$(r/LANES)_$(z)[$(q)], $(r%LANES)u);
      tl$(i)_$(z) = fma(vec4f(g$(i)_$(z)_$(q)), w$(4*z+q).lo, tl$(i)_$(z));
      th$(i)_$(z) = fma(vec4f(g$(i)_$(z)_$(q)), w$(4*z+q).hi, th$(i)_$(z));
#end
#end
#for i in 0..APART
      lo$(i) += tl$(i)_$(z);
      hi$(i) += th$(i)_$(z);
#end
#end
#for i in 0..APART
      lo_$(APART*g+i) = lo$(i);
      hi_$(APART*g+i) = hi$(i);
#end
    }
#end
