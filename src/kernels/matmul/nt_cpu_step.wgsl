// One iteration of a forward product: acc_r_j += the sum of 8 k of x times W in w_j. x is in x_i, or HELD on the stack (held_cpu.wgsl).
#if HELD
#for j in 0..NT
#for g in 0..MT/APART
#let BLOCK = j*MT/APART+g
#include "apart_cpu.wgsl"
#for i in 0..APART
      var t$(i) = 0.0;
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      t$(i) = fma(subgroupBroadcast(held[$(2*r/LANES)][$(q)], $(2*r%LANES)u), w$(j).lo[$(q)], t$(i));
#end
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      t$(i) = fma(subgroupBroadcast(held[$(2*r/LANES)][$(q)], $(2*r%LANES+1)u), w$(j).hi[$(q)], t$(i));
#end
#end
#for i in 0..APART
      acc_$(APART*g+i)_$(j) += t$(i);
#end
    }
#end
#end
#else
#for g in 0..MT/APART
#let BLOCK = g
#include "apart_cpu.wgsl"
#for i in 0..APART
#for j in 0..NT
      var t$(i)_$(j) = 0.0;
#end
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      let lo$(i)_$(q) = subgroupBroadcast(x$(2*r/LANES)[$(q)], $(2*r%LANES)u);
#for j in 0..NT
      t$(i)_$(j) = fma(lo$(i)_$(q), w$(j).lo[$(q)], t$(i)_$(j));
#end
#end
#end
#for q in 0..4
#for i in 0..APART
#let r = APART*g+i
      let hi$(i)_$(q) = subgroupBroadcast(x$(2*r/LANES)[$(q)], $(2*r%LANES+1)u);
#for j in 0..NT
      t$(i)_$(j) = fma(hi$(i)_$(q), w$(j).hi[$(q)], t$(i)_$(j));
#end
#end
#end
#for i in 0..APART
#for j in 0..NT
      acc_$(APART*g+i)_$(j) += t$(i)_$(j);
#end
#end
    }
#end
#endif
