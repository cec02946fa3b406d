// One iteration of nt_few_loop.wgsl: acc_r_j += CHUNKS sums of 8 k, one after the other, of x in xv (row r is in the lanes from r * 8 / MT on) times
// W in w_j_z.
#for r in 0..MT
    {
#for j in 0..NT
      var sum$(j) = acc_$(r)_$(j);
#end
#for z in 0..CHUNKS
#for j in 0..NT
      var t$(j)_$(z) = 0.0;
#end
#for q in 0..4
      let lo$(z)_$(q) = subgroupBroadcast(xv[$(q)], $(r*(8/MT)+2*z)u);
#for j in 0..NT
      t$(j)_$(z) = fma(lo$(z)_$(q), w$(j)_$(z).lo[$(q)], t$(j)_$(z));
#end
#end
#for q in 0..4
      let hi$(z)_$(q) = subgroupBroadcast(xv[$(q)], $(r*(8/MT)+2*z+1)u);
#for j in 0..NT
      t$(j)_$(z) = fma(hi$(z)_$(q), w$(j)_$(z).hi[$(q)], t$(j)_$(z));
#end
#end
#for j in 0..NT
      sum$(j) += t$(j)_$(z);
#end
#end
#for j in 0..NT
      acc_$(r)_$(j) = sum$(j);
#end
    }
#end
