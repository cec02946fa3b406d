// A turn of a product to the input: lo_r and hi_r += the sums of FOURS times 4 n of dy times those of W in w_q. dy is in g_i_z, or HELD on the stack (held_cpu.wgsl).
#if HELD
#for k in 0..8
#let HIGH = k/4
#for g in 0..MT/APART
#let BLOCK = k*MT/APART+g
#include "apart_cpu.wgsl"
#for z in 0..FOURS
#for i in 0..APART
      var t$(i)_$(z) = 0.0;
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
#let LOAD = r/LANES
#if HIGH
      t$(i)_$(z) = fma(subgroupBroadcast(held[$(FOURS*LOAD+z)][$(q)], $(r%LANES)u), w$(4*z+q).hi[$(k%4)], t$(i)_$(z));
#else
      t$(i)_$(z) = fma(subgroupBroadcast(held[$(FOURS*LOAD+z)][$(q)], $(r%LANES)u), w$(4*z+q).lo[$(k%4)], t$(i)_$(z));
#endif
#end
#end
#end
#for i in 0..APART
#for z in 0..FOURS
#if HIGH
      hi_$(APART*g+i)[$(k%4)] += t$(i)_$(z);
#else
      lo_$(APART*g+i)[$(k%4)] += t$(i)_$(z);
#endif
#end
#end
    }
#end
#end
#else
#for g in 0..MT/APART
#let BLOCK = g
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
#endif
