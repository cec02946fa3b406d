#for r in 0..MT
    {
#for j in 0..NT
      var t$(j) = 0.0;
#end
#for q in 0..4
      let lo$(q) = subgroupBroadcast(x$(2*r/LANES)[$(q)], $(2*r%LANES)u);
#for j in 0..NT
      t$(j) = fma(lo$(q), w$(j).lo[$(q)], t$(j));
#end
#end
#for q in 0..4
      let hi$(q) = subgroupBroadcast(x$(2*r/LANES)[$(q)], $(2*r%LANES+1)u);
#for j in 0..NT
      t$(j) = fma(hi$(q), w$(j).hi[$(q)], t$(j));
#end
#end
#for j in 0..NT
      acc_$(r)_$(j) += t$(j);
#end
    }
#end
