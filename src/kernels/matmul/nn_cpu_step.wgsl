// One iteration of a gradient of the input: acc_r_v += FOURS sums of 4 n of dy times W in w_q_v, where v is a vec4 of COLS columns. dy is in g_i_z,
// or HELD on the stack (held_cpu.wgsl).
#if HELD
#for k in 0..COLS
#let V = k/4
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
      t$(i)_$(z) = fma(subgroupBroadcast(held[$(FOURS*LOAD+z)][$(q)], $(r%LANES)u), w$(4*z+q)_$(V)[$(k%4)], t$(i)_$(z));
#end
#end
#end
#for i in 0..APART
#for z in 0..FOURS
      acc_$(APART*g+i)_$(V)[$(k%4)] += t$(i)_$(z);
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
#for v in 0..COLS/4
      var sum$(i)_$(v) = acc_$(APART*g+i)_$(v);
#end
#end
#for z in 0..FOURS
#for i in 0..APART
#for v in 0..COLS/4
      var t$(i)_$(z)_$(v) = vec4f();
#end
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      let g$(i)_$(z)_$(q) = subgroupBroadcast(g$(r/LANES)_$(z)[$(q)], $(r%LANES)u);
#for v in 0..COLS/4
      t$(i)_$(z)_$(v) = fma(vec4f(g$(i)_$(z)_$(q)), w$(4*z+q)_$(v), t$(i)_$(z)_$(v));
#end
#end
#end
#for i in 0..APART
#for v in 0..COLS/4
      sum$(i)_$(v) += t$(i)_$(z)_$(v);
#end
#end
#end
#for i in 0..APART
#for v in 0..COLS/4
      acc_$(APART*g+i)_$(v) = sum$(i)_$(v);
#end
#end
    }
#end
#endif
